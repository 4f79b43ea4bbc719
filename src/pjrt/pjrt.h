// A PJRT plugin through its C API, in C++: the only folder that sees PJRT_* names.
//
// Ownership. A Plugin lives until the process ends (plugins cannot be unloaded). Client, Executable, Buffer and Topology
// are handles that own one PJRT object each and keep alive what they came from, so they may be dropped in any order
// and from any thread. Every failure of a plugin is a PluginError with the plugin's text; none ends the process.
//
// Threads. Every function may be called from any thread. A plugin may call back on threads of its own; nothing here
// takes a lock in such a call other than its own.
//
// Exit. Once the process has begun to exit nothing is freed any more: handles may be dropped by any thread until the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

struct PJRT_Api;
struct PJRT_Client;
struct PJRT_Device;
struct PJRT_Memory;
struct PJRT_Buffer;
struct PJRT_Event;
struct PJRT_Executable;
struct PJRT_LoadedExecutable;
struct PJRT_TopologyDescription;

namespace flambeau::pjrt {

// The plugin has not enough memory (RESOURCE_EXHAUSTED): a buffer or a program does not fit a device. A compiler's text
// says how much was needed.
class OutOfMemory : public PluginError {
 public:
  using PluginError::PluginError;
};

// The plugin does not know an option of a compilation, or refuses its value.
class RefusedOption : public InvalidArgument {
 public:
  RefusedOption(const std::string& message, std::string option) : InvalidArgument(message), option_(std::move(option)) {}
  const std::string& option() const { return option_; }

 private:
  std::string option_;
};

// A named option or attribute of a plugin, client, device or topology.
using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
using Attributes = std::map<std::string, Attribute>;

// ---- plugin ---------------------------------------------------------------------------------------------------------

class Plugin {
 public:
  // Loads and initialises the library at `path`, once a process; later calls give the same object.
  // InvalidArgument when the file is missing or is not a plugin; PluginError when its major version is unknown.
  static const Plugin& load(const std::filesystem::path& path);

  // Wraps an API table that is already in the process (tests).
  static const Plugin& from_api(const PJRT_Api* api, std::string name);

  const PJRT_Api* api() const { return api_; }
  const std::filesystem::path& path() const { return path_; }
  std::pair<int, int> version() const;                          // of the PJRT C API
  const Attributes& attributes() const { return attributes_; }  // among them "stablehlo_current_version"
  // A 64-bit hash of the library's file (path, size, time) and versions: serialized programs are tied to it.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  Plugin(const PJRT_Api* api, std::filesystem::path path);
  const PJRT_Api* api_;
  std::filesystem::path path_;
  Attributes attributes_;
  uint64_t fingerprint_ = 0;
};

// Where the plugin is: `requested` when not empty (a path, or the name of a known package: "cpu", "xla-cpu", "fast-cpu",
// "tpu", "cuda"), else FLAMBEAU_PLUGIN (the same), PJRT_NAMES_AND_LIBRARY_PATHS (name:path, comma separated; the first),
// TPU_LIBRARY_PATH, then the known packages: TPU's and CUDA's where there is such a device, then the CPU's.
// Packages are looked for in FLAMBEAU_SITE_PACKAGES, else in the environment VIRTUAL_ENV, else in a `.venv` beside or
// above the running executable or the current folder. InvalidArgument that lists where it looked when there is none.
std::filesystem::path find_plugin(std::string_view requested = {});
// FLAMBEAU_PYTHON, else the interpreter of the environment whose packages find_plugin looks at; empty where there is none.
std::filesystem::path find_python();

// ---- events ---------------------------------------------------------------------------------------------------------

// Something that will have happened, or have failed. Copies share it. A default Event is ready.
class Event {
 public:
  Event() = default;
  Event(const Plugin& plugin, PJRT_Event* owned);
  bool ready() const;
  void await() const;  // raises PluginError when what it stands for failed
  // `callback` runs once, on any thread, possibly before this returns, with an empty text or the failure's.
  void on_ready(std::function<void(std::string_view error)> callback) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// ---- client, devices, buffers -----------------------------------------------------------------------------------------

class Client;
class Buffer;

struct Device {
  int id = 0;  // global
  int process_index = 0;
  bool addressable = true;
  std::string kind;  // "cpu", "TPU v5 lite"
  std::string debug_string;
  Attributes attributes;  // "coords", "core_on_chip", "slice_index" on TPU
  PJRT_Device* handle = nullptr;
};

// What a caller-owned host array looks like. `byte_strides` empty means dense row-major.
struct HostArray {
  const void* data;
  DType dtype;
  std::span<const int64_t> dims;
  std::span<const int64_t> byte_strides = {};
};

enum class HostSemantics {
  CopyDuringCall,   // the data may be changed or freed when the call returns
  ZeroCopyIfLegal,  // the data must stay as it is until `done` is called (aligned to 64 bytes: the buffer may alias it)
};

// One device's array; immutable. Dropping the last reference frees it, from any thread.
class Buffer {
 public:
  // Takes over `owned`, also when it raises. The first asks the plugin for what the second is told.
  Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* owned);
  Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* owned, DType dtype, std::vector<int64_t> dims, int device_id);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  DType dtype() const { return dtype_; }
  std::span<const int64_t> dims() const { return dims_; }  // of this device's part
  int64_t element_count() const;
  int64_t byte_size() const;         // logical: elements x element size
  int64_t device_byte_size() const;  // as the plugin lays it out, padding included
  int device_id() const { return device_id_; }
  Event ready() const;
  bool deleted() const;  // donated or deleted

