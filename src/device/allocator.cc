#include "device/allocator.h"

#include "base/error.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

void release(void* record) { static_cast<runtime::Storage*>(record)->self.reset(); }

class Allocator final : public c10::Allocator {
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
};

}  // namespace

c10::Allocator& allocator() {
  static auto* instance = new Allocator;  // storages may outlive every static
  return *instance;
}

c10::DataPtr data_ptr_of(const std::shared_ptr<runtime::Storage>& storage) {
  FLAMBEAU_CHECK(!storage->self, "a storage record has one c10 owner");
  storage->self = storage;
  return {storage.get(), storage.get(), &release, tpu()};
}

runtime::Storage& storage_of(const c10::Storage& storage) {
  // The data pointer, not the context: PyTorch wraps contexts of its own around ours.
  auto* record = static_cast<runtime::Storage*>(const_cast<void*>(storage.data()));
  if (!record) raise<InvalidArgument>("[tpu] this tensor has no storage (its memory was given up by set_ or resize_)");
  return *record;
}

}  // namespace flambeau::device
