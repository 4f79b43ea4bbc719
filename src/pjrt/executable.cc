#include <algorithm>

#include "pjrt/call.h"
#include "pjrt/compiled.h"
#include "pjrt/element_type.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

PJRT_Executable* executable_of(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) {
  return call<&PJRT_Api::PJRT_LoadedExecutable_GetExecutable>(api, "executable",
                                                              [&](auto& a) { a.loaded_executable = loaded; })
      .executable;
}

// An array of pointers on the stack, or on the heap when it is larger than usual.
template <class T, size_t kUsual>
class Scratch {
 public:
  explicit Scratch(size_t size) : size_(size), large_(size > kUsual ? new T[size] : nullptr) {}
  T* data() { return large_ ? large_.get() : usual_; }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  T usual_[kUsual];
  std::unique_ptr<T[]> large_;
};

// Owns the outputs of a launch that have not become Buffers yet: an error while the first are wrapped frees the rest.
class PendingOutputs {
 public:
  PendingOutputs(const PJRT_Api* api, PJRT_Buffer** outputs, size_t count) : api_(api), outputs_(outputs), count_(count) {
    std::fill_n(outputs, count, nullptr);
  }
  ~PendingOutputs() {
    for (PJRT_Buffer* buffer : std::span(outputs_, count_)) {
      if (buffer != nullptr) release<&PJRT_Api::PJRT_Buffer_Destroy>(api_, [&](auto& a) { a.buffer = buffer; });
    }
  }
  PendingOutputs(const PendingOutputs&) = delete;
  PendingOutputs& operator=(const PendingOutputs&) = delete;
  PJRT_Buffer* take(size_t i) { return std::exchange(outputs_[i], nullptr); }

 private:
  const PJRT_Api* api_;
  PJRT_Buffer** outputs_;
  size_t count_;
};

PJRT_ExecuteOptions execute_options(std::span<const int64_t> non_donatable) {
  PJRT_ExecuteOptions options{};
  options.struct_size = sizeof(options);
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();
  return options;
}

}  // namespace

Executable::Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* owned)
    : client_(std::move(client)), handle_(owned) {
  const PJRT_Api* api = client_->plugin().api();
  try {
    const Compiled compiled(api, executable_of(api, handle_));
    auto about = [&](auto& a) { a.executable = compiled.handle(); };
    num_outputs_ = compiled.num_outputs();
    if (offers<&PJRT_Api::PJRT_Executable_OutputElementTypes>(api) &&
        offers<&PJRT_Api::PJRT_Executable_OutputDimensions>(api)) {
      const auto types = call<&PJRT_Api::PJRT_Executable_OutputElementTypes>(api, "executable", about);
      const auto shapes = call<&PJRT_Api::PJRT_Executable_OutputDimensions>(api, "executable", about);
      if (types.num_output_types == num_outputs_ && shapes.num_outputs == num_outputs_) {
        const int64_t* dims = shapes.dims;
        for (size_t i = 0; i < num_outputs_; dims += shapes.dim_sizes[i++]) {
          outputs_.push_back({from_pjrt(types.output_types[i]), {dims, dims + shapes.dim_sizes[i]}});
        }
      }
    }
    const auto devices = call<&PJRT_Api::PJRT_LoadedExecutable_AddressableDevices>(api, "executable",
                                                                                   [&](auto& a) { a.executable = handle_; });
    for (PJRT_Device* handle : std::span(devices.addressable_devices, devices.num_addressable_devices)) {
      const auto device = std::find_if(client_->devices().begin(), client_->devices().end(),
                                       [&](const Device& d) { return d.handle == handle; });
      if (device == client_->devices().end())
        raise<PluginError>("[pjrt.executable] the plugin names a device that its client lacks");
      device_ids_.push_back(device->id);
    }
  } catch (...) {
    release<&PJRT_Api::PJRT_LoadedExecutable_Destroy>(api, [&](auto& a) { a.executable = handle_; });
    throw;
  }
}

Executable::~Executable() {
  release<&PJRT_Api::PJRT_LoadedExecutable_Destroy>(client_->plugin().api(), [&](auto& a) { a.executable = handle_; });
}

std::string Executable::name() const {
  const PJRT_Api* api = client_->plugin().api();
  return Compiled(api, executable_of(api, handle_)).name();
}

std::string Executable::fingerprint() const {
  const PJRT_Api* api = client_->plugin().api();
  return Compiled(api, executable_of(api, handle_)).fingerprint();
}

MemoryStats Executable::memory_stats() const {
  const PJRT_Api* api = client_->plugin().api();
  return Compiled(api, executable_of(api, handle_)).memory_stats();
}

std::string Executable::optimized_hlo() const {
  const PJRT_Api* api = client_->plugin().api();
  return Compiled(api, executable_of(api, handle_)).optimized_hlo();
}

std::string Executable::serialize() const {
  const PJRT_Api* api = client_->plugin().api();
  return Compiled(api, executable_of(api, handle_)).serialize();
}

