#include "runtime/manual.h"

#include <algorithm>

#include "base/error.h"
#include "hlo/sharding.h"
#include "runtime/internal_ops.h"

namespace flambeau::runtime {
namespace {

const hlo::Mesh& mesh_of(const Trace* recording) {
  if (!recording) raise<InvalidArgument>("[manual] a manual computation runs within a captured step; capture the function that calls it");
  if (!recording->mesh()) raise<InvalidArgument>("[manual] expected a mesh, got none; set one before the step is captured");
  return recording->mesh()->mesh;
}

}  // namespace

ManualRecording::ManualRecording(std::vector<std::string> axes, std::span<const ManualSpec> operands)
    : outer_(Trace::current()), mesh_(mesh_of(outer_)), axes_(std::move(axes)) {
  body_ = std::make_unique<Trace>(TraceKind::Capture, outer_);
  CallArgument zero[] = {Dims{}, DType::S64};  // in the place of a loop's index, so that a body is split as a loop's is
  operands_.push_back(whole_value(*outer_->append(kZeros, zero)[0], {DType::S64, {}}));
  in_.emplace_back();
  body_->add_input({DType::S64, {}});
  for (const ManualSpec& operand : operands) {
    Type type = operand.tensor.type();
    check_divides(mesh_, operand.sharding, type);
    check_axes(operand.sharding);
    type.dims = box_at(mesh_, operand.sharding, type.dims, 0).size;
    operands_.push_back(outer_->read(operand.tensor));
    in_.push_back(with_rank(operand.sharding, type.rank()));
    local_.push_back(add_input(type));
    local_types_.push_back(std::move(type));
  }
  Trace::set_current(body_.get());
}

ManualRecording::~ManualRecording() {
  if (body_) Trace::set_current(outer_);
}

std::shared_ptr<Storage> ManualRecording::add_input(const Type& type) {
  return body_->bind_new(body_->add_input(type), 1).front();
}

std::shared_ptr<Storage> ManualRecording::add_cotangent(const Type& local, const hlo::Sharding& sharding) {
  cotangents_.push_back(with_rank(sharding, local.rank()));
  return add_input(local);
}

void ManualRecording::check_axes(const hlo::Sharding& sharding) const {
  for (const hlo::Sharding::Dim& dim : sharding.dims)
    for (const std::string& axis : dim.axes)
      if (std::ranges::find(axes_, axis) == axes_.end())
        raise<InvalidArgument>("[manual] expected layouts over the axes of the computation ({}), got {}; the partitioner splits by the others",
                               encode_axes(axes_), sharding.to_string());
}

Type ManualRecording::global(const Type& local, const hlo::Sharding& sharding) const {
  Type type = local;
  for (size_t d = 0; d < sharding.dims.size(); ++d) type.dims[d] *= hlo::axes_size(mesh_, sharding.dims[d].axes);
  return type;
}

std::shared_ptr<Manual> ManualRecording::describe(std::unique_ptr<Trace> body, std::vector<ValueId> results,
                                                  std::vector<hlo::Sharding> in, std::vector<hlo::Sharding> out) const {
  auto manual = std::make_shared<Manual>();
  for (size_t i = 0; i < results.size(); ++i) {
    const Type& type = body->type(results[i]);
    out[i] = with_rank(out[i], type.rank());
    if (std::string fault = hlo::sharding_fault(out[i], mesh_, type.rank()); !fault.empty())
      raise<InvalidArgument>("[manual] {} for result {}, {} on each device", fault, i, type.to_string());
    check_axes(out[i]);
    manual->result_types.push_back(global(type, out[i]));
  }
  if (axes_.size() < mesh_.axes.size()) {  // the other axes are the partitioner's
    for (auto* shardings : {&in, &out})
      for (hlo::Sharding& sharding : *shardings)
        for (hlo::Sharding::Dim& dim : sharding.dims) dim.open = true;
  }
  manual->body = std::move(body);
  manual->axes = axes_;
  manual->in = std::move(in);
  manual->out = std::move(out);
  manual->results = std::move(results);
  return manual;
}

namespace {

std::vector<ValueId> dense_values(Trace& trace, std::span<const ManualSpec> specs) {
  std::vector<ValueId> ids;
  for (const ManualSpec& spec : specs) ids.push_back(trace.dense(spec.tensor));
  return ids;
}

// Which of a trace's inputs a value is; their number when it is none.
size_t input_index(const Trace& trace, ValueId id) {
  size_t i = 0;
  while (i < trace.externals().size() && trace.external_value(i) != id) ++i;
  return i;
}

std::vector<hlo::Sharding> shardings(std::span<const ManualSpec> specs) {
  std::vector<hlo::Sharding> result;
  for (const ManualSpec& spec : specs) result.push_back(spec.sharding);
  return result;
}

}  // namespace

std::vector<std::shared_ptr<Storage>> ManualRecording::finish(std::span<const ManualSpec> results) {
  std::vector<ValueId> ids = dense_values(*body_, results);
  Trace::set_current(outer_);
  std::shared_ptr<Manual> manual = describe(std::move(body_), std::move(ids), in_, shardings(results));
  return outer_->bind_new(outer_->append_manual(std::move(manual), operands_), results.size());
}

// The joint graph is split like that of a loop of one iteration: operands are the forward loop's carry, the cotangents the backward
// loop's. What the backward half needs of the forward half becomes a result of it, the devices' parts one after another along
// dimension 0; what it needs of the operands it is given again.
ManualRecording::Joint ManualRecording::finish_joint(std::span<const ManualSpec> results, std::span<const ManualSpec> gradients) {
  JointLoop joint;
  joint.carry = operands_.size() - 1;
  joint.results = dense_values(*body_, results);
  joint.gradient_results = dense_values(*body_, gradients);
  joint.body = std::move(body_);
  Trace::set_current(outer_);
  SplitLoop halves = split(joint, {.kind = CheckpointPolicy::Kind::None, .keep_scalars = false, .keep_gathered = true});

  std::vector<ValueId> forward_results = halves.results;
  std::vector<hlo::Sharding> forward_out = shardings(results);
  std::vector<hlo::Sharding> backward_in{in_[0]};  // of the index, the cotangents, what was kept
  backward_in.insert(backward_in.end(), cotangents_.begin(), cotangents_.end());
  std::vector<std::pair<bool, size_t>> kept_from;  // an operand, or a result of the forward half
  for (ValueId kept : halves.kept) {
    const size_t operand = input_index(*halves.forward, kept);
    if (operand < operands_.size()) {
      kept_from.emplace_back(true, operand);
      backward_in.push_back(in_[operand]);
      continue;
    }
    hlo::Sharding parts;
    parts.dims.resize(halves.forward->type(kept).dims.size());
    parts.dims[0].axes = axes_;
    kept_from.emplace_back(false, forward_results.size());
    forward_results.push_back(kept);
    forward_out.push_back(parts);
    backward_in.push_back(std::move(parts));
  }

  const ValueId first = outer_->append_manual(
      describe(std::move(halves.forward), std::move(forward_results), in_, std::move(forward_out)), operands_);
  Joint result;
  result.gradient = std::make_unique<ManualGradient>();
  ManualGradient& gradient = *result.gradient;
  gradient.outer_id_ = outer_->id();
  gradient.index_ = operands_[0];
  for (auto [is_operand, i] : kept_from) {
    const ValueId id = first + static_cast<ValueId>(i);
    gradient.kept_.push_back(is_operand ? operands_[i] : whole_value(id, outer_->type(id)));
  }
  gradient.manual_ = describe(std::move(halves.backward), halves.gradient_results, std::move(backward_in), shardings(gradients));
  result.results = outer_->bind_new(first, results.size());
  return result;
}

std::vector<std::shared_ptr<Storage>> ManualGradient::run(std::span<const TensorRef> cotangents) {
  Trace* outer = Trace::current();
  if (!outer || outer->id() != outer_id_)
    raise("[manual] the gradient of a manual computation must be taken in the recording that it ran in");
  std::vector<ValueView> operands{index_};
  for (const TensorRef& tensor : cotangents) operands.push_back(outer->read(tensor));
  operands.insert(operands.end(), kept_.begin(), kept_.end());
  return outer->bind_new(outer->append_manual(manual_, std::move(operands)), manual_->results.size());
}

}  // namespace flambeau::runtime
