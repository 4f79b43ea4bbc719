#include "runtime/storage.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace flambeau::runtime {
namespace {

std::atomic<uint64_t> next_id{1};
std::atomic<int64_t> allocated{0}, peak{0}, allocations{0}, frees{0}, peak_storages{0}, total{0};

void raise_to(std::atomic<int64_t>& most, int64_t now) {
  int64_t seen = most.load(std::memory_order_relaxed);
  while (now > seen && !most.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void account(int64_t bytes) {
  if (bytes > 0) total.fetch_add(bytes, std::memory_order_relaxed);
  raise_to(peak, allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

// Guards the values of all storages.
struct Values {
  std::mutex mutex;
  std::condition_variable given_back;
};

Values& values() {
  static auto* instance = new Values;  // never destroyed: buffers may be dropped while the process ends
  return *instance;
}

}  // namespace

Storage::Storage(int64_t nbytes, uint64_t recording) : id(next_id++), nbytes_(nbytes) {
  value_.recording = recording;
  account(nbytes);
  raise_to(peak_storages, ++allocations - frees);
}

Storage::~Storage() {
  account(-nbytes());
  ++frees;
}

std::shared_ptr<Storage> Storage::create(int64_t nbytes, uint64_t recording) {
  return std::shared_ptr<Storage>(new Storage(nbytes, recording));
}

Held Storage::held() const {
  std::unique_lock lock(values().mutex);
  values().given_back.wait(lock, [&] { return !given_; });
  return value_;
}

std::vector<Held> held(std::span<const Storage* const> storages) {
  std::vector<Held> result;
  result.reserve(storages.size());
  std::unique_lock lock(values().mutex);
  values().given_back.wait(lock, [&] { return std::ranges::none_of(storages, &Storage::given_); });
  for (const Storage* storage : storages) result.push_back(storage->value_);
  return result;
}

uint64_t Storage::recording() const {
  std::lock_guard lock(values().mutex);
  return value_.recording;
}

void Storage::set(const hlo::Type& type, std::shared_ptr<const Array> array) {
  Held next{type, std::move(array)};
  std::unique_lock lock(values().mutex);
  values().given_back.wait(lock, [&] { return !given_; });
  std::swap(value_, next);  // what it held is freed without the lock
  lock.unlock();
}

bool Storage::replace(const Held& before, int64_t nbytes, const hlo::Type& type, std::shared_ptr<const Array> array) {
  Held next{type, std::move(array), before.recording, before.failure};
  std::unique_lock lock(values().mutex);
  values().given_back.wait(lock, [&] { return !given_; });
  if (value_.array != before.array || value_.failure != before.failure) return false;
  account(nbytes - nbytes_.exchange(nbytes));
  std::swap(value_, next);
  lock.unlock();
  return true;
}

std::optional<hlo::Sharding> layout_of(const Storage& storage, const hlo::Dims& dims) {
  const Held held = storage.held();
  if (!held.array || held.type.dims != dims) return std::nullopt;
  return held.array->sharding();
}

// ---- donation ---------------------------------------------------------------------------------------------------------------

Handover::~Handover() { fail("the launch that was to give this tensor failed"); }

std::vector<bool> Handover::offer(std::span<const Offer> offers) {
  std::vector<bool> given(offers.size());
  given_.reserve(given_.size() + offers.size());
  std::lock_guard lock(values().mutex);
  for (size_t i = 0; i < offers.size(); ++i) {
    Storage& storage = *offers[i].storage;
    const std::shared_ptr<const Array>& array = *offers[i].array;
    // One reference is the storage's and one the launch's. Nobody can take another: that needs the lock.
    if (!array || storage.value_.array != array || array.use_count() != 2) continue;
    given_.emplace_back(offers[i].storage, storage.value_);
    storage.value_.array = nullptr;
    storage.given_ = given[i] = true;
  }
  return given;
}

void Handover::commit(std::span<const Assignment> assignments) {
  std::vector<Held> old;  // freed without the lock
  old.reserve(assignments.size());
  {
    std::lock_guard lock(values().mutex);
    for (const Assignment& a : assignments) old.push_back(std::exchange(a.storage->value_, Held{a.type, a.array}));
    for (auto& [storage, before] : given_) storage->given_ = false;
  }
  if (!given_.empty()) values().given_back.notify_all();
  given_.clear();
}

void Handover::fail(const std::string& reason) {
  if (given_.empty()) return;
  for (auto& [storage, before] : given_)
    if (before.array->deleted()) before = {before.type, nullptr, before.recording, std::make_shared<const std::string>(reason)};
  {
    std::lock_guard lock(values().mutex);
    for (auto& [storage, before] : given_) {
      storage->given_ = false;
      if (!storage->value_.array) storage->value_ = before;
    }
  }
  values().given_back.notify_all();
  given_.clear();
}

bool shows_all(const TensorRef& tensor) {
  return tensor.view.offset == 0 && tensor.view.is_contiguous() &&
         tensor.view.elements() * byte_size(tensor.dtype) >= tensor.storage->nbytes();
}

MemoryUse memory_use() { return {allocated, peak, allocations, frees, peak_storages, total}; }
void reset_peak_memory() {
  peak = allocated.load();
  peak_storages = allocations - frees;
}

}  // namespace flambeau::runtime
