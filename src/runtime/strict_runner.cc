#include "runtime/strict_runner.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/random.h"

namespace flambeau::runtime {

// The mesh of the first tensor that has a value; the trace refuses others.
const DeviceMesh* StrictRunner::mesh_of(std::span<const CallArgument> arguments,
                                        std::span<const std::optional<TensorRef>> into) const {
  std::shared_ptr<const Array> array;
  const auto look = [&](const std::optional<TensorRef>& tensor) {
    if (tensor && !array) array = tensor->storage->held().array;
  };
  for (const CallArgument& argument : arguments) {
    if (const auto* tensor = std::get_if<TensorRef>(&argument)) look(*tensor);
    if (const auto* list = std::get_if<std::vector<std::optional<TensorRef>>>(&argument)) std::ranges::for_each(*list, look);
    if (array) return array->mesh();
  }
  std::ranges::for_each(into, look);
  return array ? array->mesh() : devices_.default_mesh();
}

std::vector<std::optional<Type>> StrictRunner::infer(const ops::Row& row, std::span<const CallArgument> arguments) const {
  if (Trace* trace = Trace::current()) return trace->infer(row, arguments);
  Trace trace(TraceKind::Strict, TraceContext{mesh_of(arguments, {})});
  return trace.infer(row, arguments);
}

std::vector<CallOutput> StrictRunner::call(const ops::Row& row, std::span<const CallArgument> arguments,
                                           std::span<const std::optional<TensorRef>> into, RandomSource* random, std::string site) {
  counters_.ops_recorded.fetch_add(1, std::memory_order_relaxed);
  thread_local Trace strict(TraceKind::Strict);
  struct Reset {  // so that no buffer is held, and kept from donation, until this thread's next op
    ~Reset() { strict.reset(); }
  };
  std::optional<Reset> reset;
  Trace* const recording = Trace::current();
  if (!recording) {
    strict.reset(mesh_of(arguments, into));
    reset.emplace();
  }
  Trace& trace = recording ? *recording : strict;

  uint64_t distance = 0;
  if (row.random) {
    FLAMBEAU_CHECK(random, "a random op is called with a random source");
    std::optional<Type> type = trace.infer(row, arguments).at(0);
    distance = trace.draw(static_cast<uint64_t>(ops::random_blocks(type->elements(), type->dtype)));
  }
  std::vector<std::optional<ValueId>> values = trace.append(row, arguments, distance, std::move(site));

  std::vector<CallOutput> outputs(values.size());
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
  if (recording) return outputs;
  RandomPosition position;
  if (trace.random()) position = random->advance(trace.drawn());
  run(trace, position);
  return outputs;
}

namespace {

// On a mesh: what existed keeps its layout, a new value takes that of the first argument of its dimensions.
std::vector<hlo::Sharding> shardings_of(const Trace& trace, std::span<const OutputStorage> targets, std::span<const ValueId> outputs) {
  std::vector<hlo::Sharding> shardings(trace.mesh() ? outputs.size() : 0);
  if (shardings.empty()) return shardings;
  for (const OutputStorage& target : targets) {
    const Dims& dims = trace.type(outputs[target.output]).dims;
    for (const External& external : trace.externals())
      if (external.type.dims == dims) {
        shardings[target.output] = external.sharding;
        break;
      }
    shardings[target.output] = layout_of(*target.storage, dims).value_or(shardings[target.output]);
  }
  return shardings;
}

}  // namespace

void StrictRunner::run(Trace& trace, RandomPosition position) {
  // Born storages first, by value, so that equal calls give equal programs whatever the order of the map.
  std::vector<const Binding*> bindings;
  for (const auto& [id, binding] : trace.bindings())
    if (binding.born || binding.written) bindings.push_back(&binding);
  std::ranges::sort(bindings, {}, [](const Binding* b) { return std::pair(!b->born, b->value); });
  std::vector<ValueId> outputs;
  std::vector<OutputStorage> targets;
  for (const Binding* binding : bindings) {
    std::shared_ptr<Storage> storage = binding->storage.lock();
    if (!storage) continue;
    targets.push_back({std::move(storage), outputs.size()});
    outputs.push_back(binding->value);
  }
  std::vector<std::shared_ptr<Storage>> sources;
  std::vector<std::pair<size_t, size_t>> aliases;
  for (size_t i = 0; i < trace.externals().size(); ++i) {
    const External& external = trace.externals()[i];
    sources.push_back(external.storage);
    for (const OutputStorage& target : targets)
      if (external.storage == target.storage && external.type == trace.type(outputs[target.output]) && external.type.elements() > 0)
        aliases.emplace_back(i, target.output);
  }
  const std::shared_ptr<const Program> program = programs_.get(trace, outputs, aliases, "eager", shardings_of(trace, targets, outputs));
  const std::vector<std::shared_ptr<const Array>> externals = trace.take_values();
  launcher_.run(*program, {externals, trace.numbers(), position}, sources, targets);
}

}  // namespace flambeau::runtime
