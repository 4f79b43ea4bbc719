// Optimizers, written functionally so that they are part of the captured step: parameters and states are updated in place, and
// every number that the configuration or the schedule gives is an input of the program, so that none is frozen in it.
//
//   AdamW  Loshchilov and Hutter, 2019: weight decay apart from the gradient
//   Adam   Kingma and Ba, 2015: weight decay is added to the gradient
//   SGD    momentum (Nesterov's or not), dampening; weight decay is added to the gradient
//
// All as torch.optim defines them. Each group of parameters has an algorithm of its own, and states exist for the parameters whose
// algorithm needs them. Arithmetic is float32. States may be kept in bfloat16; they are then rounded stochastically once a step
// (ops/stochastic_round.cc): rounded to nearest, a mean that moves by less than 2^-9 of itself a step would never move.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::train {

enum class Algorithm { AdamW, Adam, SGD };

// What one group of parameters is updated with. AdamW and Adam look at beta1, beta2 and epsilon, SGD at momentum and dampening.
struct Hyperparameters {
  Algorithm algorithm = Algorithm::AdamW;
  double lr = 8e-4;  // before the schedule's factor
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double momentum = 0, dampening = 0;
};

struct OptimizerOptions {
  bool nesterov = false;  // of SGD
  at::ScalarType state_dtype = at::kFloat;
};

// How the states of a group's parameters are called; none where it needs none.
std::vector<std::string> state_names(const Hyperparameters& group);

// A tensor that is updated at once: one parameter, several that are fused, or stacked layers of these.
struct OptimizerTarget {
  at::Tensor tensor;
  // One for all of it, or one a cell. None: the tensor is not trained.
  std::vector<size_t> groups;
  // The shape of a grid of cells that broadcasts to the tensor's: [layers, 1, parts, 1]. Empty: rows of dimension 0.
  std::vector<int64_t> cells = {};
  // For stochastic rounding: a key for all of it, or one a row of dimension 0.
  std::vector<uint64_t> keys = {0};
};

class Optimizer {
 public:
  // States of zeros beside each target.
  Optimizer(OptimizerOptions options, std::vector<Hyperparameters> groups, std::vector<OptimizerTarget> targets);

  // What a step's program takes, on the CPU, step `step` counting from 1 and `lr_factor` being the schedule's:
  //   numbers   computed in double, float32 [rows, columns]: a row a group, and one for each cell of a target whose cells are of
  //             different groups
  //   draws     int64, where states are rounded stochastically: the step, and the targets' keys
  std::vector<at::Tensor> inputs(double lr_factor, int64_t step) const;
  std::vector<std::string> input_names() const;

  // Updates targets and states in place where `apply` (a bool scalar on the device) is true; leaves them otherwise. One gradient a
  // target, in float32, undefined for what is not trained; `inputs` on the device.
  void update(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& inputs, const at::Tensor& apply);

  // By name, as checkpoints call it ("exp_avg"): one tensor a target, of its shape; undefined where no group of the target needs it.
  struct State {
    std::string name;
    std::vector<at::Tensor> tensors;
  };
  const std::vector<State>& states() const { return states_; }

 private:
  // What one algorithm makes of a target: its next value, and those of its states.
  struct Update {
    at::Tensor value;
    std::vector<at::Tensor> states;
  };

  std::vector<double> row(const Hyperparameters& group, double lr_factor, int64_t step) const;
  std::vector<at::Tensor> columns(const at::Tensor& numbers, size_t target) const;
  // Those of the target's groups, each once.
  std::vector<Algorithm> algorithms_of(const OptimizerTarget& target) const;
  // Which of states_ the algorithm has for the target.
  std::vector<size_t> states_of(Algorithm algorithm, size_t target) const;
  void update_target(size_t target, const at::Tensor& gradient, const std::vector<at::Tensor>& inputs, const at::Tensor& apply);
  Update adam(bool decoupled, const at::Tensor& p, const at::Tensor& g, const std::vector<at::Tensor>& states,
              const std::vector<at::Tensor>& numbers) const;
  Update sgd(const at::Tensor& p, const at::Tensor& g, const std::vector<at::Tensor>& states,
             const std::vector<at::Tensor>& numbers) const;
  // A state's next value as it is kept.
  at::Tensor kept(const at::Tensor& next, size_t state, size_t target, const std::vector<at::Tensor>& inputs) const;
  bool rounds_stochastically() const { return options_.state_dtype != at::kFloat; }

  OptimizerOptions options_;
  std::vector<Hyperparameters> groups_;
  std::vector<OptimizerTarget> targets_;
  std::vector<int64_t> first_row_;  // of each target's numbers
  std::vector<int64_t> first_key_;  // of each target's keys among the draws
  std::vector<size_t> row_groups_;  // the group of each row
  size_t columns_ = 0;
  bool is_mixed_ = false;  // some target has several algorithms: the last column says whose a row is
  std::vector<State> states_;
};

// The norm of all gradients together, and the factor that brings it down to `max_norm`, as torch.nn.utils.clip_grad_norm_
// defines them: min(1, max_norm / (norm + 1e-6)). `squares` are float32 and add up to the sum of all elements' squares.
struct Clip {
  at::Tensor norm, factor;
};
Clip clip_factor(const at::Tensor& squares, double max_norm);

}  // namespace flambeau::train
