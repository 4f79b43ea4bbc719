#include "device/scan.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "device/device.h"
#include "runtime/loop_recording.h"

namespace flambeau::device {
namespace {

using runtime::TensorRef;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<TensorRef> scan_refs(const variable_list& tensors) { return refs_of(tensors, "what a scan is given and gives"); }

bool differentiable(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

// What a scan is called with, and what its gradient needs to know of that.
struct ScanCall {
  int64_t trip_count;
  size_t carry, stacked, constants;
  const ScanBody* body;
  const CheckpointPolicy* policy;
};

// One recording of the body: leaves that stand for its inputs, and the gradient with respect to them.
class BodyRecording {
 public:
  BodyRecording(const ScanCall& call, const variable_list& inputs)
      : call_(call), carry_(part(inputs, 0, call.carry)), stacked_(part(inputs, call.carry, call.stacked)),
        constants_(part(inputs, call.carry + call.stacked, call.constants)),
        recording_(call.trip_count, scan_refs(carry_), scan_refs(stacked_)) {
    for (size_t i = 0; i < carry_.size(); ++i)
      carry_leaves_.push_back(make_tensor(recording_.carry()[i], ref_of(carry_[i]).type()).requires_grad_(differentiable(carry_[i])));
    for (size_t i = 0; i < stacked_.size(); ++i) {
      hlo::Type type = ref_of(stacked_[i]).type();
      type.dims.erase(type.dims.begin());
      row_leaves_.push_back(make_tensor(recording_.rows()[i], type).requires_grad_(stacked_[i].requires_grad()));
    }
    for (const at::Tensor& c : constants_) constant_leaves_.push_back(c.detach().requires_grad_(c.requires_grad()));
  }

  // The last carry and the outputs, without a gradient.
  variable_list run_forward() {
    const at::AutoGradMode disabled(false);
    const ScanValues values = run_body();
    return results_of(recording_.finish(scan_refs(values.carry), scan_refs(values.outputs)), values);
  }

  struct Joint {
    variable_list results;  // the last carry, then the outputs
    std::vector<bool> differentiable;  // of the results
    std::unique_ptr<runtime::GradientLoop> gradient;
  };

  Joint run() {
    ScanValues values;
    {
      const at::AutoGradMode enabled(true);
      values = run_body();
    }
    Joint joint;
    for (const at::Tensor& leaf : carry_leaves_) joint.differentiable.push_back(leaf.requires_grad());
    for (const at::Tensor& output : values.outputs) joint.differentiable.push_back(output.requires_grad());

    // The carry's cotangents, sums of the constants' gradients, the outputs' cotangents.
    variable_list outputs, cotangents, sums;
    for (size_t i = 0; i < carry_leaves_.size() && i < values.carry.size(); ++i) {
      if (!carry_leaves_[i].requires_grad()) continue;
      const at::Tensor cotangent = input_like(carry_leaves_[i], &runtime::LoopRecording::add_cotangent);
      if (!values.carry[i].requires_grad()) continue;
      outputs.push_back(values.carry[i]);
      cotangents.push_back(cotangent);
    }
    for (const at::Tensor& leaf : constant_leaves_)
      if (leaf.requires_grad()) sums.push_back(input_like(leaf, &runtime::LoopRecording::add_cotangent));
    for (const at::Tensor& output : values.outputs) {
      if (!output.requires_grad()) continue;
      outputs.push_back(output);
      cotangents.push_back(input_like(output, &runtime::LoopRecording::add_output_cotangent));
    }

    const variable_list gradients = gradients_of(outputs, cotangents);
    variable_list gradient_next, gradient_rows;
    size_t g = 0;
    for (const at::Tensor& leaf : carry_leaves_)
      if (leaf.requires_grad()) gradient_next.push_back(gradients[g++]);
    for (const at::Tensor& leaf : row_leaves_)
      if (leaf.requires_grad()) gradient_rows.push_back(gradients[g++]);
    for (const at::Tensor& sum : sums) gradient_next.push_back(sum + gradients[g++]);
    auto loops = recording_.finish_joint(scan_refs(values.carry), scan_refs(values.outputs), scan_refs(gradient_next),
                                         scan_refs(gradient_rows), *call_.policy);
    joint.results = results_of(loops.results, values);
    joint.gradient = std::move(loops.gradient);
    return joint;
  }

 private:
  static variable_list part(const variable_list& all, size_t begin, size_t count) {
    return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(begin + count)};
  }

  ScanValues run_body() const {
    return (*call_.body)(make_tensor(recording_.index(), {DType::S64, {}}), carry_leaves_, row_leaves_, constant_leaves_);
  }

  at::Tensor input_like(const at::Tensor& tensor, std::shared_ptr<runtime::Storage> (runtime::LoopRecording::*add)(const hlo::Type&)) {
    const hlo::Type type = ref_of(tensor).type();
    return make_tensor((recording_.*add)(type), type);
  }

  variable_list results_of(const std::vector<std::shared_ptr<runtime::Storage>>& storages, const ScanValues& values) const {
    variable_list results;
    for (size_t i = 0; i < carry_.size(); ++i) results.push_back(make_tensor(storages[i], ref_of(carry_[i]).type()));
    for (size_t i = 0; i < values.outputs.size(); ++i) {
      hlo::Type type = ref_of(values.outputs[i]).type();
      type.dims.insert(type.dims.begin(), call_.trip_count);
      results.push_back(make_tensor(storages[carry_.size() + i], type));
    }
    return results;
  }

  // Of every leaf that wants one, in the order carry, rows, constants; zeros where the body does not use it.
  variable_list gradients_of(const variable_list& outputs, const variable_list& cotangents) const {
    variable_list leaves;
    for (const auto* list : {&carry_leaves_, &row_leaves_, &constant_leaves_})
      for (const at::Tensor& leaf : *list)
        if (leaf.requires_grad()) leaves.push_back(leaf);
    variable_list gradients(leaves.size());
    if (!outputs.empty() && !leaves.empty())
      gradients = torch::autograd::grad(outputs, leaves, cotangents, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves.size(); ++i)
      if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]).detach();
    return gradients;
  }

