#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include "base/error.h"
#include "device/own_ops.h"
#include "spmd/sharding_rules.h"

namespace flambeau::train {
namespace {

using Tensors = std::vector<at::Tensor>;

// Columns of the matrix of numbers.
enum AdamColumn : size_t { kStepSize, kCorrection, kDecay, kOneMinusBeta1, kBeta2, kOneMinusBeta2, kEpsilon };
enum SgdColumn : size_t { kLr, kWeightDecay, kMomentum, kGradientShare };

size_t column_count(Algorithm algorithm) { return algorithm == Algorithm::SGD ? kGradientShare + 1 : kEpsilon + 1; }

bool of_one_group(const OptimizerTarget& target) {
  return std::ranges::all_of(target.groups, [&](size_t g) { return g == target.groups.front(); });
}

std::vector<int64_t> grid_of(const OptimizerTarget& target) {
  if (!target.cells.empty()) return target.cells;
  std::vector<int64_t> rows(static_cast<size_t>(target.tensor.dim()), 1);
  rows.front() = target.tensor.size(0);
  return rows;
}

}  // namespace

std::vector<std::string> state_names(const Hyperparameters& group) {
  if (group.algorithm != Algorithm::SGD) return {"exp_avg", "exp_avg_sq"};
  return group.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

Optimizer::Optimizer(OptimizerOptions options, std::vector<Hyperparameters> groups, std::vector<OptimizerTarget> targets)
    : options_(options), groups_(std::move(groups)), targets_(std::move(targets)), row_groups_(groups_.size()) {
  std::iota(row_groups_.begin(), row_groups_.end(), size_t{0});
  int64_t keys = 0;
  for (const OptimizerTarget& target : targets_) {
    for (const size_t group : target.groups) FLAMBEAU_CHECK(group < groups_.size(), "a target's groups exist");
    first_key_.push_back(keys);
    keys += std::ssize(target.keys);
    if (of_one_group(target)) {
      first_row_.push_back(target.groups.empty() ? 0 : static_cast<int64_t>(target.groups.front()));
      continue;
    }
    FLAMBEAU_CHECK(std::ssize(target.groups) == c10::multiply_integers(grid_of(target)), "a target has one group or one a cell");
    first_row_.push_back(static_cast<int64_t>(row_groups_.size()));
    row_groups_.insert(row_groups_.end(), target.groups.begin(), target.groups.end());
    is_mixed_ = is_mixed_ || algorithms_of(target).size() > 1;
  }
  for (const Hyperparameters& group : groups_) columns_ = std::max(columns_, column_count(group.algorithm));
  for (const char* name : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) {
    State state{name, {}};
    for (const OptimizerTarget& target : targets_) {
      const bool needed = std::ranges::any_of(target.groups, [&](size_t g) {
        const std::vector<std::string> names = state_names(groups_[g]);
        return std::ranges::find(names, name) != names.end();
      });
      state.tensors.push_back(needed ? spmd::zeros_like(target.tensor, options_.state_dtype) : at::Tensor());
    }
    if (std::ranges::any_of(state.tensors, &at::Tensor::defined)) states_.push_back(std::move(state));
  }
}

// ---- numbers ----------------------------------------------------------------------------------------------------------------

std::vector<double> Optimizer::row(const Hyperparameters& h, double lr_factor, int64_t step) const {
  const double lr = h.lr * lr_factor, n = static_cast<double>(step);
  if (h.algorithm == Algorithm::SGD) {
    // The first momentum is the gradient itself; without momentum there is nothing to dampen.
    const double share = step == 1 || h.momentum == 0 ? 1 : 1 - h.dampening;
    return {lr, h.weight_decay, h.momentum, share};
  }
  const double decay = h.algorithm == Algorithm::AdamW ? 1 - lr * h.weight_decay : h.weight_decay;
  return {lr / (1 - std::pow(h.beta1, n)), std::sqrt(1 - std::pow(h.beta2, n)), decay, 1 - h.beta1, h.beta2, 1 - h.beta2, h.epsilon};
}

Tensors Optimizer::inputs(double lr_factor, int64_t step) const {
  std::vector<float> values;
  for (const size_t group : row_groups_) {
    std::vector<double> numbers = row(groups_[group], lr_factor, step);
    numbers.resize(columns_);
    if (is_mixed_) numbers.push_back(static_cast<double>(groups_[group].algorithm));
    for (const double number : numbers) values.push_back(static_cast<float>(number));
  }
  Tensors out{at::tensor(values, at::kFloat).view({static_cast<int64_t>(row_groups_.size()), -1})};
  if (!rounds_stochastically()) return out;
  std::vector<int64_t> draws{step};
  for (const OptimizerTarget& target : targets_)
    for (const uint64_t key : target.keys) draws.push_back(static_cast<int64_t>(key));
  out.push_back(at::tensor(draws, at::kLong));
  return out;
}

std::vector<std::string> Optimizer::input_names() const {
  std::vector<std::string> names{"the optimizer's numbers"};
  if (rounds_stochastically()) names.emplace_back("the optimizer's random keys");
  return names;
}

// Each a scalar, or of the grid's shape where the target's cells differ.
Tensors Optimizer::columns(const at::Tensor& numbers, size_t i) const {
  const OptimizerTarget& target = targets_[i];
  if (of_one_group(target)) return numbers.select(0, first_row_[i]).unbind(0);
  const std::vector<int64_t> grid = grid_of(target);
  Tensors out;
  for (const at::Tensor& column : numbers.narrow(0, first_row_[i], c10::multiply_integers(grid)).unbind(1)) out.push_back(column.reshape(grid));
  return out;
}

// ---- updates ----------------------------------------------------------------------------------------------------------------

std::vector<Algorithm> Optimizer::algorithms_of(const OptimizerTarget& target) const {
  std::vector<Algorithm> out;
  for (const size_t group : target.groups) {
    if (std::ranges::find(out, groups_[group].algorithm) == out.end()) out.push_back(groups_[group].algorithm);
  }
  return out;
}

std::vector<size_t> Optimizer::states_of(Algorithm algorithm, size_t target) const {
  const std::vector<std::string> names = state_names({.algorithm = algorithm, .momentum = 1});
  std::vector<size_t> out;
  for (size_t s = 0; s < states_.size(); ++s) {
    if (states_[s].tensors[target].defined() && std::ranges::find(names, states_[s].name) != names.end()) out.push_back(s);
  }
  return out;
}

Optimizer::Update Optimizer::adam(bool decoupled, const at::Tensor& p, const at::Tensor& gradient, const Tensors& states,
                                  const Tensors& n) const {
  const at::Tensor g = decoupled ? gradient : gradient + p * n[kDecay];
  const at::Tensor m = states[0] + (g - states[0]) * n[kOneMinusBeta1];
  const at::Tensor v = states[1] * n[kBeta2] + g * g * n[kOneMinusBeta2];
  const at::Tensor decayed = decoupled ? p * n[kDecay] : p;
  return {decayed - m / (v.sqrt() / n[kCorrection] + n[kEpsilon]) * n[kStepSize], {m, v}};
}

Optimizer::Update Optimizer::sgd(const at::Tensor& p, const at::Tensor& gradient, const Tensors& states, const Tensors& n) const {
  const at::Tensor g = gradient + p * n[kWeightDecay];
  if (states.empty()) return {p - g * n[kLr], {}};
  const at::Tensor momentum = states[0] * n[kMomentum] + g * n[kGradientShare];
  const at::Tensor direction = options_.nesterov ? g + momentum * n[kMomentum] : momentum;
  return {p - direction * n[kLr], {momentum}};
}

at::Tensor Optimizer::kept(const at::Tensor& next, size_t state, size_t target, const Tensors& inputs) const {
  if (!rounds_stochastically()) return next;
  const at::Tensor& draws = inputs.at(1);
  const at::Tensor keys = draws.narrow(0, 1 + first_key_[target], std::ssize(targets_[target].keys));
  return device::stochastic_round(next, draws.select(0, 0), keys, static_cast<int64_t>(state));
}

void Optimizer::update_target(size_t i, const at::Tensor& gradient, const Tensors& inputs, const at::Tensor& apply) {
  const at::Tensor p = targets_[i].tensor.detach();
  const Tensors n = columns(inputs.at(0), i);
  const std::vector<Algorithm> algorithms = algorithms_of(targets_[i]);
  at::Tensor value = p;
  std::vector<std::pair<size_t, at::Tensor>> next;  // by index into states_
  for (const Algorithm algorithm : algorithms) {
    const std::vector<size_t> indices = states_of(algorithm, i);
    Tensors states;
    for (const size_t s : indices) states.push_back(states_[s].tensors[i].to(at::kFloat));
    Update update = algorithm == Algorithm::SGD ? sgd(p, gradient, states, n)
                                                : adam(algorithm == Algorithm::AdamW, p, gradient, states, n);
    if (algorithms.size() > 1) {  // each to its own cells
      const at::Tensor is_own = n.back().eq(static_cast<int64_t>(algorithm));
      update.value = at::where(is_own, update.value, value);
      for (size_t k = 0; k < indices.size(); ++k) {
        const auto before = std::ranges::find(next, indices[k], &std::pair<size_t, at::Tensor>::first);
        update.states[k] = at::where(is_own, update.states[k], before == next.end() ? states[k] : before->second);
        if (before != next.end()) next.erase(before);
      }
    }
    value = update.value;
    for (size_t k = 0; k < indices.size(); ++k) next.emplace_back(indices[k], update.states[k]);
  }
  p.copy_(at::where(apply, value, p));
  for (const auto& [s, state] : next) {
    const at::Tensor& old = states_[s].tensors[i];
    old.copy_(at::where(apply, kept(state, s, i, inputs), old));
  }
}

void Optimizer::update(const Tensors& gradients, const Tensors& inputs, const at::Tensor& apply) {
  FLAMBEAU_CHECK(gradients.size() == targets_.size(), "there is one gradient a target");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (!targets_[i].groups.empty()) update_target(i, gradients[i], inputs, apply);
  }
}

Clip clip_factor(const at::Tensor& squares, double max_norm) {
  const at::Tensor norm = squares.sum().sqrt();
  return {norm, (max_norm / (norm + 1e-6)).clamp_max(1)};
}

}  // namespace flambeau::train
