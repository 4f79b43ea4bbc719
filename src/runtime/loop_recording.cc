#include "runtime/loop_recording.h"

#include "base/error.h"

namespace flambeau::runtime {

LoopRecording::LoopRecording(int64_t trip_count, std::span<const TensorRef> carry, std::span<const TensorRef> stacked)
    : outer_(Trace::current()), loop_(std::make_unique<Loop>()) {
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
  Trace::set_current(loop_->body.get());
}

LoopRecording::~LoopRecording() {
  if (loop_) Trace::set_current(outer_);
}

std::shared_ptr<Storage> LoopRecording::add_input(const Type& type) {
  return loop_->body->bind_new(loop_->body->add_input(type), 1).front();
}

std::shared_ptr<Storage> LoopRecording::add_cotangent(const Type& type) {
  FLAMBEAU_CHECK(output_cotangents_ == 0, "cotangents of outputs come last");
  return add_input(type);
}

std::shared_ptr<Storage> LoopRecording::add_output_cotangent(const Type& type) {
  ++output_cotangents_;
  return add_input(type);
}

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

std::vector<std::shared_ptr<Storage>> LoopRecording::finish(std::span<const TensorRef> next, std::span<const TensorRef> outputs) {
  check_carry(next);
  loop_->results = dense_values(next);
  loop_->rows = dense_values(outputs);
  Trace::set_current(outer_);
  return outer_->bind_new(outer_->append_loop(std::move(loop_), {}), carry_.size() + outputs.size());
}

LoopRecording::Joint LoopRecording::finish_joint(std::span<const TensorRef> next, std::span<const TensorRef> outputs,
                                                 std::span<const TensorRef> gradient_next, std::span<const TensorRef> gradient_rows,
                                                 const CheckpointPolicy& policy) {
  check_carry(next);
  const targets::Target* target = outer_->devices() ? &outer_->devices()->target() : nullptr;
  if (policy.offload && target && !target->host_memory)
    raise<InvalidArgument>("[scan] expected a device with host memory to put what is kept into, got {}, which has none; keep it on the "
                           "device (activation_checkpoint.mode = \"selective\")", target->platform);
  JointLoop joint;
  joint.carry = carry_.size();
  joint.stacked = rows_.size();
  joint.output_cotangents = output_cotangents_;
  joint.results = dense_values(next);
  joint.outputs = dense_values(outputs);
  joint.gradient_results = dense_values(gradient_next);
  joint.gradient_rows = dense_values(gradient_rows);
  joint.body = std::move(loop_->body);
  Trace::set_current(outer_);
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
  const size_t kept = loop_->rows.size();
  loop_->rows.insert(loop_->rows.end(), parts.outputs.begin(), parts.outputs.end());
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
  const auto stacked_outputs = outer_->bind_new(first + static_cast<ValueId>(carry_.size() + kept), outputs.size());
  result.results.insert(result.results.end(), stacked_outputs.begin(), stacked_outputs.end());
  return result;
}

std::vector<std::shared_ptr<Storage>> GradientLoop::run(std::span<const TensorRef> initial, std::span<const TensorRef> of_outputs) {
  if (!loop_) raise("[scan] the gradient of a scan is taken a second time; run the scan again");
  Trace* outer = Trace::current();
  if (!outer || outer->id() != outer_id_)
    raise("[scan] the gradient of a scan must be taken in the recording that the scan ran in");
  for (const TensorRef& tensor : initial) loop_->carry.push_back(outer->read(tensor));
  for (const TensorRef& tensor : of_outputs) loop_->stacked.push_back(outer->read(tensor));
  size_t outputs = loop_->results.size() + loop_->rows.size();
  return outer->bind_new(outer->append_loop(std::move(loop_), {}, random_distance_), outputs);
}

}  // namespace flambeau::runtime
