#include <algorithm>
#include <numeric>
#include <thread>

#include "pjrt/call.h"
#include "pjrt/element_type.h"
#include "pjrt/known_options.h"
#include "pjrt/named_values.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

std::vector<Device> list_devices(const PJRT_Api* api, PJRT_Client* client) {
  const auto all = call<&PJRT_Api::PJRT_Client_Devices>(api, "client", [&](auto& a) { a.client = client; });
  std::vector<Device> devices;
  devices.reserve(all.num_devices);
  for (PJRT_Device* handle : std::span(all.devices, all.num_devices)) {
    auto about = [&](auto& a) { a.device = handle; };
    devices.push_back(describe(api, call<&PJRT_Api::PJRT_Device_GetDescription>(api, "client", about).device_description));
    devices.back().handle = handle;
    devices.back().addressable = call<&PJRT_Api::PJRT_Device_IsAddressable>(api, "client", about).is_addressable;
  }
  std::sort(devices.begin(), devices.end(), [](const Device& a, const Device& b) { return a.id < b.id; });
  return devices;
}

}  // namespace

std::shared_ptr<const Client> Client::create(const Plugin& plugin, const Attributes& options) {
  const PJRT_Api* api = plugin.api();
  const auto values = to_named_values(options);
  auto client = std::shared_ptr<Client>(new Client);
  client->plugin_ = &plugin;
  client->handle_ = call<&PJRT_Api::PJRT_Client_Create>(api, "client", [&](auto& a) {
                      a.create_options = values.data();
                      a.num_options = values.size();
                    }).client;
  auto about = [&](auto& a) { a.client = client->handle_; };
  const auto name = call<&PJRT_Api::PJRT_Client_PlatformName>(api, "client", about);
  client->platform_name_.assign(name.platform_name, name.platform_name_size);
  const auto version = call<&PJRT_Api::PJRT_Client_PlatformVersion>(api, "client", about);
  client->platform_version_.assign(version.platform_version, version.platform_version_size);
  client->process_index_ = call<&PJRT_Api::PJRT_Client_ProcessIndex>(api, "client", about).process_index;
  client->devices_ = list_devices(api, client->handle_);
  std::copy_if(client->devices_.begin(), client->devices_.end(), std::back_inserter(client->addressable_),
               [](const Device& d) { return d.addressable; });
  if (client->addressable_.empty()) {
    raise<PluginError>("[pjrt.client] the plugin {} has no device that this process can use ({} in all)",
                       plugin.path().string(), client->devices_.size());
  }
  return client;
}

std::optional<DeviceMemory> Client::memory_of(const Device& device) const {
  if (!offers<&PJRT_Api::PJRT_Device_MemoryStats>(plugin_->api())) return std::nullopt;
  try {
    const auto memory =
        call<&PJRT_Api::PJRT_Device_MemoryStats>(plugin_->api(), "memory_of", [&](auto& a) { a.device = device.handle; });
    return DeviceMemory{memory.bytes_in_use, memory.bytes_limit_is_set ? std::optional(memory.bytes_limit) : std::nullopt};
  } catch (const PluginError&) {
    return std::nullopt;  // UNIMPLEMENTED
  }
}

Client::~Client() {
  if (handle_ == nullptr) return;
  auto destroy = [api = plugin_->api(), handle = handle_] {
    release<&PJRT_Api::PJRT_Client_Destroy>(api, [&](auto& a) { a.client = handle; });
  };
  if (CallbackScope::active() && !process_is_exiting()) {
    std::thread(destroy).detach();  // this is a thread of the client's own, for which its end would wait
  } else {
    destroy();
  }
}

std::unique_ptr<Executable> Client::compile(std::string_view program, const CompileOptions& options) const {
  CompileOptions filled = options;
  const auto count = static_cast<size_t>(options.num_replicas) * static_cast<size_t>(options.num_partitions);
  if (!options.portable && options.device_ids.empty()) {
    const std::vector<Device>& from = count == 1 ? addressable_ : devices_;
    if (count > from.size()) {
      raise<InvalidArgument>("[pjrt.compile] expected at most {} devices, got {} replicas x {} partitions", from.size(),
                             options.num_replicas, options.num_partitions);
    }
    for (size_t i = 0; i < count; ++i) filled.device_ids.push_back(from[i].id);
  }
  constexpr std::string_view kFormat = "mlir";
  PJRT_Program text{};
  text.struct_size = sizeof(text);
  text.code = const_cast<char*>(program.data());  // not written to: the field also serves as an output elsewhere
  text.code_size = program.size();
  text.format = kFormat.data();
  text.format_size = kFormat.size();
  const auto args = with_known_options(filled, [&](const std::string& serialized) {
    return call<&PJRT_Api::PJRT_Client_Compile>(plugin_->api(), "compile", [&](auto& a) {
      a.client = handle_;
      a.program = &text;
      a.compile_options = serialized.data();
      a.compile_options_size = serialized.size();
    });
  });
  return std::make_unique<Executable>(shared_from_this(), args.executable);
}

std::unique_ptr<Executable> Client::deserialize(std::string_view serialized) const {
  const auto args = call<&PJRT_Api::PJRT_Executable_DeserializeAndLoad>(plugin_->api(), "deserialize", [&](auto& a) {
    a.client = handle_;
    a.serialized_executable = serialized.data();
    a.serialized_executable_size = serialized.size();
  });
  return std::make_unique<Executable>(shared_from_this(), args.loaded_executable);
}

std::unique_ptr<Buffer> Client::upload(const HostArray& array, const Device& device, HostSemantics semantics,
                                       std::function<void()> done) const {
  if (!array.byte_strides.empty() && array.byte_strides.size() != array.dims.size()) {
    raise<InvalidArgument>("[pjrt.upload] expected {} strides, one a dimension, got {}", array.dims.size(),
                           array.byte_strides.size());
  }
  if (!device.addressable || device.handle == nullptr) {
    raise<InvalidArgument>("[pjrt.upload] expected a device of this process, got device {} of process {}", device.id,
                           device.process_index);
  }
  const bool zero_copy = semantics == HostSemantics::ZeroCopyIfLegal;
  const auto args = call<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>(plugin_->api(), "upload", [&](auto& a) {
    a.client = handle_;
    a.data = array.data;
    a.type = to_pjrt(array.dtype);
    a.dims = array.dims.data();
    a.num_dims = array.dims.size();
    a.byte_strides = array.byte_strides.data();
    a.num_byte_strides = array.byte_strides.size();
    a.host_buffer_semantics =
        zero_copy ? PJRT_HostBufferSemantics_kImmutableZeroCopy : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    a.device = device.handle;
  });
  auto buffer = std::make_unique<Buffer>(shared_from_this(), args.buffer, array.dtype,
                                         std::vector<int64_t>(array.dims.begin(), array.dims.end()), device.id);
  const Event read(*plugin_, args.done_with_host_buffer);
  if (done && zero_copy) {
    read.on_ready([done = std::move(done)](std::string_view) { done(); });
  } else if (done) {
    done();
  }
  return buffer;
}

}  // namespace flambeau::pjrt