  // Copies the array, dense row-major, to `destination` (byte_size() bytes) and waits.
  void to_host(void* destination) const;
  // The same without waiting; `destination` must live until the event is ready.
  Event to_host_async(void* destination) const;

  PJRT_Buffer* handle() const { return handle_; }
  const Client& client() const { return *client_; }

 private:
  std::shared_ptr<const Client> client_;
  PJRT_Buffer* handle_;
  DType dtype_;
  std::vector<int64_t> dims_;
  int device_id_;
};

// XLA flags of a compilation: name -> value.
using CompileFlags = std::map<std::string, std::variant<bool, int64_t, double, std::string>>;

struct CompileOptions {
  int num_replicas = 1;
  int num_partitions = 1;
  bool use_shardy = true;  // when num_partitions > 1
  // Replica-major. Empty: the first num_replicas x num_partitions devices; for one, the first addressable device.
  std::vector<int> device_ids = {};
  bool portable = false;  // compile_portable_executable: runs on any one device
  // `xla_allow_excess_precision = false` is always set unless named here. RefusedOption for what the plugin does not know.
  CompileFlags overrides = {};
  // The same where `overrides` does not name them, except that one which the plugin does not know is left out.
  CompileFlags preferences = {};

  std::string to_proto() const;  // serialized xla.CompileOptionsProto
  uint64_t hash() const;         // of to_proto()
};

struct MemoryStats {  // bytes on one device, as compiled
  int64_t argument = 0, output = 0, alias = 0, temporary = 0, generated_code = 0;
  int64_t peak = 0;   // 0 where the plugin does not tell; wrong on TPU with host offload
  int64_t total = 0;  // arguments + temporaries, outputs aliased where they can be: what must fit. 0 where not told
  int64_t host = 0;   // in host memory: arguments, outputs and temporaries that were offloaded
};

struct DeviceMemory {  // of one device, now
  int64_t in_use = 0;
  std::optional<int64_t> limit = {};  // what programs and buffers may take
};

