#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/hash.h"
#include "pjrt/call.h"
#include "pjrt/environment.h"
#include "pjrt/named_values.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

// The process's exit runs handlers in the opposite order of their registration. Ours is registered after a plugin is
// loaded, hence before the plugin's globals are destroyed it says so, and from then on nothing calls into the plugin to
// free things: buffers of static objects or of threads that still run are left to the operating system.
std::atomic<bool> exiting{false};

void watch_exit() {
  std::atexit([] { exiting.store(true, std::memory_order_relaxed); });
  // A forked child has the plugin's memory without its threads: what it drops is left alone, too.
  pthread_atfork(nullptr, nullptr, [] { exiting.store(true, std::memory_order_relaxed); });
}

struct Registry {
  std::mutex mutex;
  std::map<std::filesystem::path, const Plugin*> loaded;
  std::map<std::filesystem::path, std::string> failed;  // a plugin whose start failed aborts when it is called again
  std::map<std::pair<const PJRT_Api*, std::string>, const Plugin*> wrapped;
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: plugins live until the process ends
  return *instance;
}

void check_version(const PJRT_Api* api, const std::filesystem::path& path) {
  if (api == nullptr) raise<PluginError>("[pjrt.load] {}: GetPjrtApi gave no table", path.string());
  const auto& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR) {
    raise<PluginError>("[pjrt.load] {}: expected version {}.x of the PJRT C API, got {}.{}; use another plugin",
                       path.string(), PJRT_API_MAJOR, version.major_version, version.minor_version);
  }
}

const PJRT_Api* open_library(const std::filesystem::path& path) {
  prepare_to_load();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    raise<InvalidArgument>("[pjrt.load] {} is not a library that can be loaded: {}", path.string(), dlerror());
  auto* get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    dlclose(library);
    raise<InvalidArgument>("[pjrt.load] {} is not a PJRT plugin: it has no function GetPjrtApi", path.string());
  }
  const PJRT_Api* api = get_api();
  check_version(api, path);
  prepare_flags(api);
  return api;
}

void initialize(const PJRT_Api* api) {
  if (offers<&PJRT_Api::PJRT_Plugin_Initialize>(api)) {
    call<&PJRT_Api::PJRT_Plugin_Initialize>(api, "load", [](auto&) {});
  }
}

void add_attributes(Hasher& hasher, const Attributes& attributes) {
  for (const auto& [name, value] : attributes) {
    hasher.add(std::string_view(name)).add(value.index());
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::string>) {
            hasher.add(std::string_view(v));
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
            hasher.add(std::span<const int64_t>(v));
          } else {
            hasher.add(v);
          }
        },
        value);
  }
}

}  // namespace

bool process_is_exiting() { return exiting.load(std::memory_order_relaxed); }

Plugin::Plugin(const PJRT_Api* api, std::filesystem::path path) : api_(api), path_(std::move(path)) {
  if (offers<&PJRT_Api::PJRT_Plugin_Attributes>(api)) {
    const auto args = call<&PJRT_Api::PJRT_Plugin_Attributes>(api, "load", [](auto&) {});
    attributes_ = from_named_values(args.attributes, args.num_attributes);
  }
  Hasher hasher;
  hasher.add(std::string_view(path_.native()));
  std::error_code ignored;
  const auto size = std::filesystem::file_size(path_, ignored);
  if (!ignored) hasher.add(size).add(std::filesystem::last_write_time(path_, ignored).time_since_epoch().count());
  hasher.add(api->pjrt_api_version.major_version).add(api->pjrt_api_version.minor_version);
  add_attributes(hasher, attributes_);
  fingerprint_ = hasher.value();
}

const Plugin& Plugin::load(const std::filesystem::path& path) {
  std::error_code missing;
  const auto file = std::filesystem::canonical(path, missing);
  if (missing) raise<InvalidArgument>("[pjrt.load] {}: {}", path.string(), missing.message());

  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  if (const auto it = known.loaded.find(file); it != known.loaded.end()) return *it->second;
  if (const auto it = known.failed.find(file); it != known.failed.end()) throw PluginError(it->second);
  const PJRT_Api* api = open_library(file);
  try {
    initialize(api);
    const Plugin* plugin = new Plugin(api, file);
    watch_exit();
    known.loaded.emplace(file, plugin);
    return *plugin;
  } catch (const PluginError& error) {
    known.failed.emplace(file, error.what());
    throw;
  }
}

const Plugin& Plugin::from_api(const PJRT_Api* api, std::string name) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  const auto key = std::pair(api, name);
  if (const auto it = known.wrapped.find(key); it != known.wrapped.end()) return *it->second;
  check_version(api, name);
  initialize(api);
  const Plugin* plugin = new Plugin(api, std::filesystem::path(name));
  watch_exit();
  known.wrapped.emplace(key, plugin);
  return *plugin;
}

std::pair<int, int> Plugin::version() const {
  return {api_->pjrt_api_version.major_version, api_->pjrt_api_version.minor_version};
}

}  // namespace flambeau::pjrt
