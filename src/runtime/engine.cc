#include "runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <pthread.h>

#include "base/error.h"
#include "base/files.h"
#include "ops/random.h"
#include "runtime/compile_options.h"
#include "runtime/internal_ops.h"

namespace flambeau::runtime {
namespace {

thread_local Trace* t_current = nullptr;
std::atomic<Engine*> g_engine{nullptr};
std::mutex g_start_mutex;
std::atomic<bool> g_forked{false};
std::atomic<uint64_t> g_mesh_hash{0};

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
    if (options.target && (engine->client_ || *options.target != engine->target_))
      raise<InvalidArgument>("[engine] this process already compiles for {} devices '{}'; another target needs a process of its own",
                             engine->target_.device_count, engine->target_.generation);
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

Engine::Engine(const EngineOptions& options) : options_(options) {
  if (options.target) {
    target_ = *options.target;
    preferred_options_ = preferred_options(target_);
    return;
  }
  const pjrt::Plugin& plugin = options.loaded ? *options.loaded : pjrt::Plugin::load(pjrt::find_plugin(options.plugin));
  pjrt::Attributes attributes = options.client_options;
  if (plugin.path().filename().string().find("cpu") != std::string::npos)
    attributes["cpu_device_count"] = int64_t{options.virtual_devices};
  client_ = pjrt::Client::create(plugin, attributes);
  if (client_->addressable_devices().empty())
    raise<PluginError>("[engine] the plugin {} offers no device to this process", plugin.path().string());
  target_ = Target::of(*client_);
  preferred_options_ = preferred_options(target_);
}

const pjrt::Client& Engine::client() const {
  if (!client_)
    raise<InvalidArgument>("[engine] programs are made for {} devices '{}' that are not here, so nothing can run or be read; only record "
                           "and compile, or start with a plugin of this machine",
                           target_.device_count, target_.generation);
  return *client_;
}

Trace* Engine::current() { return t_current; }
void Engine::set_current(Trace* trace) { t_current = trace; }

void Engine::set_compile_options(pjrt::CompileFlags options) {
  const uint64_t hash = options.empty() ? 0 : pjrt::CompileOptions{.overrides = options}.hash();
  auto asked = std::make_shared<const AskedOptions>(AskedOptions{std::move(options), hash});
  std::lock_guard lock(programs_mutex_);
  asked_options_ = std::move(asked);
}

// ---- the mesh -------------------------------------------------------------------------------------------------------------

void Engine::set_mesh(std::optional<hlo::Mesh> mesh) {
  std::lock_guard lock(g_start_mutex);
  if (mesh ? mesh_ && *mesh == mesh_->mesh : !mesh_) return;
  // Autograd's thread drops the last tensors of a backward pass a moment after the pass is over.
  MemoryUse use = memory_use();
  for (int tries = 0; use.allocations > use.frees && tries < 200; ++tries, use = memory_use())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (use.allocations > use.frees)
    raise<InvalidArgument>("[mesh] expected the mesh to be set before tensors are made, got one while {} exist; set it first",
                           use.allocations - use.frees);
  std::unique_ptr<const DeviceMesh> next;
  KeyHasher hasher;
  if (mesh) {
    next = std::make_unique<const DeviceMesh>(client_ ? DeviceMesh::over(*client_, std::move(*mesh))
                                                      : DeviceMesh::elsewhere(target_.device_count, std::move(*mesh)));
    for (const hlo::MeshAxis& axis : next->mesh.axes) hasher.add(std::string_view(axis.name), axis.size);
  }
  g_mesh_hash = next ? hasher.key().low : 0;
  mesh_ = std::move(next);
}

const hlo::Mesh* Engine::hlo_mesh() {
  const Engine* engine = g_engine.load(std::memory_order_acquire);
  return engine && engine->mesh_ ? &engine->mesh_->mesh : nullptr;
}

uint64_t Engine::mesh_hash() { return g_mesh_hash.load(std::memory_order_relaxed); }

// ---- calls ----------------------------------------------------------------------------------------------------------------

std::vector<std::optional<Type>> Engine::infer(const ops::Row& row, std::span<const CallArgument> arguments) {
  if (t_current) return t_current->infer(row, arguments);
  Trace trace(TraceKind::Strict);
  return trace.infer(row, arguments);
}

std::vector<Engine::Output> Engine::call(const ops::Row& row, std::span<const CallArgument> arguments,
                                         std::span<const std::optional<TensorRef>> into, RandomSource* random,
                                         std::string site) {
  counters_.ops_recorded.fetch_add(1, std::memory_order_relaxed);
  thread_local Trace strict(TraceKind::Strict);
  Trace& trace = t_current ? *t_current : strict;
  struct Reset {  // so that no buffer is held, and kept from donation, until this thread's next op
    ~Reset() { strict.reset(); }
  };
  std::optional<Reset> reset;
  if (!t_current) reset.emplace();

  uint64_t distance = 0;
  if (row.random) {
    FLAMBEAU_CHECK(random, "a random op is called with a random source");
    std::optional<Type> type = trace.infer(row, arguments).at(0);
    distance = trace.draw(static_cast<uint64_t>(ops::random_blocks(type->elements(), type->dtype)));
  }
  std::vector<std::optional<ValueId>> values = trace.append(row, arguments, distance, std::move(site));

  std::vector<Output> outputs(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) continue;
    outputs[i].type = trace.type(*values[i]);
    if (i < into.size() && into[i]) {
      trace.write(*into[i], *values[i]);
      continue;
    }
    auto storage = Storage::create(outputs[i].type->bytes(), trace.id());
    trace.bind_new(storage, *values[i]);
    outputs[i].storage = std::move(storage);
  }
  if (t_current) return outputs;
  RandomPosition position;
  if (trace.random()) position = random->advance(trace.drawn());
  run_strict(trace, position);
  return outputs;
}

namespace {

// On a mesh: what existed keeps its layout, a new value takes that of the first argument of its dimensions.
std::vector<hlo::Sharding> strict_shardings(const Trace& trace, std::span<const Assignment> assignments) {
  std::vector<hlo::Sharding> shardings(Engine::hlo_mesh() ? assignments.size() : 0);
  if (shardings.empty()) return shardings;
  for (size_t i = 0; i < assignments.size(); ++i) {
    const Dims& dims = assignments[i].type.dims;
    for (const External& external : trace.externals())
      if (external.type.dims == dims) {
        shardings[i] = external.sharding;
        break;
      }
    shardings[i] = layout_of(*assignments[i].storage, dims).value_or(shardings[i]);
  }
  return shardings;
}

}  // namespace

void Engine::run_strict(Trace& trace, RandomPosition position) {
  std::vector<ValueId> outputs;
  std::vector<Assignment> assignments;  // by output
  std::vector<std::pair<size_t, size_t>> aliases;
  // Born storages first, by value, so that equal calls give equal programs whatever the order of the map.
  std::vector<const Binding*> bindings;
  for (const auto& [id, binding] : trace.bindings())
    if (binding.born || binding.written) bindings.push_back(&binding);
  std::sort(bindings.begin(), bindings.end(), [](const Binding* a, const Binding* b) {
    return std::pair(!a->born, a->value) < std::pair(!b->born, b->value);
  });
  for (const Binding* binding : bindings) {
    std::shared_ptr<Storage> storage = binding->storage.lock();
    if (!storage) continue;
    assignments.push_back({std::move(storage), trace.type(binding->value), nullptr});
    outputs.push_back(binding->value);
  }
  for (size_t i = 0; i < trace.externals().size(); ++i)
    for (size_t output = 0; output < outputs.size(); ++output)
      if (trace.externals()[i].storage == assignments[output].storage && trace.externals()[i].type == assignments[output].type &&
          trace.externals()[i].type.elements() > 0)
        aliases.emplace_back(i, output);

  std::shared_ptr<const Program> compiled = program(trace, outputs, aliases, "eager", strict_shardings(trace, assignments));
  std::vector<std::shared_ptr<Storage>> storages;
  for (const External& external : trace.externals()) storages.push_back(external.storage);
  const std::vector<std::shared_ptr<const Array>> externals = trace.take_values();
  Handover handover;
  const std::vector<int64_t> kept = offer(handover, *compiled, storages, externals);
  Launched launched;
  try {
    launched = launch(*compiled, {externals, kept, trace.numbers(), position});
  } catch (const std::exception& error) {
    handover.fail(error.what());
    throw;
  }
  for (size_t i = 0; i < assignments.size(); ++i) assignments[i].array = launched.outputs[i];
  handover.commit(assignments);
  finish(std::move(launched.launch));
}

// With FLAMBEAU_DUMP=folder, each program's text is written there before it is compiled.
static void dump(std::string_view name, std::string_view text) {
  static const char* folder = std::getenv("FLAMBEAU_DUMP");
  static std::atomic<int> next{0};
  if (folder && *folder) write_file_atomically(fmt::format("{}/{}-{}.mlir", folder, name, next++), text);
}

// ---- programs -------------------------------------------------------------------------------------------------------------

std::shared_ptr<const Program> Engine::program(const Trace& trace, std::span<const ValueId> outputs,
                                               std::span<const std::pair<size_t, size_t>> aliases, std::string_view name,
                                               std::span<const hlo::Sharding> shardings) {
  std::shared_ptr<const AskedOptions> asked;
  {
    std::lock_guard lock(programs_mutex_);
    asked = asked_options_;
  }
  KeyHasher h;
  Key key = trace.key();
  h.add(key.high, key.low, outputs.size());
  for (ValueId id : outputs) h.add(id);
  for (auto [external, output] : aliases) h.add(external, output);
  h.add(mesh_hash(), asked ? asked->hash : 0);
  for (const hlo::Sharding& sharding : shardings) h.add(std::string_view(encode_sharding(sharding)));
  key = h.key();

  std::promise<std::shared_ptr<const Program>> promise;
  std::shared_future<std::shared_ptr<const Program>> future;
  bool ours = false;
  {
    std::lock_guard lock(programs_mutex_);
    auto [it, inserted] = programs_.try_emplace(key);
    if (inserted) it->second = promise.get_future().share();
    future = it->second;
    ours = inserted;
  }
  if (!ours) {
    counters_.programs_reused.fetch_add(1, std::memory_order_relaxed);
    return future.get();
  }
  try {
    auto begin = std::chrono::steady_clock::now();
    auto compiled = std::make_shared<Program>();
    Lowered lowered = lower(trace, outputs, aliases, {hlo_mesh(), shardings});
    hlo::simplify(*lowered.graph);
    std::string text = hlo::print(*lowered.graph, {.module_name = name, .sites = true});
    dump(name, text);
    for (size_t i = 0; i < lowered.externals.size(); ++i)
      if (lowered.graph->parameter_signature(i).aliasing_output) compiled->aliased.push_back(static_cast<int64_t>(i));
    pjrt::CompileOptions options = compile_options(asked ? asked->flags : pjrt::CompileFlags{});
    if (client_) {
      compiled->executable = client_->compile(text, options);
    } else {
      compiled->graph = std::move(lowered.graph);
      compiled->text = std::move(text);
      compiled->options = std::move(options);
    }
    compiled->externals = std::move(lowered.externals);
    for (ValueId id : outputs) compiled->outputs.push_back(trace.type(id));
    compiled->shardings.assign(shardings.begin(), shardings.end());
    compiled->floats = lowered.floats;
    compiled->integers = lowered.integers;
    compiled->random = lowered.random;
    if (!lowered.checks.empty()) compiled->checks = std::make_shared<const std::vector<std::string>>(std::move(lowered.checks));
    counters_.programs_compiled.fetch_add(1, std::memory_order_relaxed);
    counters_.compile_microseconds += std::chrono::duration_cast<std::chrono::microseconds>(
                                          std::chrono::steady_clock::now() - begin)
                                          .count();
    promise.set_value(std::move(compiled));
  } catch (...) {
    promise.set_exception(std::current_exception());
    std::lock_guard lock(programs_mutex_);
    programs_.erase(key);  // the next request tries again
    throw;
  }
  return future.get();
}

void Engine::forget_programs() {
  std::lock_guard lock(programs_mutex_);
  programs_.clear();
}

pjrt::CompileOptions Engine::compile_options(const pjrt::CompileFlags& asked) const {
  pjrt::CompileOptions options{.overrides = asked, .preferences = preferred_options_};
  if (target_.platform == "cpu") options.overrides.try_emplace("xla_cpu_enable_fast_min_max", false);  // it loses NaNs
  if (!mesh_) return options;
  options.num_partitions = static_cast<int>(mesh_->mesh.size());
  options.device_ids = mesh_->device_ids;
  // Its newer form of shardings does not read the mesh that the program names, and warns of each program.
  if (target_.api_version >= std::pair(0, 115)) options.overrides.try_emplace("xla_enable_hlo_sharding_v3", false);
  return options;
}

// By device of this process, then by result.
std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> Engine::execute(const Program& program, const Launch& launch) {
  std::vector<double> floats;
  std::vector<int64_t> integers;
  for (const RecordedNumber& n : launch.numbers) {
    if (n.number.category() == DType::F64)
      floats.push_back(n.number.as_double());
    else
      integers.push_back(n.number.as_int());
  }
  const std::array<uint64_t, 2> position{launch.random.seed, launch.random.offset};
  std::vector<std::unique_ptr<pjrt::Buffer>> uploaded;
  const auto arguments_of = [&](size_t index, const pjrt::Device& device) {
    std::vector<const pjrt::Buffer*> arguments;
    arguments.reserve(program.externals.size() + 3);
    for (size_t external : program.externals) arguments.push_back(launch.externals[external]->shards()[index].get());
    const auto upload_vector = [&](DType dtype, const auto& values) {
      int64_t dims[] = {static_cast<int64_t>(values.size())};
      uploaded.push_back(client_->upload({values.data(), dtype, dims}, device));
      arguments.push_back(uploaded.back().get());
    };
    if (program.floats) upload_vector(DType::F64, floats);
    if (program.integers) upload_vector(DType::S64, integers);
    if (program.random) upload_vector(DType::U64, position);
    return arguments;
  };

  counters_.executions.fetch_add(1, std::memory_order_relaxed);
  if (!mesh_) {
    std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> results;
    results.push_back(program.executable->execute(arguments_of(0, client_->addressable_devices().front()), launch.non_donatable));
    return results;
  }
  std::vector<std::vector<const pjrt::Buffer*>> arguments;
  for (size_t i = 0; i < mesh_->devices.size(); ++i) arguments.push_back(arguments_of(i, *mesh_->devices[i]));
  std::lock_guard lock(mesh_launch_mutex_);
  // Virtual devices share one pool of threads, which those of one program that wait for each other in a collective may fill before
  // another program's have all begun: then both wait for ever. So one program at a time.
  for (const pjrt::Event& event : mesh_in_flight_) {
    try {
      event.await();
    } catch (const Error&) {
      // Raised by those who read its results.
    }
  }
  mesh_in_flight_.clear();
  auto results = program.executable->execute(arguments, launch.non_donatable);
  if (target_.platform == "cpu")
    for (const auto& of_device : results)
      if (!of_device.empty()) mesh_in_flight_.push_back(of_device.front()->ready());
  return results;
}

namespace {

// What the results of a launch carry: the checks that its inputs carry and that may still fail, and its own.
std::shared_ptr<const CheckList> checks_of(std::span<const std::shared_ptr<const Array>> inputs, std::shared_ptr<LaunchChecks> own) {
  CheckList checks;
  const CheckList* last = nullptr;
  size_t sources = 0;
  for (const auto& input : inputs) {
    if (!input || !input->checks() || input->checks().get() == last) continue;
    last = input->checks().get();
    ++sources;
    std::ranges::copy_if(*last, std::back_inserter(checks), [](const auto& check) { return !check->settled(); });
  }
  if (sources > 1) {
    std::ranges::sort(checks, [](const auto& a, const auto& b) { return a->before(*b); });
    const auto repeated = std::ranges::unique(checks);
    checks.erase(repeated.begin(), repeated.end());
  }
  if (own) checks.push_back(std::move(own));
  return checks.empty() ? nullptr : std::make_shared<const CheckList>(std::move(checks));
}

}  // namespace

Engine::Launched Engine::launch(const Program& program, const Launch& launch) {
  std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> results;
  if (client_) results = execute(program, launch);
  Launched launched;
  for (const auto& of_device : results)  // a program's outputs are ready together
    if (!of_device.empty()) launched.launch.ready.push_back(of_device.front()->ready());
  if (program.checks && client_)
    launched.launch.checks = std::make_shared<LaunchChecks>(std::move(results.front().back()), program.checks);
  const std::shared_ptr<const CheckList> checks = checks_of(launch.externals, launched.launch.checks);
  launched.outputs.resize(program.outputs.size());
  size_t next = 0;
  for (size_t i = 0; i < launched.outputs.size(); ++i) {
    if (program.outputs[i].elements() == 0) continue;
    std::vector<std::unique_ptr<pjrt::Buffer>> shards;
    shards.reserve(results.size());
    for (auto& of_device : results) shards.push_back(std::move(of_device[next]));
    launched.outputs[i] = std::make_shared<const Array>(std::move(shards), mesh_ ? program.shardings[i] : hlo::Sharding{}, checks);
    ++next;
  }
  return launched;
}

std::vector<int64_t> Engine::offer(Handover& handover, const Program& program, std::span<const std::shared_ptr<Storage>> storages,
                                   std::span<const std::shared_ptr<const Array>> externals) {
  std::vector<Handover::Offer> offers;
  for (int64_t parameter : program.aliased) {
    const size_t external = program.externals[static_cast<size_t>(parameter)];
    offers.push_back({storages[external], &externals[external]});
  }
  const std::vector<bool> given = handover.offer(offers);
  std::vector<int64_t> kept;
  for (size_t i = 0; i < given.size(); ++i)
    if (!given[i]) kept.push_back(program.aliased[i]);
  counters_.donations.fetch_add(static_cast<int64_t>(given.size() - kept.size()), std::memory_order_relaxed);
  return kept;
}

void Engine::finish(InFlightLaunch launch) {
  if (!client_) return;
  if (!debug_) return in_flight_.add(std::move(launch));
  for (const pjrt::Event& event : launch.ready) event.await();
  if (launch.checks) raise_failed({launch.checks});
}

}  // namespace flambeau::runtime
