#include "runtime/step_program.h"

#include <algorithm>

#include "base/error.h"

namespace flambeau::runtime {

size_t StepProgram::escaped(std::span<const TensorRef> known) const {
  const auto count = std::ranges::count_if(bound_, [&](const Bound& b) {
    const std::shared_ptr<Storage> made = b.kept ? nullptr : b.storage.lock();
    return made && std::ranges::none_of(known, [&](const TensorRef& t) { return t.storage == made.get(); });
  });
  return static_cast<size_t>(count);
}

void StepProgram::let_go(const Storage& made) {
  std::erase_if(bound_, [&](const Bound& b) { return !b.kept && b.storage.lock().get() == &made; });
}

bool StepProgram::fits(std::span<Storage* const> places) const {
  for (size_t i = 0; i < place_of_.size(); ++i) {
    if (!place_of_[i]) continue;
    const External& external = trace_->externals()[i];
    const Held value = places[*place_of_[i]]->held();
    if (!value.array || value.type != external.type || value.array->mesh() != trace_->mesh() ||
        !same_layout(value.array->sharding(), external.sharding))
      return false;
  }
  return std::ranges::all_of(bound_, [&](const Bound& b) {
    return !b.place || trace_->type(outputs_[b.output]).bytes() == places[*b.place]->nbytes();
  });
}

bool StepProgram::writes(const Storage& storage) const {
  return std::ranges::any_of(bound_, [&](const Bound& b) { return b.kept.get() == &storage; });
}

bool StepProgram::reads(const Storage& storage) const {
  return std::ranges::any_of(trace_->externals(), [&](const External& e) { return e.storage.get() == &storage; });
}

std::vector<RecordedNumber> StepProgram::numbers_given(std::span<const double> values) const {
  std::vector<RecordedNumber> numbers = trace_->numbers();
  if (!values.empty())
    for (RecordedNumber& n : numbers)
      if (n.input) n.number.value = values[*n.input];
  return numbers;
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
std::vector<std::shared_ptr<Storage>> StepProgram::sources(std::span<const TensorRef> inputs,
                                                           std::span<Storage* const> places) const {
  std::vector<std::shared_ptr<Storage>> storages;
  storages.reserve(trace_->externals().size());
  size_t next_input = 0;
  for (size_t i = 0; i < trace_->externals().size(); ++i) {
    const External& external = trace_->externals()[i];
    if (external.storage) storages.push_back(external.storage);
    else storages.push_back((place_of_[i] ? places[*place_of_[i]] : inputs[next_input++].storage)->shared_from_this());
  }
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

std::vector<std::shared_ptr<Storage>> StepProgram::run(std::span<const TensorRef> inputs, RandomSource& random,
                                                       std::span<Storage* const> places, std::span<const double> numbers) {
  compile();
  FLAMBEAU_CHECK(inputs.size() == input_types_.size(), "a step program gets the inputs that it was recorded with");
  Engine& engine = Engine::get();
  std::vector<TensorRef> given(inputs.begin(), inputs.end());
  std::vector<std::shared_ptr<Storage>> made;  // keeps alive what `given` then points to
  for (TensorRef& input : given) made.push_back(engine.transfers().dense(input, trace_->mesh()));
  const std::vector<std::shared_ptr<Storage>> storages = sources(given, places);
  const std::vector<std::shared_ptr<const Array>> externals = gather(storages);
  RandomPosition position;
  if (trace_->random()) position = random.advance(trace_->drawn());
  std::vector<OutputStorage> targets;
  for (const Bound& bound : bound_) {
    auto storage = bound.place ? places[*bound.place]->shared_from_this() : bound.storage.lock();
    if (storage) targets.push_back({std::move(storage), bound.output});
  }
  std::vector<std::shared_ptr<Storage>> results;
  for (size_t i = 0; i < result_types_.size(); ++i) {
    results.push_back(Storage::create(result_types_[i].bytes()));
    targets.push_back({results.back(), result_outputs_[i]});
  }
  engine.launcher().run(*program(), {externals, numbers_given(numbers), position}, storages, targets,
                        fmt::format("the step '{}' that was to give this tensor failed: ", name_));
  return results;
}

}  // namespace flambeau::runtime
