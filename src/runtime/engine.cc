#include "runtime/engine.h"

#include <atomic>
#include <mutex>

#include <pthread.h>

#include "base/error.h"
#include "kernels/registry.h"

namespace flambeau::runtime {
namespace {

std::atomic<Engine*> g_engine{nullptr};
std::mutex g_start_mutex;
std::atomic<bool> g_forked{false};

// Guarded by g_start_mutex.
EngineOptions& defaults() {
  static auto* options = new EngineOptions;
  return *options;
}

}  // namespace

// ---- life -----------------------------------------------------------------------------------------------------------------

Engine& Engine::start(const EngineOptions& options) {
  std::lock_guard lock(g_start_mutex);
  if (Engine* engine = g_engine.load()) {
    if (!options.plugin.empty() && options.plugin != engine->options_.plugin)
      raise<InvalidArgument>("[engine] the plugin '{}' is already in use in this process; '{}' needs a process of its own",
                             engine->options_.plugin, options.plugin);
    if (options.virtual_devices != 1 && options.virtual_devices != engine->options_.virtual_devices)
      raise<InvalidArgument>("[engine] the plugin already shows {} virtual devices in this process; ask for {} before the device is first used",
                             engine->options_.virtual_devices, options.virtual_devices);
    if (options.target && (!engine->devices_.ahead_of_time() || *options.target != engine->target()))
      raise<InvalidArgument>("[engine] this process already compiles for {} devices '{}'; another target needs a process of its own",
                             engine->target().device_count, engine->target().generation);
    return *engine;
  }
  // Never destroyed: tensors may be dropped on any thread while the process ends.
  auto* engine = new Engine(options);
  pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
  g_engine = engine;
  return *engine;
}

Engine& Engine::get() {
  if (g_forked) [[unlikely]]
    raise("[engine] this process was forked after the device was used, and a plugin does not survive that; start workers with the "
          "'spawn' method, or before the device is first used");
  if (Engine* engine = g_engine.load(std::memory_order_acquire)) return *engine;
  std::unique_lock lock(g_start_mutex);
  const EngineOptions options = defaults();
  lock.unlock();
  return start(options);
}

void Engine::set_defaults(const EngineOptions& options) {
  std::lock_guard lock(g_start_mutex);
  defaults() = options;
}

bool Engine::in_bad_fork() { return g_forked; }

bool Engine::started() { return g_engine.load() != nullptr; }

static std::shared_ptr<const pjrt::Client> create_client(const EngineOptions& options) {
  const pjrt::Plugin& plugin = options.loaded ? *options.loaded : pjrt::Plugin::load(pjrt::find_plugin(options.plugin));
  pjrt::Attributes attributes = options.client_options;
  if (plugin.path().filename().string().find("cpu") != std::string::npos)
    attributes["cpu_device_count"] = int64_t{options.virtual_devices};
  return pjrt::Client::create(plugin, attributes);
}

Engine::Engine(const EngineOptions& options)
    : options_(options), devices_(options.target ? Devices(*options.target) : Devices(create_client(options))) {
  if (!options.target) kernels::register_handlers(client().plugin(), target());
}

void Engine::set_mesh(const std::optional<hlo::Mesh>& mesh) { devices_.set_default_mesh(mesh ? devices_.lay(*mesh) : nullptr); }

std::shared_ptr<Storage> Engine::make_sharded(const Type& type, const hlo::Sharding& sharding, const FillBox& fill) {
  return hold(type, devices_.array(mesh(), type, sharding, fill));
}

std::shared_ptr<Storage> Engine::make_sharded(const Type& type, const hlo::Sharding& sharding, const void* data) {
  return hold(type, devices_.array(mesh(), type, sharding, data));
}

hlo::Sharding Engine::sharding_of(const TensorRef& tensor) {
  const Held held = tensor.storage->held();
  if (!held.array || held.type != tensor.type() || !tensor.view.is_contiguous()) return {};
  return held.array->sharding();
}

}  // namespace flambeau::runtime