void Executable::check_argument(const Buffer* argument, size_t index) const {
  if (argument == nullptr) raise<InvalidArgument>("[pjrt.execute] expected a buffer as argument {}, got none", index);
  if (&argument->client() != client_.get()) {
    raise<InvalidArgument>("[pjrt.execute] expected a buffer of the program's client as argument {}, got another client's",
                           index);
  }
}

std::unique_ptr<Buffer> Executable::wrap_output(PJRT_Buffer* owned, size_t index, int device_id) const {
  if (outputs_.empty()) return std::make_unique<Buffer>(client_, owned);
  const Output& output = outputs_[index];
  return std::make_unique<Buffer>(client_, owned, output.dtype, output.dims, device_id);
}

std::vector<std::unique_ptr<Buffer>> Executable::execute(std::span<const Buffer* const> arguments,
                                                         std::span<const int64_t> non_donatable) const {
  if (device_ids_.size() > 1) {
    raise<InvalidArgument>("[pjrt.execute] expected arguments for the {} devices of the program, got those of one",
                           device_ids_.size());
  }
  Scratch<PJRT_Buffer*, 64> inputs(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    check_argument(arguments[i], i);
    inputs[i] = arguments[i]->handle();
  }
  const Device* device = nullptr;  // of a portable program; others know theirs
  if (device_ids_.empty()) {
    device = &client_->addressable_devices().front();
    for (const Device& d : client_->addressable_devices()) {
      if (!arguments.empty() && d.id == arguments.front()->device_id()) device = &d;
    }
  }

  const PJRT_Api* api = client_->plugin().api();
  Scratch<PJRT_Buffer*, 32> outputs(num_outputs_);
  PendingOutputs pending(api, outputs.data(), num_outputs_);
  PJRT_ExecuteOptions options = execute_options(non_donatable);
  PJRT_Buffer* const* input_list = inputs.data();
  PJRT_Buffer** output_list = outputs.data();
  call<&PJRT_Api::PJRT_LoadedExecutable_Execute>(api, "execute", [&](auto& a) {
    a.executable = handle_;
    a.options = &options;
    a.argument_lists = &input_list;
    a.num_devices = 1;
    a.num_args = arguments.size();
    a.output_lists = &output_list;
    a.execute_device = device != nullptr ? device->handle : nullptr;
  });
  const int device_id = device != nullptr ? device->id : device_ids_.front();
  std::vector<std::unique_ptr<Buffer>> results;
  results.reserve(num_outputs_);
  for (size_t i = 0; i < num_outputs_; ++i) results.push_back(wrap_output(pending.take(i), i, device_id));
  return results;
}

std::vector<std::vector<std::unique_ptr<Buffer>>> Executable::execute(std::span<const std::vector<const Buffer*>> arguments,
                                                                      std::span<const int64_t> non_donatable) const {
  const size_t num_devices = device_ids_.empty() ? 1 : device_ids_.size();
  if (arguments.size() != num_devices) {
    raise<InvalidArgument>("[pjrt.execute] expected arguments for the {} devices of the program, got those of {}",
                           num_devices, arguments.size());
  }
  std::vector<std::vector<std::unique_ptr<Buffer>>> results;
  if (num_devices == 1) {
    results.push_back(execute(std::span<const Buffer* const>(arguments[0]), non_donatable));
    return results;
  }
  const size_t num_arguments = arguments[0].size();
  std::vector<PJRT_Buffer*> inputs, outputs(num_devices * num_outputs_);
  inputs.reserve(num_devices * num_arguments);
  std::vector<PJRT_Buffer* const*> input_lists;
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t d = 0; d < num_devices; ++d) {
    if (arguments[d].size() != num_arguments) {
      raise<InvalidArgument>("[pjrt.execute] expected {} arguments on every device, got {} on device {}", num_arguments,
                             arguments[d].size(), device_ids_[d]);
    }
    for (size_t i = 0; i < num_arguments; ++i) {
      check_argument(arguments[d][i], i);
      inputs.push_back(arguments[d][i]->handle());
    }
    input_lists.push_back(inputs.data() + d * num_arguments);
    output_lists.push_back(outputs.data() + d * num_outputs_);
  }

  const PJRT_Api* api = client_->plugin().api();
  PendingOutputs pending(api, outputs.data(), outputs.size());
  PJRT_ExecuteOptions options = execute_options(non_donatable);
  {
    std::lock_guard lock(client_->launch_mutex());
    call<&PJRT_Api::PJRT_LoadedExecutable_Execute>(api, "execute", [&](auto& a) {
      a.executable = handle_;
      a.options = &options;
      a.argument_lists = input_lists.data();
      a.num_devices = num_devices;
      a.num_args = num_arguments;
      a.output_lists = output_lists.data();
    });
  }
  results.resize(num_devices);
  for (size_t d = 0; d < num_devices; ++d) {
    results[d].reserve(num_outputs_);
    for (size_t i = 0; i < num_outputs_; ++i) {
      results[d].push_back(wrap_output(pending.take(d * num_outputs_ + i), i, device_ids_[d]));
    }
  }
  return results;
}

}  // namespace flambeau::pjrt
