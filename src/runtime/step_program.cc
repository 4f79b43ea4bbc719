#include "runtime/step_program.h"

#include <algorithm>

#include "base/error.h"

namespace flambeau::runtime {

size_t StepProgram::escaped() const {
  return static_cast<size_t>(
      std::count_if(bound_.begin(), bound_.end(), [](const Bound& b) { return !b.kept && !b.storage.expired(); }));
}

void StepProgram::compile() {
  std::lock_guard lock(compile_mutex_);
  if (!program_) program_ = Engine::get().programs().get(*trace_, outputs_, aliases_, name_, shardings_);
}

pjrt::MemoryStats StepProgram::memory_stats() {
  compile();
  return program()->executable->memory_stats();
}

std::shared_ptr<const Program> StepProgram::program() const {
  std::lock_guard lock(compile_mutex_);
  return program_;
}

// The storages of the declared inputs and of the state, by external.
std::vector<std::shared_ptr<Storage>> StepProgram::sources(std::span<const TensorRef> inputs) const {
  std::vector<std::shared_ptr<Storage>> storages;
  storages.reserve(trace_->externals().size());
  size_t next_input = 0;
  for (const External& external : trace_->externals())
    storages.push_back(external.storage ? external.storage : inputs[next_input++].storage->shared_from_this());
  return storages;
}

// Their arrays, all at one moment.
std::vector<std::shared_ptr<const Array>> StepProgram::gather(std::span<const std::shared_ptr<Storage>> storages) const {
  std::vector<const Storage*> read;
  for (const auto& storage : storages) read.push_back(storage.get());
  std::vector<Held> values = held(read);
  std::vector<std::shared_ptr<const Array>> arrays;
  arrays.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const External& external = trace_->externals()[i];
    Held& value = values[i];
    if (value.failure) throw Error(*value.failure);
    const bool has_elements = external.type.elements() > 0;
    if (has_elements && value.array && value.array->mesh() != trace_->mesh())
      raise<InvalidArgument>("[mesh] '{}' was recorded for {}, got a tensor {} on {}; capture it for that, or move the tensor", name_,
                             describe(trace_->mesh()), value.type.to_string(), describe(value.array->mesh()));
    if (has_elements && (!value.array || value.type != external.type))
      raise<InvalidArgument>("[capture] '{}' was recorded for a tensor {}, which is now {}; capture it anew after such a change", name_,
                             external.type.to_string(), value.array ? value.type.to_string() : "without a value");
    if (has_elements && !same_layout(value.array->sharding(), external.sharding))
      raise<InvalidArgument>("[capture] '{}' was recorded for a tensor {} laid out as {}, which is now {}; capture it anew after such a "
                             "change", name_, external.type.to_string(), with_rank(external.sharding, external.type.rank()).to_string(),
                             with_rank(value.array->sharding(), external.type.rank()).to_string());
    arrays.push_back(has_elements ? std::move(value.array) : nullptr);
  }
  return arrays;
}

std::vector<std::shared_ptr<Storage>> StepProgram::run(std::span<const TensorRef> inputs, RandomSource& random) {
  compile();
  FLAMBEAU_CHECK(inputs.size() == input_types_.size(), "a step program gets the inputs that it was recorded with");
  Engine& engine = Engine::get();
  std::vector<TensorRef> given(inputs.begin(), inputs.end());
  std::vector<std::shared_ptr<Storage>> made;  // keeps alive what `given` then points to
  for (TensorRef& input : given) made.push_back(engine.transfers().dense(input, trace_->mesh()));
  const std::vector<std::shared_ptr<Storage>> storages = sources(given);
  const std::vector<std::shared_ptr<const Array>> externals = gather(storages);
  RandomPosition position;
  if (trace_->random()) position = random.advance(trace_->drawn());
  std::vector<OutputStorage> targets;
  for (const Bound& bound : bound_)
    if (auto storage = bound.storage.lock()) targets.push_back({std::move(storage), bound.output});
  std::vector<std::shared_ptr<Storage>> results;
  for (size_t i = 0; i < result_types_.size(); ++i) {
    results.push_back(Storage::create(result_types_[i].bytes()));
    targets.push_back({results.back(), result_outputs_[i]});
  }
  engine.launcher().run(*program(), {externals, trace_->numbers(), position}, storages, targets,
                        fmt::format("the step '{}' that was to give this tensor failed: ", name_));
  return results;
}

}  // namespace flambeau::runtime
