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
  const KeepPolicy* policy;
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

  // The last carry, without a gradient.
  variable_list run_forward() {
    const at::AutoGradMode disabled(false);
    const variable_list next = (*call_.body)(make_tensor(recording_.index(), {DType::S64, {}}), carry_leaves_, row_leaves_, constant_leaves_);
    const auto storages = recording_.finish(scan_refs(next));
    variable_list results;
    for (size_t i = 0; i < storages.size(); ++i) results.push_back(make_tensor(storages[i], ref_of(carry_[i]).type()));
    return results;
  }

  runtime::LoopRecording::Joint run() {
    variable_list next;
    {
      const at::AutoGradMode enabled(true);
      next = (*call_.body)(make_tensor(recording_.index(), {DType::S64, {}}), carry_leaves_, row_leaves_, constant_leaves_);
    }
    const variable_list gradients = gradients_of(next);
    variable_list gradient_next, gradient_rows;
    size_t g = 0;
    for (const at::Tensor& leaf : carry_leaves_)
      if (leaf.requires_grad()) gradient_next.push_back(gradients[g++]);
    for (const at::Tensor& leaf : row_leaves_)
      if (leaf.requires_grad()) gradient_rows.push_back(gradients[g++]);
    for (const at::Tensor& leaf : constant_leaves_) {
      if (!leaf.requires_grad()) continue;
      const at::Tensor sum = make_tensor(recording_.add_cotangent(ref_of(leaf).type()), ref_of(leaf).type());
      gradient_next.push_back(sum + gradients[g++]);
    }
    return recording_.finish_joint(scan_refs(next), scan_refs(gradient_next), scan_refs(gradient_rows), *call_.policy);
  }

 private:
  static variable_list part(const variable_list& all, size_t begin, size_t count) {
    return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(begin + count)};
  }

  // Of every leaf that wants one, in the order carry, rows, constants; zeros where the body does not use it.
  variable_list gradients_of(const variable_list& next) {
    variable_list leaves, outputs, cotangents;
    for (const auto* list : {&carry_leaves_, &row_leaves_, &constant_leaves_})
      for (const at::Tensor& leaf : *list)
        if (leaf.requires_grad()) leaves.push_back(leaf);
    for (size_t i = 0; i < carry_leaves_.size() && i < next.size(); ++i) {
      if (!carry_leaves_[i].requires_grad()) continue;
      hlo::Type type = ref_of(carry_leaves_[i]).type();
      const at::Tensor cotangent = make_tensor(recording_.add_cotangent(type), type);
      if (!next[i].requires_grad()) continue;
      outputs.push_back(next[i]);
      cotangents.push_back(cotangent);
    }
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
};

struct Scan : torch::autograd::Function<Scan> {
  // A TensorList: the one list whose elements autograd takes for inputs.
  static variable_list forward(AutogradContext* ctx, const ScanCall& call, at::TensorList inputs) {
    runtime::LoopRecording::Joint joint = BodyRecording(call, inputs.vec()).run();
    auto holder = c10::make_intrusive<GradientHolder>();
    for (size_t i = 0; i < inputs.size(); ++i) {
      holder->wanted.push_back(i < call.carry ? differentiable(inputs[i]) : inputs[i].requires_grad());
      holder->types.push_back(ref_of(inputs[i]).type());
    }
    holder->carry = call.carry;
    holder->stacked = call.stacked;
    holder->loop = std::move(joint.gradient);
    ctx->saved_data["gradient"] = c10::IValue::make_capsule(holder);
    variable_list results;
    for (size_t i = 0; i < joint.results.size(); ++i) {
      results.push_back(make_tensor(joint.results[i], holder->types[i]));
      if (!differentiable(results.back())) ctx->mark_non_differentiable({results.back()});
    }
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto holder = c10::static_intrusive_pointer_cast<GradientHolder>(ctx->saved_data["gradient"].toCapsule());
    const size_t inputs = holder->wanted.size();
    const auto zeros = [&](size_t i) {
      const hlo::Type& type = holder->types[i];
      return at::zeros(type.dims, at::TensorOptions().dtype(scalar_type_of(type.dtype)).device(tpu()));
    };
    variable_list initial;
    for (size_t i = 0; i < inputs; ++i) {
      const bool is_row = i >= holder->carry && i < holder->carry + holder->stacked;
      if (!holder->wanted[i] || is_row) continue;
      initial.push_back(i < holder->carry && gradients[i].defined() ? gradients[i] : zeros(i));
    }
    const auto storages = holder->loop->run(scan_refs(initial));
    // The loop gives the carry's and constants' gradients first, then the rows'.
    variable_list result{at::Tensor()};  // the call itself
    size_t next = 0, next_row = initial.size();
    for (size_t i = 0; i < inputs; ++i) {
      const bool is_row = i >= holder->carry && i < holder->carry + holder->stacked;
      result.push_back(holder->wanted[i] ? make_tensor(storages[is_row ? next_row++ : next++], holder->types[i]) : at::Tensor());
    }
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> scan(int64_t trip_count, const std::vector<at::Tensor>& carry, const std::vector<at::Tensor>& stacked,
                             const std::vector<at::Tensor>& constants, const ScanBody& body, const KeepPolicy& policy) {
  RECORD_FUNCTION("flambeau::scan", c10::ArrayRef<const c10::IValue>());  // its body is a function, so it cannot be an op
  for (const at::Tensor& s : stacked)
    if (s.dim() == 0 || s.size(0) != trip_count)
      raise<InvalidArgument>("[scan] expected stacked tensors of {} rows, got one of {}", trip_count, s.dim() == 0 ? 0 : s.size(0));
  if (runtime::Engine::current()) {
    variable_list inputs = carry;
    inputs.insert(inputs.end(), stacked.begin(), stacked.end());
    inputs.insert(inputs.end(), constants.begin(), constants.end());
    const ScanCall call{trip_count, carry.size(), stacked.size(), constants.size(), &body, &policy};
    const bool has_gradient =
        at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.requires_grad(); });
    return has_gradient ? Scan::apply(call, at::TensorList(inputs)) : BodyRecording(call, inputs).run_forward();
  }
  std::vector<at::Tensor> current = carry;
  for (int64_t i = 0; i < trip_count; ++i) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& s : stacked) rows.push_back(s.select(0, i));
    const c10::Device device = carry.empty() ? c10::Device(at::kCPU) : carry.front().device();
    current = body(at::full({}, i, at::TensorOptions().dtype(at::kLong).device(device)), current, rows, constants);
  }
  return current;
}

}  // namespace flambeau::device