  const ScanCall& call_;
  variable_list carry_, stacked_, constants_, carry_leaves_, row_leaves_, constant_leaves_;
  runtime::LoopRecording recording_;
};

struct GradientHolder : torch::CustomClassHolder {
  std::unique_ptr<runtime::GradientLoop> loop;
  std::vector<bool> wanted;  // of each input
  std::vector<hlo::Type> types;
  size_t carry = 0, stacked = 0;
  std::vector<bool> differentiable;  // of each result
  std::vector<hlo::Type> result_types;

  bool is_row(size_t input) const { return input >= carry && input < carry + stacked; }
};

struct Scan : torch::autograd::Function<Scan> {
  // A TensorList: the one list whose elements autograd takes for inputs.
  static variable_list forward(AutogradContext* ctx, const ScanCall& call, at::TensorList inputs) {
    BodyRecording::Joint joint = BodyRecording(call, inputs.vec()).run();
    auto holder = c10::make_intrusive<GradientHolder>();
    for (size_t i = 0; i < inputs.size(); ++i) {
      holder->wanted.push_back(i < call.carry ? differentiable(inputs[i]) : inputs[i].requires_grad());
      holder->types.push_back(ref_of(inputs[i]).type());
    }
    holder->carry = call.carry;
    holder->stacked = call.stacked;
    holder->loop = std::move(joint.gradient);
    holder->differentiable = std::move(joint.differentiable);
    variable_list constants;
    for (size_t i = 0; i < joint.results.size(); ++i) {
      holder->result_types.push_back(ref_of(joint.results[i]).type());
      if (!holder->differentiable[i]) constants.push_back(joint.results[i]);
    }
    ctx->mark_non_differentiable(constants);
    ctx->saved_data["gradient"] = c10::IValue::make_capsule(holder);
    return joint.results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto holder = c10::static_intrusive_pointer_cast<GradientHolder>(ctx->saved_data["gradient"].toCapsule());
    const size_t inputs = holder->wanted.size();
    const auto zeros = [](const hlo::Type& type) {
      return at::zeros(type.dims, at::TensorOptions().dtype(scalar_type_of(type.dtype)).device(tpu()));
    };
    variable_list initial, of_outputs;
    for (size_t i = 0; i < inputs; ++i) {
      if (!holder->wanted[i] || holder->is_row(i)) continue;
      initial.push_back(i < holder->carry && gradients[i].defined() ? gradients[i] : zeros(holder->types[i]));
    }
    for (size_t i = holder->carry; i < gradients.size(); ++i)
      if (holder->differentiable[i]) of_outputs.push_back(gradients[i].defined() ? gradients[i] : zeros(holder->result_types[i]));
    const auto storages = holder->loop->run(scan_refs(initial), scan_refs(of_outputs));
    // The loop gives the carry's and constants' gradients first, then the rows'.
    variable_list result{at::Tensor()};  // the call itself
    size_t next = 0, next_row = initial.size();
    for (size_t i = 0; i < inputs; ++i)
      result.push_back(holder->wanted[i] ? make_tensor(storages[holder->is_row(i) ? next_row++ : next++], holder->types[i]) : at::Tensor());
    return result;
  }
};

