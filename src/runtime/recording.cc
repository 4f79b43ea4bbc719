#include "runtime/recording.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace flambeau::runtime {

static std::unique_ptr<Trace> make_trace() {
  const Devices& devices = Engine::get().devices();
  return std::make_unique<Trace>(TraceKind::Capture, TraceContext{devices.default_mesh(), &devices});
}

Recording::Recording(std::string name) : name_(std::move(name)), trace_(make_trace()) {
  if (Trace::current())
    raise<InvalidArgument>("[capture] '{}' is captured while another step is recorded; capture one function that calls both", name_);
  Trace::set_current(trace_.get());
}

Recording::~Recording() {
  if (trace_) Trace::set_current(nullptr);
}

std::shared_ptr<Storage> Recording::add_input(const Type& type, const hlo::Sharding& sharding) {
  auto storage = Storage::create(type.bytes(), trace_->id());
  trace_->bind_input(storage, trace_->add_input(type, sharding));
  input_types_.push_back(type);
  return storage;
}

std::unique_ptr<StepProgram> Recording::finish(std::span<const TensorRef> results, std::span<Storage* const> places) {
  std::unique_ptr<StepProgram> program(new StepProgram);
  std::unordered_map<ValueId, size_t> output_of;
  auto output = [&](ValueId value) {
    auto [it, is_new] = output_of.try_emplace(value, program->outputs_.size());
    if (is_new) program->outputs_.push_back(value);
    return it->second;
  };
  for (const TensorRef& result : results) {
    program->result_types_.push_back(result.type());
    program->result_outputs_.push_back(output(trace_->dense(result)));
  }
  std::vector<std::pair<uint64_t, const Binding*>> bindings;
  for (const auto& [id, binding] : trace_->bindings()) bindings.emplace_back(id, &binding);
  std::sort(bindings.begin(), bindings.end());  // by the age of the storages
  for (const auto& [id, binding] : bindings) {
    std::shared_ptr<Storage> storage = binding->storage.lock();
    if (!storage) continue;
    if (binding->written && storage->recording() == trace_->id())
      raise<InvalidArgument>("[capture] '{}' writes to one of its inputs, and a replay gets others each time; clone it first, or read "
                             "it from outside as state", name_);
    if (!binding->born && !binding->written) continue;
    program->bound_.push_back({storage, binding->born ? nullptr : storage, output(binding->value)});
  }
  for (size_t i = 0; i < trace_->externals().size(); ++i)
    for (const StepProgram::Bound& bound : program->bound_)
      if (bound.kept && trace_->externals()[i].storage == bound.kept &&
          trace_->externals()[i].type == trace_->type(program->outputs_[bound.output]))
        program->aliases_.emplace_back(i, bound.output);
      else if (bound.kept && trace_->externals()[i].storage == bound.kept)
        program->keeps_types_ = false;
  if (trace_->mesh()) {  // state keeps its layout; new tensors and results are replicated
    program->shardings_.resize(program->outputs_.size());
    for (const StepProgram::Bound& bound : program->bound_)
      if (bound.kept)
        program->shardings_[bound.output] = layout_of(*bound.kept, trace_->type(program->outputs_[bound.output]).dims).value_or(hlo::Sharding{});
  }
  program->place_of_.resize(trace_->externals().size());
  for (size_t place = 0; place < places.size(); ++place) {
    for (StepProgram::Bound& bound : program->bound_)
      if (bound.kept.get() == places[place]) bound = {{}, nullptr, bound.output, place};
    for (size_t i = 0; i < program->place_of_.size(); ++i)
      if (trace_->externals()[i].storage.get() == places[place]) {
        program->place_of_[i] = place;
        trace_->release_external(i);
      }
  }
  program->name_ = std::move(name_);
  program->input_types_ = std::move(input_types_);
  program->trace_ = std::move(trace_);
  Trace::set_current(nullptr);
  return program;
}

}  // namespace flambeau::runtime
