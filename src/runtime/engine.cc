#include "runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <pthread.h>

#include "base/error.h"
#include "base/files.h"
#include "ops/random.h"
#include "runtime/internal_ops.h"

namespace flambeau::runtime {
namespace {

thread_local Trace* t_current = nullptr;
std::atomic<Engine*> g_engine{nullptr};
std::mutex g_start_mutex;
std::atomic<bool> g_forked{false};

EngineOptions& defaults() {
  static auto* options = new EngineOptions;
  return *options;
}

// Buffers that synchronize() remembers; older ones have been waited for by then or are waited for now.
constexpr size_t kRememberedLaunches = 4096;
constexpr size_t kRememberedChecks = 256;

}  // namespace

// ---- life -----------------------------------------------------------------------------------------------------------------

Engine& Engine::start(const EngineOptions& options) {
  std::lock_guard lock(g_start_mutex);
  if (Engine* engine = g_engine.load()) {
    if (!options.plugin.empty() && options.plugin != engine->options_.plugin)
      raise<InvalidArgument>("[engine] the plugin '{}' is already in use in this process; '{}' needs a process of its own",
                             engine->options_.plugin, options.plugin);
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
  return start(defaults());
}

void Engine::set_defaults(const EngineOptions& options) { defaults() = options; }

bool Engine::in_bad_fork() { return g_forked; }

bool Engine::started() { return g_engine.load() != nullptr; }

Engine::Engine(const EngineOptions& options) : options_(options) {
  const pjrt::Plugin& plugin = options.loaded ? *options.loaded : pjrt::Plugin::load(pjrt::find_plugin(options.plugin));
  pjrt::Attributes attributes;
  if (plugin.path().filename().string().find("cpu") != std::string::npos)
    attributes["cpu_device_count"] = int64_t{options.virtual_devices};
  client_ = pjrt::Client::create(plugin, attributes);
  if (client_->addressable_devices().empty())
    raise<PluginError>("[engine] the plugin {} offers no device to this process", plugin.path().string());
  target_ = Target::of(*client_);
}

Trace* Engine::current() { return t_current; }
void Engine::set_current(Trace* trace) { t_current = trace; }

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
    auto storage = Storage::create(outputs[i].type->bytes());
    storage->recording = trace.id();
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

// What of a strict trace must outlive it: the storages that it gives a value.
struct Assignment {
  std::shared_ptr<Storage> storage;
  size_t output;
};

}  // namespace

void Engine::run_strict(Trace& trace, RandomPosition position) {
  std::vector<ValueId> outputs;
  std::vector<Assignment> assignments;
  std::vector<std::pair<size_t, size_t>> aliases;
  auto assign = [&](const Binding& binding) {
    std::shared_ptr<Storage> storage = binding.storage.lock();
    if (!storage) return;
    assignments.push_back({std::move(storage), outputs.size()});
    outputs.push_back(binding.value);
  };
  // Born storages first, by value, so that equal calls give equal programs whatever the order of the map.
  std::vector<const Binding*> bindings;
  for (const auto& [id, binding] : trace.bindings())
    if (binding.born || binding.written) bindings.push_back(&binding);
  std::sort(bindings.begin(), bindings.end(), [](const Binding* a, const Binding* b) {
    return std::pair(!a->born, a->value) < std::pair(!b->born, b->value);
  });
  for (const Binding* binding : bindings) assign(*binding);
  for (size_t i = 0; i < trace.externals().size(); ++i)
    for (const Assignment& a : assignments)
      if (trace.externals()[i].storage == a.storage && trace.externals()[i].type == trace.type(outputs[a.output]) &&
          trace.externals()[i].type.elements() > 0)
        aliases.emplace_back(i, a.output);

  std::shared_ptr<const Program> compiled = program(trace, outputs, aliases, "eager");
  std::vector<std::shared_ptr<pjrt::Buffer>> externals;
  for (const External& external : trace.externals()) externals.push_back(external.buffer);
  std::vector<int64_t> kept;
  {
    std::lock_guard lock(storage_mutex());
    for (int64_t parameter : compiled->aliased) {
      const External& external = trace.externals()[compiled->externals[parameter]];
      // Two references are the storage's and the trace's, one more is ours.
      bool donated = external.storage->buffer == external.buffer && external.buffer.use_count() == 3;
      if (!donated) kept.push_back(parameter);
    }
  }
  std::vector<std::shared_ptr<pjrt::Buffer>> results;
  try {
    results = launch(*compiled, {externals, kept, trace.numbers(), position});
  } catch (const std::exception& error) {
    std::lock_guard lock(storage_mutex());
    auto reason = std::make_shared<const std::string>(error.what());
    for (const Assignment& a : assignments) {
      a.storage->recording = 0;
      if (a.storage->buffer && !a.storage->buffer->deleted()) continue;  // not given away yet: it keeps its value
      a.storage->buffer = nullptr;
      a.storage->failure = reason;
    }
    throw;
  }
  {
    std::lock_guard lock(storage_mutex());
    for (const Assignment& a : assignments) {
      a.storage->type = compiled->outputs[a.output];
      a.storage->buffer = results[a.output];
      a.storage->recording = 0;
      a.storage->failure = nullptr;
    }
  }
  raise_failed_checks_if_many();
  if (debug_) {
    for (const auto& buffer : results)
      if (buffer) buffer->ready().await();
    raise_failed_checks();
  }
}

// With FLAMBEAU_DUMP=folder, each program's text is written there before it is compiled.
static void dump(std::string_view name, std::string_view text) {
  static const char* folder = std::getenv("FLAMBEAU_DUMP");
  static std::atomic<int> next{0};
  if (folder && *folder) write_file_atomically(fmt::format("{}/{}-{}.mlir", folder, name, next++), text);
}

// ---- programs -------------------------------------------------------------------------------------------------------------

std::shared_ptr<const Program> Engine::program(const Trace& trace, std::span<const ValueId> outputs,
                                               std::span<const std::pair<size_t, size_t>> aliases, std::string_view name) {
  KeyHasher h;
  Key key = trace.key();
  h.add(key.high, key.low, outputs.size());
  for (ValueId id : outputs) h.add(id);
  for (auto [external, output] : aliases) h.add(external, output);
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
    Lowered lowered = lower(trace, outputs, aliases);
    hlo::simplify(*lowered.graph);
    std::string text = hlo::print(*lowered.graph, {.module_name = name});
    dump(name, text);
    pjrt::CompileOptions options;
    if (target_.platform == "cpu") options.overrides["xla_cpu_enable_fast_min_max"] = false;  // it loses NaNs
    compiled->executable = client_->compile(text, options);
    compiled->externals = std::move(lowered.externals);
    for (size_t i = 0; i < compiled->externals.size(); ++i)
      if (lowered.graph->parameter_signature(i).aliasing_output) compiled->aliased.push_back(static_cast<int64_t>(i));
    for (ValueId id : outputs) compiled->outputs.push_back(trace.type(id));
    compiled->floats = lowered.floats;
    compiled->integers = lowered.integers;
    compiled->random = lowered.random;
    compiled->checks = std::move(lowered.checks);
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

std::vector<std::shared_ptr<pjrt::Buffer>> Engine::launch(const Program& program, const Launch& launch) {
  std::vector<const pjrt::Buffer*> arguments;
  std::vector<std::unique_ptr<pjrt::Buffer>> uploaded;
  arguments.reserve(program.externals.size() + 3);
  for (size_t external : program.externals) arguments.push_back(launch.externals[external].get());
  auto upload_vector = [&](DType dtype, const auto& values) {
    int64_t dims[] = {static_cast<int64_t>(values.size())};
    uploaded.push_back(client_->upload({values.data(), dtype, dims}, client_->addressable_devices().front()));
    arguments.push_back(uploaded.back().get());
  };
  if (program.floats || program.integers) {
    std::vector<double> floats;
    std::vector<int64_t> integers;
    for (const RecordedNumber& n : launch.numbers) {
      if (n.number.category() == DType::F64)
        floats.push_back(n.number.as_double());
      else
        integers.push_back(n.number.as_int());
    }
    if (program.floats) upload_vector(DType::F64, floats);
    if (program.integers) upload_vector(DType::S64, integers);
  }
  if (program.random) upload_vector(DType::U64, std::array<uint64_t, 2>{launch.random.seed, launch.random.offset});

  counters_.executions.fetch_add(1, std::memory_order_relaxed);
  std::vector<std::unique_ptr<pjrt::Buffer>> results = program.executable->execute(arguments, launch.non_donatable);
  std::vector<std::shared_ptr<pjrt::Buffer>> outputs(program.outputs.size());
  size_t next = 0;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (program.outputs[i].elements() > 0) outputs[i] = std::move(results[next++]);
  if (!program.checks.empty()) collect_checks(std::move(results[next]), program.checks);
  for (const auto& output : outputs)
    if (output) {
      note(output->ready());
      break;  // a program's outputs are ready together
    }
  return outputs;
}

// ---- waiting, checks ------------------------------------------------------------------------------------------------------

void Engine::note(pjrt::Event launched) {
  std::optional<pjrt::Event> oldest;
  {
    std::lock_guard lock(pending_mutex_);
    if (launched_.size() >= kRememberedLaunches) {
      std::erase_if(launched_, [](const pjrt::Event& event) { return event.ready(); });
      if (launched_.size() >= kRememberedLaunches) oldest = launched_.front();
    }
    launched_.push_back(std::move(launched));
  }
  if (!oldest) return;
  try {
    oldest->await();  // the host is thousands of ops ahead of the device
  } catch (const Error&) {
    // The next synchronize() raises it: this launch is another one's.
  }
}

void Engine::collect_checks(std::shared_ptr<pjrt::Buffer> flags, const std::vector<std::string>& messages) {
  std::lock_guard lock(pending_mutex_);
  checks_.push_back({std::move(flags), messages});
}

void Engine::raise_failed_checks_if_many() {
  {
    std::lock_guard lock(pending_mutex_);
    if (checks_.size() < kRememberedChecks) return;
  }
  raise_failed_checks();
}

void Engine::raise_failed_checks() {
  std::vector<PendingCheck> checks;
  {
    std::lock_guard lock(pending_mutex_);
    checks.swap(checks_);
  }
  std::optional<std::string> first;
  for (const PendingCheck& check : checks) {
    std::vector<uint8_t> failed(check.messages.size());
    check.flags->to_host(failed.data());
    for (size_t i = 0; i < failed.size() && !first; ++i)
      if (failed[i]) first = check.messages[i];
  }
  if (first) throw InvalidArgument(*first);
}

void Engine::synchronize() {
  std::vector<pjrt::Event> launched;
  {
    std::lock_guard lock(pending_mutex_);
    launched.swap(launched_);
  }
  for (const pjrt::Event& event : launched) event.await();
  raise_failed_checks();
}

// ---- data in and out ------------------------------------------------------------------------------------------------------

namespace {

bool shows_all(const TensorRef& tensor) {
  return tensor.view.offset == 0 && tensor.view.is_contiguous() &&
         tensor.view.elements() * byte_size(tensor.dtype) >= tensor.storage->nbytes();
}

}  // namespace

void Engine::upload(const TensorRef& destination, const void* data) {
  Type type = destination.type();
  if (type.elements() == 0) return;
  if (t_current) {
    // A constant of the program; comparing the recordings finds one that changes.
    CallArgument arguments[] = {type.dims, type.dtype, std::string(static_cast<const char*>(data), static_cast<size_t>(type.bytes()))};
    std::optional<TensorRef> into[] = {destination};
    call(kLiteral, arguments, into);
    return;
  }
  std::shared_ptr<Storage> target = shows_all(destination) ? destination.storage->shared_from_this() : Storage::create(type.bytes());
  {
    std::lock_guard lock(storage_mutex());  // state keeps its dimensions, also when it is replaced through a reshaped view
    if (target->buffer && target->type.dtype == type.dtype && target->type.elements() == type.elements()) type = target->type;
  }
  std::shared_ptr<pjrt::Buffer> buffer =
      client_->upload({data, type.dtype, type.dims}, client_->addressable_devices().front());
  {
    std::lock_guard lock(storage_mutex());
    target->type = type;
    target->buffer = std::move(buffer);
    target->recording = 0;
    target->failure = nullptr;
  }
  if (target.get() == destination.storage) return;
  CallArgument arguments[] = {TensorRef{target.get(), View::contiguous(type.dims), type.dtype}, type.dtype};
  std::optional<TensorRef> into[] = {destination};
  call(kIdentity, arguments, into);
}

void Engine::download(const TensorRef& source, void* data) {
  Type type = source.type();
  if (type.elements() == 0) return;
  if (t_current)
    raise<InvalidArgument>("[capture] the value of a tensor {} is read on the host while a step is recorded; return the tensor from the "
                           "captured function and read it afterwards", type.to_string());
  std::shared_ptr<pjrt::Buffer> buffer;
  bool dense = false;
  {
    std::lock_guard lock(storage_mutex());
    const Storage& storage = *source.storage;
    if (storage.failure) throw Error(*storage.failure);
    if (storage.recording != 0)
      raise("[capture] this tensor was made while a step was recorded and was not returned by it, so it has no value outside");
    buffer = storage.buffer;
    dense = buffer && storage.type.dtype == type.dtype && storage.type.elements() == type.elements() && source.view.offset == 0 &&
            source.view.is_contiguous();
  }
  if (!buffer) {
    std::memset(data, 0, static_cast<size_t>(type.bytes()));
    return;
  }
  std::vector<Output> outputs;
  if (!dense) {
    buffer = nullptr;
    CallArgument arguments[] = {source, type.dtype};
    outputs = call(kIdentity, arguments);
    std::lock_guard lock(storage_mutex());
    buffer = outputs[0].storage->buffer;
  }
  buffer->to_host(data);
  raise_failed_checks();
}

void Engine::materialise(const TensorRef& tensor) {
  {
    std::lock_guard lock(storage_mutex());
    if (tensor.storage->buffer || tensor.storage->nbytes() == 0 || tensor.storage->failure || tensor.storage->recording != 0) return;
  }
  std::vector<char> zeros(static_cast<size_t>(tensor.storage->nbytes()));
  TensorRef all{tensor.storage, View::contiguous({tensor.storage->nbytes() / byte_size(tensor.dtype)}), tensor.dtype};
  if (shows_all(tensor)) all.view = tensor.view;
  struct Restore {
    Trace* recording = std::exchange(t_current, nullptr);
    ~Restore() { t_current = recording; }
  } restore;
  upload(all, zeros.data());
}

std::shared_ptr<Storage> Engine::dense(TensorRef& tensor) {
  materialise(tensor);
  {
    std::lock_guard lock(storage_mutex());
    const Storage& storage = *tensor.storage;
    if (tensor.view.elements() == 0 || storage.failure || storage.type == tensor.type()) return nullptr;
  }
  CallArgument arguments[] = {tensor, tensor.dtype};
  std::shared_ptr<Storage> copy = call(kIdentity, arguments)[0].storage;
  tensor = {copy.get(), View::contiguous(tensor.view.sizes), tensor.dtype};
  return copy;
}

void Engine::resize(Storage& storage, int64_t nbytes) {
  if (t_current) raise<NotImplemented>("[capture] a tensor's storage is resized while a step is recorded; give it its size before");
  std::shared_ptr<pjrt::Buffer> old;
  Type type;
  {
    std::lock_guard lock(storage_mutex());
    old = std::exchange(storage.buffer, nullptr);
    type = storage.type;
  }
  storage.set_nbytes(nbytes);
  if (!old || nbytes == 0) return;
  int64_t kept = std::min(nbytes / byte_size(type.dtype), type.elements());
  if (kept == 0) return;
  auto source = Storage::create(type.bytes());
  {
    std::lock_guard lock(storage_mutex());
    source->buffer = std::move(old);
    source->type = type;
  }
  CallArgument arguments[] = {TensorRef{source.get(), View::contiguous({kept}), type.dtype}, type.dtype};
  std::optional<TensorRef> into[] = {TensorRef{&storage, View::contiguous({kept}), type.dtype}};
  call(kIdentity, arguments, into);
}

}  // namespace flambeau::runtime
