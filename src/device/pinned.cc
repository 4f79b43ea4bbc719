#include "device/pinned.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace flambeau::device {
namespace {

class Pinned final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &free_pinned, c10::kCPU};
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t size = (nbytes + page - 1) / page * page;
    void* data = std::aligned_alloc(page, size);
    if (!data) throw std::bad_alloc();
    mlock(data, size);  // best effort: a limit of the system makes copies no less right
    std::lock_guard lock(mutex_);
    blocks_.emplace(static_cast<const char*>(data), size);
    stats_.active_requests.increase(1), stats_.active_bytes.increase(size);
    stats_.allocations.increase(1), stats_.allocated_bytes.increase(size);
    ++stats_.num_host_alloc;
    return {data, data, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* destination, const void* source, size_t count) const override { default_copy_data(destination, source, count); }

  bool record_event(void*, void*, c10::Stream) override { return true; }  // no copy outlives its call
  void empty_cache() override {}                                           // nothing is cached
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override { for_each_stat(&c10::CachingAllocator::Stat::reset_accumulated); }
  void reset_peak_stats() override { for_each_stat(&c10::CachingAllocator::Stat::reset_peak); }

  bool holds(const void* data) {
    std::lock_guard lock(mutex_);
    auto next = blocks_.upper_bound(static_cast<const char*>(data));
    if (next == blocks_.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    return std::less<>()(static_cast<const char*>(data), begin + size);
  }

 private:
  static void free_pinned(void* data);

  void release(void* data) {
    if (!data) return;
    size_t size = 0;
    {
      std::lock_guard lock(mutex_);
      auto block = blocks_.find(static_cast<const char*>(data));
      size = block->second;
      blocks_.erase(block);
      stats_.active_requests.decrease(1), stats_.active_bytes.decrease(size);
      stats_.allocations.decrease(1), stats_.allocated_bytes.decrease(size);
      ++stats_.num_host_free;
    }
    munlock(data, size);
    std::free(data);
  }

  void for_each_stat(void (c10::CachingAllocator::Stat::*reset)()) {
    std::lock_guard lock(mutex_);
    for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes}) (stat->*reset)();
  }

  std::mutex mutex_;
  std::map<const char*, size_t, std::less<>> blocks_;  // by first byte
  at::HostStats stats_;
};

Pinned& instance() {
  static auto* pinned = new Pinned;  // tensors may outlive every static
  return *pinned;
}

void Pinned::free_pinned(void* data) { instance().release(data); }

}  // namespace

at::HostAllocator& pinned_allocator() { return instance(); }
bool is_pinned(const void* data) { return data && instance().holds(data); }

}  // namespace flambeau::device
