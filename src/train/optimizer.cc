#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "spmd/plan.h"

namespace flambeau::train {
namespace {

using Tensors = std::vector<at::Tensor>;

// Columns of the matrix of numbers.
enum AdamColumn : size_t { kStepSize, kCorrection, kDecay, kOneMinusBeta1, kBeta2, kOneMinusBeta2, kEpsilon };
enum SgdColumn : size_t { kLr, kWeightDecay, kMomentum, kGradientShare };

bool of_one_group(const OptimizerTarget& target) {
  return std::ranges::all_of(target.groups, [&](size_t g) { return g == target.groups.front(); });
}

}  // namespace

std::vector<std::string> state_names(Algorithm algorithm, const std::vector<Hyperparameters>& groups) {
  if (algorithm != Algorithm::SGD) return {"exp_avg", "exp_avg_sq"};
  const bool momentum = std::ranges::any_of(groups, [](const Hyperparameters& h) { return h.momentum != 0; });
  return momentum ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

Optimizer::Optimizer(OptimizerOptions options, std::vector<Hyperparameters> groups, std::vector<OptimizerTarget> targets)
    : options_(options), groups_(std::move(groups)), targets_(std::move(targets)), row_groups_(groups_.size()) {
  std::iota(row_groups_.begin(), row_groups_.end(), size_t{0});
  for (const OptimizerTarget& target : targets_) {
    for (const size_t group : target.groups) FLAMBEAU_CHECK(group < groups_.size(), "a target's groups exist");
    if (of_one_group(target)) {
      first_row_.push_back(static_cast<int64_t>(target.groups.front()));
      continue;
    }
    FLAMBEAU_CHECK(static_cast<int64_t>(target.groups.size()) == target.tensor.size(0), "a target has one group or one a row");
    first_row_.push_back(static_cast<int64_t>(row_groups_.size()));
    row_groups_.insert(row_groups_.end(), target.groups.begin(), target.groups.end());
  }
  for (std::string& name : state_names(options_.algorithm, groups_)) {
    State& state = states_.emplace_back(State{std::move(name), {}});
    for (const OptimizerTarget& target : targets_) {
      state.tensors.push_back(spmd::zeros_like(target.tensor, options_.state_dtype));
    }
  }
}

std::vector<double> Optimizer::row(const Hyperparameters& h, double lr_factor, int64_t step) const {
  const double lr = h.lr * lr_factor, n = static_cast<double>(step);
  if (options_.algorithm == Algorithm::SGD) {
    // The first momentum is the gradient itself; without momentum there is nothing to dampen.
    const double share = step == 1 || h.momentum == 0 ? 1 : 1 - h.dampening;
    return {lr, h.weight_decay, h.momentum, share};
  }
  const double decay = options_.algorithm == Algorithm::AdamW ? 1 - lr * h.weight_decay : h.weight_decay;
  return {lr / (1 - std::pow(h.beta1, n)), std::sqrt(1 - std::pow(h.beta2, n)), decay, 1 - h.beta1, h.beta2, 1 - h.beta2, h.epsilon};
}

at::Tensor Optimizer::numbers(double lr_factor, int64_t step) const {
  std::vector<float> values;
  for (const size_t group : row_groups_) {
    for (const double number : row(groups_[group], lr_factor, step)) values.push_back(static_cast<float>(number));
  }
  return at::tensor(values, at::kFloat).view({static_cast<int64_t>(row_groups_.size()), -1});
}

// Each a scalar, or [L, 1, ...] where the target's rows differ.
Tensors Optimizer::columns(const at::Tensor& numbers, size_t i) const {
  const OptimizerTarget& target = targets_[i];
  if (of_one_group(target)) return numbers.select(0, first_row_[i]).unbind(0);
  std::vector<int64_t> shape(static_cast<size_t>(target.tensor.dim()), 1);
  shape.front() = target.tensor.size(0);
  Tensors out;
  for (const at::Tensor& column : numbers.narrow(0, first_row_[i], shape.front()).unbind(1)) out.push_back(column.reshape(shape));
  return out;
}

Tensors Optimizer::adam(const at::Tensor& p, const at::Tensor& gradient, const Tensors& states, const Tensors& n) const {
  const bool decoupled = options_.algorithm == Algorithm::AdamW;
  const at::Tensor g = decoupled ? gradient : gradient + p * n[kDecay];
  const at::Tensor m = states[0] + (g - states[0]) * n[kOneMinusBeta1];
  const at::Tensor v = states[1] * n[kBeta2] + g * g * n[kOneMinusBeta2];
  const at::Tensor decayed = decoupled ? p * n[kDecay] : p;
  return {decayed - m / (v.sqrt() / n[kCorrection] + n[kEpsilon]) * n[kStepSize], m, v};
}

Tensors Optimizer::sgd(const at::Tensor& p, const at::Tensor& gradient, const Tensors& states, const Tensors& n) const {
  const at::Tensor g = gradient + p * n[kWeightDecay];
  if (states.empty()) return {p - g * n[kLr]};
  const at::Tensor momentum = states[0] * n[kMomentum] + g * n[kGradientShare];
  const at::Tensor direction = options_.nesterov ? g + momentum * n[kMomentum] : momentum;
  return {p - direction * n[kLr], momentum};
}

void Optimizer::update(const Tensors& gradients, const at::Tensor& numbers, const at::Tensor& apply) {
  FLAMBEAU_CHECK(gradients.size() == targets_.size(), "there is one gradient a target");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const at::Tensor p = targets_[i].tensor.detach();
    Tensors old{p}, wide;
    for (const State& state : states_) {
      old.push_back(state.tensors[i]);
      wide.push_back(state.tensors[i].to(at::kFloat));
    }
    const Tensors n = columns(numbers, i);
    const Tensors next = options_.algorithm == Algorithm::SGD ? sgd(p, gradients[i], wide, n) : adam(p, gradients[i], wide, n);
    for (size_t k = 0; k < old.size(); ++k) old[k].copy_(at::where(apply, next[k].to(old[k].scalar_type()), old[k]));
  }
}

Clip clip_factor(const at::Tensor& squares, double max_norm) {
  const at::Tensor norm = squares.sum().sqrt();
  return {norm, (max_norm / (norm + 1e-6)).clamp_max(1)};
}

}  // namespace flambeau::train
