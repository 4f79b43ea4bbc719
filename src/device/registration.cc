// What PyTorch asks of a device beside its ops: the name, the guard and the hooks.
#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "base/error.h"
#include "device/allocator.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/pinned.h"
#include "device/register.h"
#include "device/scope.h"

namespace flambeau::device {
namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device device) const override { return checked(device); }
  c10::Device getDevice() const override { return tpu(); }
  void setDevice(c10::Device device) const override { checked(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device); }
  c10::Stream exchangeStream(c10::Stream other) const override { return stream(other.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override {
    synchronize_at_the_edge();
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override { synchronize_at_the_edge(); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    check_index(index);
    synchronize_at_the_edge();
  }

 private:
  static c10::Device checked(c10::Device device) {
    check_index(device.index());
    return tpu();
  }
  static c10::Stream stream(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, checked(device)); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return is_available(); }
  void init() const override { runtime::Engine::get(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    check_index(index);
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    check_index(index);
    return new_generator();
  }
  at::Device getDeviceFromPtr(void*) const override { return tpu(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return runtime::Engine::started(); }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex index) const override { check_index(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    check_index(index);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    TORCH_CHECK(static_cast<int64_t>(nbytes) >= 0, "[tpu] expected a storage of at least 0 bytes, got ", static_cast<int64_t>(nbytes));
    resize_storage(storage, nbytes);
  }
};

}  // namespace

void initialize(const runtime::EngineOptions& options, bool start) {
  static const bool registered = [] {
    c10::register_privateuse1_backend("tpu");
    c10::SetAllocator(kDeviceType, &allocator());
    at::setHostAllocator(kDeviceType, &pinned_allocator());
    static Guard guard;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(kDeviceType)].store(&guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);  // PyTorch keeps it for the process's life
    register_ops();
    register_own_ops();
    register_table();
    register_composites();
    register_data_dependent();
    register_attention();
    register_batch_norm();
    register_transformer();
    register_autocast();
    runtime::set_site_source(&current_scope);
    return true;
  }();
  (void)registered;
  if (start)
    runtime::Engine::start(options);
  else
    runtime::Engine::set_defaults(options);
}

bool is_available() {
  try {
    runtime::Engine::get();
    return true;
  } catch (const std::exception&) {
    return false;  // no plugin, a broken one, one without devices, or a child of a process that had started it
  }
}

void synchronize_at_the_edge() {
  at_the_edge([] { synchronize(); }, [] { return std::string("synchronize"); });
}

void synchronize() {
  if (runtime::Engine::started()) runtime::Engine::get().synchronize();
}

}  // namespace flambeau::device