// One iteration after another.
ScanValues plain_loop(int64_t trip_count, const variable_list& carry, const variable_list& stacked, const variable_list& constants,
                      const ScanBody& body) {
  const c10::Device device = carry.empty() ? c10::Device(at::kCPU) : carry.front().device();
  ScanValues last{carry};
  std::vector<variable_list> outputs;  // of each, the iterations'
  for (int64_t i = 0; i < trip_count; ++i) {
    variable_list rows;
    for (const at::Tensor& s : stacked) rows.push_back(s.select(0, i));
    last = body(at::full({}, i, at::TensorOptions().dtype(at::kLong).device(device)), last.carry, rows, constants);
    if (i == 0) outputs.resize(last.outputs.size());
    if (last.outputs.size() != outputs.size())
      raise<InvalidArgument>("[scan] expected {} outputs of each iteration, as the first gave, got {}; give as many in every iteration", outputs.size(), last.outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) outputs[k].push_back(last.outputs[k]);
  }
  last.outputs.clear();
  for (const variable_list& output : outputs) last.outputs.push_back(at::stack(output));
  return last;
}

}  // namespace

ScanValues scan(int64_t trip_count, const std::vector<at::Tensor>& carry, const std::vector<at::Tensor>& stacked,
                const std::vector<at::Tensor>& constants, const ScanBody& body, const CheckpointPolicy& policy) {
  if (trip_count < 1) raise<InvalidArgument>("[scan] expected at least one iteration, got {}; leave the call out where there is nothing to run", trip_count);
  RECORD_FUNCTION("flambeau::scan", c10::ArrayRef<const c10::IValue>());  // its body is a function, so it cannot be an op
  for (const at::Tensor& s : stacked)
    if (s.dim() == 0 || s.size(0) != trip_count)
      raise<InvalidArgument>("[scan] expected stacked tensors of {} rows, got one of {}", trip_count, s.dim() == 0 ? 0 : s.size(0));
  if (!runtime::Engine::current()) return plain_loop(trip_count, carry, stacked, constants, body);
  variable_list inputs = carry;
  inputs.insert(inputs.end(), stacked.begin(), stacked.end());
  inputs.insert(inputs.end(), constants.begin(), constants.end());
  const ScanCall call{trip_count, carry.size(), stacked.size(), constants.size(), &body, &policy};
  const bool has_gradient =
      at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.requires_grad(); });
  variable_list results = has_gradient ? Scan::apply(call, at::TensorList(inputs)) : BodyRecording(call, inputs).run_forward();
  const auto outputs = results.begin() + static_cast<std::ptrdiff_t>(carry.size());
  return {{results.begin(), outputs}, {outputs, results.end()}};
}

}  // namespace flambeau::device
