#include "runtime/recording.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace flambeau::runtime {
// ---- recording ------------------------------------------------------------------------------------------------------------

Recording::Recording(std::string name) : name_(std::move(name)), trace_(std::make_unique<Trace>(TraceKind::Capture)) {
  if (Engine::current())
    raise<InvalidArgument>("[capture] '{}' is captured while another step is recorded; capture one function that calls both", name_);
  Engine::set_current(trace_.get());
}

Recording::~Recording() {
  if (trace_) Engine::set_current(nullptr);
}

std::shared_ptr<Storage> Recording::add_input(const Type& type, const hlo::Sharding& sharding) {
  auto storage = Storage::create(type.bytes(), trace_->id());
  trace_->bind_input(storage, trace_->add_input(type, sharding));
  input_types_.push_back(type);
  return storage;
}

std::unique_ptr<StepProgram> Recording::finish(std::span<const TensorRef> results) {
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
  if (Engine::hlo_mesh()) {  // state keeps its layout; new tensors and results are replicated
    program->shardings_.resize(program->outputs_.size());
    for (const StepProgram::Bound& bound : program->bound_)
      if (bound.kept)
        program->shardings_[bound.output] = layout_of(*bound.kept, trace_->type(program->outputs_[bound.output]).dims).value_or(hlo::Sharding{});
  }
  program->mesh_hash_ = Engine::mesh_hash();
  program->name_ = std::move(name_);
  program->input_types_ = std::move(input_types_);
  program->trace_ = std::move(trace_);
  Engine::set_current(nullptr);
  return program;
}

// ---- replaying ------------------------------------------------------------------------------------------------------------

size_t StepProgram::escaped() const {
  return static_cast<size_t>(
      std::count_if(bound_.begin(), bound_.end(), [](const Bound& b) { return !b.kept && !b.storage.expired(); }));
}

void StepProgram::compile() {
  if (mesh_hash_ != Engine::mesh_hash())
    raise<InvalidArgument>("[capture] '{}' was recorded for another mesh; capture it anew after the mesh is set", name_);
  if (!program_) program_ = Engine::get().program(*trace_, outputs_, aliases_, name_, shardings_);
}

pjrt::MemoryStats StepProgram::memory_stats() {
  compile();
  return program_->executable->memory_stats();
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
  for (TensorRef& input : given) made.push_back(engine.dense(input));
  const std::vector<std::shared_ptr<Storage>> storages = sources(given);
  const std::vector<std::shared_ptr<const Array>> externals = gather(storages);
  RandomPosition position;
  if (trace_->random()) position = random.advance(trace_->drawn());
  Handover handover;
  const std::vector<int64_t> kept = engine.offer(handover, *program_, storages, externals);
  Engine::Launched launched;
  try {
    launched = engine.launch(*program_, {externals, kept, {}, position});
  } catch (const std::exception& error) {
    handover.fail(fmt::format("the step '{}' that was to give this tensor failed: {}", name_, error.what()));
    throw;
  }
  std::vector<Assignment> assignments;
  const auto assign = [&](std::shared_ptr<Storage> storage, size_t output) {
    assignments.push_back({std::move(storage), trace_->type(outputs_[output]), launched.outputs[output]});
  };
  for (const Bound& bound : bound_)
    if (auto storage = bound.storage.lock()) assign(std::move(storage), bound.output);
  std::vector<std::shared_ptr<Storage>> results;
  for (size_t i = 0; i < result_types_.size(); ++i) {
    results.push_back(Storage::create(result_types_[i].bytes()));
    assign(results.back(), result_outputs_[i]);
  }
  handover.commit(assignments);
  engine.finish(std::move(launched.launch));
  return results;
}

// ---- loops ----------------------------------------------------------------------------------------------------------------

LoopRecording::LoopRecording(int64_t trip_count, std::span<const TensorRef> carry, std::span<const TensorRef> stacked)
    : outer_(Engine::current()), loop_(std::make_unique<Loop>()) {
  FLAMBEAU_CHECK(outer_, "a loop is recorded inside of a recording");
  loop_->trip_count = trip_count;
  for (const TensorRef& tensor : carry) loop_->carry.push_back(outer_->read(tensor));
  for (const TensorRef& tensor : stacked) {
    if (tensor.view.sizes.empty() || tensor.view.sizes[0] != trip_count)
      raise<InvalidArgument>("[scan] expected stacked tensors of {} rows, got {}", trip_count, tensor.type().to_string());
    loop_->stacked.push_back(outer_->read(tensor));
  }
  loop_->body = std::make_unique<Trace>(TraceKind::Capture, outer_);
  index_ = add_input({DType::S64, {}});
  for (const TensorRef& tensor : carry) carry_.push_back(add_input(tensor.type()));
  for (const TensorRef& tensor : stacked)
    rows_.push_back(add_input({tensor.dtype, {tensor.view.sizes.begin() + 1, tensor.view.sizes.end()}}));
  Engine::set_current(loop_->body.get());
}

