#include "runtime/storage.h"

#include <atomic>

namespace flambeau::runtime {
namespace {

std::atomic<uint64_t> next_id{1};
std::atomic<int64_t> allocated{0}, peak{0}, allocations{0}, frees{0};

void account(int64_t bytes) {
  int64_t now = allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

}  // namespace

Storage::Storage(int64_t nbytes) : id(next_id++), nbytes_(nbytes) {
  account(nbytes);
  ++allocations;
}

Storage::~Storage() {
  account(-nbytes_);
  ++frees;
}

std::shared_ptr<Storage> Storage::create(int64_t nbytes) { return std::shared_ptr<Storage>(new Storage(nbytes)); }

void Storage::set_nbytes(int64_t nbytes) {
  account(nbytes - nbytes_);
  nbytes_ = nbytes;
}

std::optional<hlo::Sharding> Storage::layout_of(const hlo::Dims& dims) const {
  std::lock_guard lock(storage_mutex());
  if (!value || type.dims != dims) return std::nullopt;
  return value->sharding();
}

std::mutex& storage_mutex() {
  static auto* mutex = new std::mutex;  // never destroyed: buffers may be dropped while the process ends
  return *mutex;
}

MemoryUse memory_use() { return {allocated, peak, allocations, frees}; }
void reset_peak_memory() { peak = allocated.load(); }

}  // namespace flambeau::runtime
