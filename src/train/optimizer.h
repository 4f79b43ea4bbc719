// Optimizers, written functionally so that they are part of the captured step: parameters and states are updated in place, and
// every number that the configuration or the schedule gives is an input of the program, so that none is frozen in it.
//
//   AdamW  Loshchilov and Hutter, 2019: weight decay apart from the gradient
//   Adam   Kingma and Ba, 2015: weight decay is added to the gradient
//   SGD    momentum (Nesterov's or not), dampening; weight decay is added to the gradient
//
// All as torch.optim defines them. Arithmetic is float32; states may be kept in bfloat16, rounded once a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::train {

enum class Algorithm { AdamW, Adam, SGD };

// What one group of parameters is updated with. AdamW and Adam look at beta1, beta2 and epsilon, SGD at momentum and dampening.
struct Hyperparameters {
  double lr = 8e-4;  // before the schedule's factor
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double momentum = 0, dampening = 0;
};

struct OptimizerOptions {
  Algorithm algorithm = Algorithm::AdamW;
  bool nesterov = false;
  at::ScalarType state_dtype = at::kFloat;
};

// How the states of a parameter are called, one for each; none where the groups need none.
std::vector<std::string> state_names(Algorithm algorithm, const std::vector<Hyperparameters>& groups);

// A tensor that is updated at once: one parameter, or several stacked along dimension 0.
struct OptimizerTarget {
  at::Tensor tensor;
  std::vector<size_t> groups;  // one for all of it, or one a row
};

class Optimizer {
 public:
  // States of zeros beside each target.
  Optimizer(OptimizerOptions options, std::vector<Hyperparameters> groups, std::vector<OptimizerTarget> targets);

  // The numbers of step `step` (from 1), computed in double on the host: a float32 matrix on the CPU, one row a group and one more
  // for each row of a target whose rows are of different groups. `lr_factor` is the schedule's.
  at::Tensor numbers(double lr_factor, int64_t step) const;

  // Updates targets and states in place where `apply` (a bool scalar on the device) is true; leaves them otherwise. One
  // gradient a target, in float32; `numbers` on the device.
  void update(const std::vector<at::Tensor>& gradients, const at::Tensor& numbers, const at::Tensor& apply);

  // By name, as checkpoints call it ("exp_avg"): one tensor a target, of its shape.
  struct State {
    std::string name;
    std::vector<at::Tensor> tensors;
  };
  const std::vector<State>& states() const { return states_; }

 private:
  std::vector<double> row(const Hyperparameters& group, double lr_factor, int64_t step) const;
  std::vector<at::Tensor> columns(const at::Tensor& numbers, size_t target) const;
  // The target's and its states' next values.
  std::vector<at::Tensor> adam(const at::Tensor& p, const at::Tensor& g, const std::vector<at::Tensor>& states,
                               const std::vector<at::Tensor>& numbers) const;
  std::vector<at::Tensor> sgd(const at::Tensor& p, const at::Tensor& g, const std::vector<at::Tensor>& states,
                              const std::vector<at::Tensor>& numbers) const;

  OptimizerOptions options_;
  std::vector<Hyperparameters> groups_;
  std::vector<OptimizerTarget> targets_;
  std::vector<int64_t> first_row_;  // of each target's numbers
  std::vector<size_t> row_groups_;  // the group of each row
  std::vector<State> states_;
};

// The norm of all gradients together, and the factor that brings it down to `max_norm`, as torch.nn.utils.clip_grad_norm_
// defines them: min(1, max_norm / (norm + 1e-6)). `squares` are float32 and add up to the sum of all elements' squares.
struct Clip {
  at::Tensor norm, factor;
};
Clip clip_factor(const at::Tensor& squares, double max_norm);

}  // namespace flambeau::train