LoopRecording::~LoopRecording() {
  if (loop_) Engine::set_current(outer_);
}

std::shared_ptr<Storage> LoopRecording::add_input(const Type& type) {
  return loop_->body->bind_new(loop_->body->add_input(type), 1).front();
}

std::shared_ptr<Storage> LoopRecording::add_cotangent(const Type& type) { return add_input(type); }

std::vector<ValueId> LoopRecording::dense_values(std::span<const TensorRef> tensors) {
  std::vector<ValueId> ids;
  for (const TensorRef& tensor : tensors) ids.push_back(loop_->body->dense(tensor));
  return ids;
}

void LoopRecording::check_carry(std::span<const TensorRef> next) const {
  if (next.size() != carry_.size())
    raise<InvalidArgument>("[loop] the body got {} tensors and gave {}; it must give the carry's next values", carry_.size(), next.size());
  for (size_t i = 0; i < next.size(); ++i) {
    Type before{loop_->carry[i].dtype, loop_->carry[i].view.sizes};
    if (next[i].type() != before)
      raise<InvalidArgument>("[loop] carry {} is {} and became {}; shapes and dtypes of the carry must stay", i, before.to_string(),
                             next[i].type().to_string());
  }
}

std::vector<std::shared_ptr<Storage>> LoopRecording::finish(std::span<const TensorRef> next) {
  check_carry(next);
  loop_->results = dense_values(next);
  Engine::set_current(outer_);
  return outer_->bind_new(outer_->append_loop(std::move(loop_), {}), carry_.size());
}

LoopRecording::Joint LoopRecording::finish_joint(std::span<const TensorRef> next, std::span<const TensorRef> gradient_next,
                                                 std::span<const TensorRef> gradient_rows, const KeepPolicy& policy) {
  check_carry(next);
  if (policy.offload && !Engine::get().target().host_memory)
    raise<InvalidArgument>("[scan] expected a device with host memory to put what is kept into, got {}, which has none; keep it on the "
                           "device (activation_checkpoint.mode = \"selective\")", Engine::get().target().platform);
  JointLoop joint;
  joint.carry = carry_.size();
  joint.stacked = rows_.size();
  joint.results = dense_values(next);
  joint.gradient_results = dense_values(gradient_next);
  joint.gradient_rows = dense_values(gradient_rows);
  joint.body = std::move(loop_->body);
  Engine::set_current(outer_);
  SplitLoop parts = split(joint, policy);

  Joint result;
  result.gradient = std::make_unique<GradientLoop>();
  GradientLoop& gradient = *result.gradient;
  gradient.outer_id_ = outer_->id();
  gradient.loop_ = std::make_unique<Loop>();
  gradient.loop_->trip_count = loop_->trip_count;
  gradient.loop_->reverse = true;
  gradient.loop_->stacked = loop_->stacked;
  gradient.loop_->body = std::move(parts.backward);
  gradient.loop_->results = std::move(parts.gradient_results);
  gradient.loop_->rows = std::move(parts.gradient_rows);

  loop_->body = std::move(parts.forward);
  loop_->results = std::move(parts.results);
  loop_->rows = std::move(parts.kept);
  size_t kept = loop_->rows.size();
  loop_->rows_on_host = gradient.loop_->stacked_on_host = parts.kept_on_host;
  ValueId first = outer_->append_loop(std::move(loop_), {});
  gradient.random_distance_ = outer_->calls().back().random_distance;
  std::vector<ValueView> stacks;
  for (size_t i = 0; i < kept; ++i) {
    ValueId id = first + static_cast<ValueId>(carry_.size() + i);
    stacks.push_back(whole_value(id, outer_->type(id)));
  }
  gradient.loop_->stacked.insert(gradient.loop_->stacked.begin(), stacks.begin(), stacks.end());
  result.results = outer_->bind_new(first, carry_.size());
  return result;
}

std::vector<std::shared_ptr<Storage>> GradientLoop::run(std::span<const TensorRef> initial) {
  if (!loop_) raise("[scan] the gradient of a scan is taken a second time; run the scan again");
  Trace* outer = Engine::current();
  if (!outer || outer->id() != outer_id_)
    raise("[scan] the gradient of a scan must be taken in the recording that the scan ran in");
  for (const TensorRef& tensor : initial) loop_->carry.push_back(outer->read(tensor));
  size_t outputs = loop_->results.size() + loop_->rows.size();
  return outer->bind_new(outer->append_loop(std::move(loop_), {}, random_distance_), outputs);
}

}  // namespace flambeau::runtime
