#include "device/allocator.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/device.h"
#include "device/errors.h"

namespace flambeau::device {
namespace {

void release(void* record) { static_cast<runtime::Storage*>(record)->self.reset(); }

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    runtime::Engine::get();  // a missing plugin is known here, not at the first op
    const runtime::Trace* trace = runtime::Engine::current();
    return data_ptr_of(runtime::Storage::create(static_cast<int64_t>(nbytes), trace ? trace->id() : 0));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, std::size_t) const override {
    raise<NotImplemented>("[tpu] a storage cannot be copied byte by byte; clone the tensor instead");
  }

  bool initialized() override { return runtime::Engine::started(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // buffers live as long as anything uses them
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const runtime::MemoryUse use = runtime::memory_use();
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::lock_guard lock(mutex_);
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* stat : {&stats.allocation, &stats.active, &stats.segment})
      (*stat)[kAll] = {use.allocations - use.frees, use.peak_storages, use.allocations - before_.allocations, use.frees - before_.frees};
    for (auto* stat : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes, &stats.reserved_bytes})
      (*stat)[kAll] = {use.allocated, use.peak, use.total - before_.total, freed(use) - freed(before_)};
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    const runtime::MemoryUse use = runtime::memory_use();
    std::lock_guard lock(mutex_);
    before_ = use;
  }
  void resetPeakStats(c10::DeviceIndex) override { runtime::reset_peak_memory(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return at_the_edge([] {
      const pjrt::Client& client = runtime::Engine::get().client();
      const auto memory = client.memory_of(client.addressable_devices().front());
      if (!memory || !memory->limit)
        raise<NotImplemented>("[tpu] the plugin {} does not tell how much memory its device has", client.plugin().path().string());
      return std::pair(static_cast<size_t>(std::max<int64_t>(*memory->limit - memory->in_use, 0)), static_cast<size_t>(*memory->limit));
    }, [] { return std::string("memory_info"); });
  }

 private:
  static int64_t freed(const runtime::MemoryUse& use) { return use.total - use.allocated; }

  std::mutex mutex_;
  runtime::MemoryUse before_;  // resetAccumulatedStats()
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* instance = new Allocator;  // storages may outlive every static
  return *instance;
}

c10::DataPtr data_ptr_of(const std::shared_ptr<runtime::Storage>& storage) {
  FLAMBEAU_CHECK(!storage->self, "a storage record has one c10 owner");
  storage->self = storage;
  return {storage.get(), storage.get(), &release, tpu()};
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  runtime::Engine::get().resize(storage_of(storage), static_cast<int64_t>(nbytes));
  storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
}

runtime::Storage& storage_of(const c10::Storage& storage) {
  // The data pointer, not the context: PyTorch wraps contexts of its own around ours.
  auto* record = static_cast<runtime::Storage*>(const_cast<void*>(storage.data()));
  if (!record) raise<InvalidArgument>("[tpu] this tensor has no storage (its memory was given up by set_ or resize_)");
  return *record;
}

}  // namespace flambeau::device
