// Programs of the fake plugin, loaded or compiled for a topology.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>

#include "base/error.h"
#include "pjrt/element_type.h"
#include "pjrt/testing/fake_objects.h"

struct PJRT_SerializedExecutable {
  std::string bytes;
};

namespace flambeau::pjrt::fake {
namespace {

std::atomic<int64_t> g_donated{0};

constexpr std::string_view kSerialized = "fake program\n";

// Fills `executable` from a program's text; the failure's text when it cannot be read.
std::string fill(PJRT_Executable& executable, std::string_view text, std::string_view options) {
  try {
    executable.program = parse_program(text);
  } catch (const Error& error) {
    return error.what();
  }
  executable.text = text;
  executable.options = options;
  for (const FakeType& result : executable.program.results) {
    executable.types.push_back(to_pjrt(result.dtype));
    executable.dims.insert(executable.dims.end(), result.dims.begin(), result.dims.end());
    executable.ranks.push_back(result.dims.size());
  }
  return {};
}

PJRT_Error* load(PJRT_Client* client, std::string_view text, std::string_view options, PJRT_LoadedExecutable*& out) {
  auto loaded = std::make_unique<PJRT_LoadedExecutable>();
  if (auto why = fill(loaded->executable, text, options); !why.empty())
    return error({PJRT_Error_Code_INVALID_ARGUMENT, why});
  loaded->client = client;
  for (const int64_t id : parse_compile_options(options).device_ids) {
    if (id < 0 || id >= static_cast<int64_t>(client->all.size())) {
      return error({PJRT_Error_Code_INVALID_ARGUMENT, "no device " + std::to_string(id)});
    }
    PJRT_Device* device = client->all[static_cast<size_t>(id)];
    if (device->description.process_index == 0) loaded->devices.push_back(device);
  }
  out = loaded.release();
  return nullptr;
}

PJRT_Error* client_compile(PJRT_Client_Compile_Args* a) {
  const std::string_view options(a->compile_options, a->compile_options_size);
  if (auto status = strike(&Faults::compile); status.code != 0) return error(status);
  if (auto status = strike_unknown_option(options); status.code != 0) return error(status);
  return load(a->client, {a->program->code, a->program->code_size}, options, a->executable);
}

// A serialized program is a line, the size of the options as text, a line break, the options and the program.
PJRT_Error* executable_serialize(PJRT_Executable_Serialize_Args* a) {
  if (auto status = strike(&Faults::serialize); status.code != 0) return error(status);
  auto* serialized = new PJRT_SerializedExecutable;
  serialized->bytes.append(kSerialized).append(std::to_string(a->executable->options.size())).append("\n");
  serialized->bytes.append(a->executable->options).append(a->executable->text);
  a->serialized_executable = serialized;
  a->serialized_bytes = serialized->bytes.data();
  a->serialized_bytes_size = serialized->bytes.size();
  a->serialized_executable_deleter = [](PJRT_SerializedExecutable* owned) { delete owned; };
  return nullptr;
}

PJRT_Error* executable_deserialize(PJRT_Executable_DeserializeAndLoad_Args* a) {
  if (auto status = strike(&Faults::deserialize); status.code != 0) return error(status);
  std::string_view bytes(a->serialized_executable, a->serialized_executable_size);
  size_t options_size = 0;
  const bool ours = bytes.starts_with(kSerialized);
  if (ours) {
    bytes.remove_prefix(kSerialized.size());
    const char* end = std::from_chars(bytes.data(), bytes.data() + bytes.size(), options_size).ptr;
    bytes.remove_prefix(std::min(bytes.size(), static_cast<size_t>(end - bytes.data()) + 1));
  }
  if (!ours || options_size > bytes.size()) return error({PJRT_Error_Code_INVALID_ARGUMENT, "not a program of this plugin"});
  return load(a->client, bytes.substr(options_size), bytes.substr(0, options_size), a->loaded_executable);
}

PJRT_Error* loaded_destroy(PJRT_LoadedExecutable_Destroy_Args* a) {
  delete a->executable;
  return nullptr;
}
PJRT_Error* loaded_executable(PJRT_LoadedExecutable_GetExecutable_Args* a) {
  a->executable = new PJRT_Executable(a->loaded_executable->executable);
  return nullptr;
}
PJRT_Error* loaded_devices(PJRT_LoadedExecutable_AddressableDevices_Args* a) {
  a->addressable_devices = a->executable->devices.data();
  a->num_addressable_devices = a->executable->devices.size();
  return nullptr;
}

PJRT_Error* executable_destroy(PJRT_Executable_Destroy_Args* a) {
  delete a->executable;
  return nullptr;
}
PJRT_Error* executable_name(PJRT_Executable_Name_Args* a) {
  a->executable_name = a->executable->program.name.data();
  a->executable_name_size = a->executable->program.name.size();
  return nullptr;
}
PJRT_Error* executable_num_outputs(PJRT_Executable_NumOutputs_Args* a) {
  a->num_outputs = a->executable->types.size();
  return nullptr;
}
PJRT_Error* executable_output_types(PJRT_Executable_OutputElementTypes_Args* a) {
  a->output_types = a->executable->types.data();
  a->num_output_types = a->executable->types.size();
  return nullptr;
}
PJRT_Error* executable_output_dims(PJRT_Executable_OutputDimensions_Args* a) {
  a->num_outputs = a->executable->ranks.size();
  a->dims = a->executable->dims.data();
  a->dim_sizes = a->executable->ranks.data();
  return nullptr;
}
PJRT_Error* executable_memory(PJRT_Executable_GetCompiledMemoryStats_Args* a) {
  for (const FakeType& t : a->executable->program.arguments) a->argument_size_in_bytes += t.byte_size();
  for (const FakeType& t : a->executable->program.results) a->output_size_in_bytes += t.byte_size();
  a->total_allocation_bytes = a->peak_memory_in_bytes = a->argument_size_in_bytes + a->output_size_in_bytes;
  return nullptr;
}
// The program is not optimized: its text as it came, in a format that is not HLO.
PJRT_Error* executable_optimized(PJRT_Executable_OptimizedProgram_Args* a) {
  const std::string& text = a->executable->text;
  if (a->program->code != nullptr) std::memcpy(a->program->code, text.data(), text.size());
  a->program->code_size = text.size();
  a->program->format = "mlir";
  a->program->format_size = 4;
  return nullptr;
}

// Checks the arguments of one device's launch.
PJRT_Error* check_arguments(const FakeProgram& program, std::span<PJRT_Buffer* const> arguments) {
  if (arguments.size() != program.arguments.size()) {
    return error({PJRT_Error_Code_INVALID_ARGUMENT, "execution supplied " + std::to_string(arguments.size()) +
                                                        " buffers but the program expected " +
                                                        std::to_string(program.arguments.size())});
  }
  for (const PJRT_Buffer* argument : arguments) {
    if (argument->deleted) return error({PJRT_Error_Code_INVALID_ARGUMENT, "an argument has been deleted or donated"});
  }
  return nullptr;
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* a) {
  if (auto status = strike(&Faults::execute); status.code != 0) return error(status);
  const FakeProgram& program = a->executable->executable.program;
  std::vector<PJRT_Device*> devices = a->executable->devices;
  if (a->execute_device != nullptr) devices = {a->execute_device};
  if (devices.size() != a->num_devices) return error({PJRT_Error_Code_INVALID_ARGUMENT, "wrong number of devices"});
  for (size_t d = 0; d < devices.size(); ++d) {
    if (auto* failure = check_arguments(program, {a->argument_lists[d], a->num_args})) return failure;
  }
  const std::span kept(a->options->non_donatable_input_indices, a->options->num_non_donatable_input_indices);
  for (size_t d = 0; d < devices.size(); ++d) {
    for (const int64_t i : program.donated) {
      if (std::find(kept.begin(), kept.end(), i) != kept.end()) continue;
      a->argument_lists[d][i]->drop_data();
      ++g_donated;
    }
  }
  if (auto status = strike(&Faults::execute_spent); status.code != 0) return error(status);
  const auto ready = launch();
  for (size_t d = 0; d < devices.size(); ++d) {
    for (size_t i = 0; i < program.results.size(); ++i) {
      auto* output = new PJRT_Buffer;
      output->type = program.results[i];
      output->bytes.resize(static_cast<size_t>(output->type.byte_size()), output->type.dtype == DType::Pred && true_flags());
      output->device = devices[d];
      output->ready = ready;
      a->output_lists[d][i] = output;
    }
  }
  return nullptr;
}

// ---- topologies ----

PJRT_Error* topology_create(PJRT_TopologyDescription_Create_Args* a) {
  const std::string_view name(a->topology_name, a->topology_name_size);
  if (!name.starts_with("fake:")) return error({PJRT_Error_Code_INVALID_ARGUMENT, "unknown topology " + std::string(name)});
  int count = 1, dimension = 0;
  for (const char c : std::string(name.substr(5)) + "x") {
    if (c == 'x') {
      count *= std::exchange(dimension, 0);
    } else {
      dimension = 10 * dimension + (c - '0');
    }
  }
  auto topology = std::make_unique<PJRT_TopologyDescription>();
  for (int id = 0; id < count; ++id) {
    topology->devices.push_back(std::unique_ptr<PJRT_DeviceDescription>(
        new PJRT_DeviceDescription{id, 0, "fake topology device " + std::to_string(id)}));
    topology->all.push_back(topology->devices.back().get());
  }
  a->topology = topology.release();
  return nullptr;
}
PJRT_Error* topology_destroy(PJRT_TopologyDescription_Destroy_Args* a) {
  delete a->topology;
  return nullptr;
}
PJRT_Error* topology_platform(PJRT_TopologyDescription_PlatformName_Args* a) {
  a->platform_name = "fake";
  a->platform_name_size = 4;
  return nullptr;
}
PJRT_Error* topology_devices(PJRT_TopologyDescription_GetDeviceDescriptions_Args* a) {
  a->descriptions = a->topology->all.data();
  a->num_descriptions = a->topology->all.size();
  return nullptr;
}
PJRT_Error* compile(PJRT_Compile_Args* a) {
  const std::string_view options(a->compile_options, a->compile_options_size);
  if (auto status = strike(&Faults::compile); status.code != 0) return error(status);
  if (auto status = strike_unknown_option(options); status.code != 0) return error(status);
  auto executable = std::make_unique<PJRT_Executable>();
  if (auto why = fill(*executable, {a->program->code, a->program->code_size}, options); !why.empty()) {
    return error({PJRT_Error_Code_INVALID_ARGUMENT, why});
  }
  a->executable = executable.release();
  return nullptr;
}

}  // namespace

int64_t donated() { return g_donated; }

void add_executables(PJRT_Api& api) {
  api.PJRT_Client_Compile = client_compile;
  api.PJRT_Executable_Serialize = executable_serialize;
  api.PJRT_Executable_DeserializeAndLoad = executable_deserialize;
  api.PJRT_LoadedExecutable_Destroy = loaded_destroy;
  api.PJRT_LoadedExecutable_GetExecutable = loaded_executable;
  api.PJRT_LoadedExecutable_AddressableDevices = loaded_devices;
  api.PJRT_LoadedExecutable_Execute = execute;
  api.PJRT_Executable_Destroy = executable_destroy;
  api.PJRT_Executable_Name = executable_name;
  api.PJRT_Executable_NumOutputs = executable_num_outputs;
  api.PJRT_Executable_OutputElementTypes = executable_output_types;
  api.PJRT_Executable_OutputDimensions = executable_output_dims;
  api.PJRT_Executable_GetCompiledMemoryStats = executable_memory;
  api.PJRT_Executable_OptimizedProgram = executable_optimized;
  api.PJRT_TopologyDescription_Create = topology_create;
  api.PJRT_TopologyDescription_Destroy = topology_destroy;
  api.PJRT_TopologyDescription_PlatformName = topology_platform;
  api.PJRT_TopologyDescription_GetDeviceDescriptions = topology_devices;
  api.PJRT_Compile = compile;
}

}  // namespace flambeau::pjrt::fake