class Executable {
 public:
  // Takes over `owned`, also when it raises.
  Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* owned);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  size_t num_outputs() const { return num_outputs_; }
  const std::vector<int>& device_ids() const { return device_ids_; }  // addressable ones, in argument order; none: portable
  std::string name() const;
  std::string fingerprint() const;
  MemoryStats memory_stats() const;
  std::string optimized_hlo() const;  // a serialized xla.HloModuleProto; empty where the plugin gives none
  std::string serialize() const;

  // Runs on the addressable devices at once. `arguments[d][i]` is argument i on device d; outputs come back the same way.
  // Arguments whose index is in `non_donatable` stay valid although the program aliases them. Asynchronous: outputs
  // may not be ready, and a failure may show only when they are awaited.
  std::vector<std::vector<std::unique_ptr<Buffer>>> execute(std::span<const std::vector<const Buffer*>> arguments,
                                                            std::span<const int64_t> non_donatable = {}) const;
  // One device; a portable program runs on that of its first argument. Warm path: no allocation beyond the outputs.
  std::vector<std::unique_ptr<Buffer>> execute(std::span<const Buffer* const> arguments,
                                               std::span<const int64_t> non_donatable = {}) const;

 private:
  struct Output {
    DType dtype;
    std::vector<int64_t> dims;  // of one device's part
  };
  void check_argument(const Buffer* argument, size_t index) const;
  std::unique_ptr<Buffer> wrap_output(PJRT_Buffer* owned, size_t index, int device_id) const;

  std::shared_ptr<const Client> client_;
  PJRT_LoadedExecutable* handle_;
  size_t num_outputs_ = 0;
  std::vector<Output> outputs_;  // asked once; empty where the plugin cannot tell, and each buffer is asked
  std::vector<int> device_ids_;
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  // `options` as the plugin documents them; for the CPU plugins "cpu_device_count" (int64).
  static std::shared_ptr<const Client> create(const Plugin& plugin, const Attributes& options = {});
  ~Client();

  const Plugin& plugin() const { return *plugin_; }
  const std::string& platform_name() const { return platform_name_; }  // "cpu", "tpu", "cuda"
  const std::string& platform_version() const { return platform_version_; }
  int process_index() const { return process_index_; }
  const std::vector<Device>& devices() const { return devices_; }  // all, ordered by id
  const std::vector<Device>& addressable_devices() const { return addressable_; }

  // `program` is StableHLO text. PluginError with the plugin's diagnostics.
  std::unique_ptr<Executable> compile(std::string_view program, const CompileOptions& options = {}) const;
  // The inverse of Executable::serialize. PluginError when the plugin refuses it: compile then.
  std::unique_ptr<Executable> deserialize(std::string_view serialized) const;

  // `done` (may be empty) runs once, on any thread, when the plugin no longer reads `array.data`; not when this raises.
  std::unique_ptr<Buffer> upload(const HostArray& array, const Device& device,
                                 HostSemantics semantics = HostSemantics::CopyDuringCall,
                                 std::function<void()> done = {}) const;

  // None where the plugin does not tell (those for CPUs).
  std::optional<DeviceMemory> memory_of(const Device& device) const;

  PJRT_Client* handle() const { return handle_; }
  // Programs with several devices are launched one at a time: two launches that reach the devices in different orders
  // would wait for each other for ever.
  std::mutex& launch_mutex() const { return launch_mutex_; }

 private:
  Client() = default;
  const Plugin* plugin_ = nullptr;
  PJRT_Client* handle_ = nullptr;
  std::string platform_name_, platform_version_;
  int process_index_ = 0;
  std::vector<Device> devices_, addressable_;
  mutable std::mutex launch_mutex_;
};

// ---- topology: compiling without devices ------------------------------------------------------------------------------

class Topology {
 public:
  // `name` as the plugin knows it: "v5e:2x2x1"; `options` e.g. chips_per_host_bounds.
  static std::shared_ptr<const Topology> create(const Plugin& plugin, const std::string& name,
                                                const Attributes& options = {});
  ~Topology();
  const std::string& platform_name() const { return platform_name_; }
  const std::vector<Device>& devices() const { return devices_; }  // `handle` is null: these cannot hold data
  struct Compiled {
    std::string optimized_hlo;  // as Executable::optimized_hlo
    MemoryStats memory;
    std::string serialized;  // empty where refused
  };
  Compiled compile(std::string_view program, const CompileOptions& options) const;
  // The compiler's first phase alone, a fraction of compile's time: partitioned, optimized, fused and scheduled, with
  // memory assigned (a program that does not fit is OutOfMemory), but no code. A serialized xla.HloModuleProto.
  // PluginError where the plugin does not compile in phases: only TPU's does.
  std::string first_phase(std::string_view program, const CompileOptions& options) const;

 private:
  Topology() = default;
  CompileOptions placed(const CompileOptions& options) const;
  const Plugin* plugin_ = nullptr;
  PJRT_TopologyDescription* handle_ = nullptr;
  std::string platform_name_;
  std::vector<Device> devices_;
};

// ---- custom calls -------------------------------------------------------------------------------------------------------

// Registers an XLA FFI handler (an XLA_FFI_Handler*) under `target` for custom calls with api_version 4.
// False where the plugin has no FFI extension; registration may be accepted and have no effect (Target::kernels tells).
bool register_ffi_handler(const Plugin& plugin, std::string_view target, std::string_view platform, void* handler);

}  // namespace flambeau::pjrt
