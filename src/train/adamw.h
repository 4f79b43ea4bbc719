// AdamW (Loshchilov and Hutter, 2019) with float32 states, written functionally so that it is part of the captured step.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

class AdamW {
 public:
  // States of zeros beside each parameter.
  AdamW(std::vector<at::Tensor> parameters, AdamWOptions options);

  // The numbers of one step that depend on the schedule and on the step's index (from 1), computed in double on the host:
  // a float32 tensor [3] on the CPU, {lr / (1 - beta1^step), sqrt(1 - beta2^step), 1 - lr weight_decay}. It is an input of
  // the program, so that none of them is frozen in it.
  at::Tensor scalars(double lr, int64_t step) const;

  // Updates parameters and states in place where `apply` (a bool scalar on the device) is true; leaves them otherwise.
  void update(const std::vector<at::Tensor>& gradients, const at::Tensor& scalars, const at::Tensor& apply);

  const std::vector<at::Tensor>& exp_avg() const { return exp_avg_; }
  const std::vector<at::Tensor>& exp_avg_sq() const { return exp_avg_sq_; }

 private:
  AdamWOptions options_;
  std::vector<at::Tensor> parameters_, exp_avg_, exp_avg_sq_;
};

// The norm of all gradients together, and the factor that brings it down to `max_norm`, as torch.nn.utils.clip_grad_norm_
// defines them: min(1, max_norm / (norm + 1e-6)). `squares` holds each gradient's sum of squares.
struct Clip {
  at::Tensor norm, factor, squares;
};
Clip clip_factor(const std::vector<at::Tensor>& gradients, double max_norm);
// The same from `squares`, whose sum is that of all elements' squares.
Clip clip_factor_of_squares(const at::Tensor& squares, double max_norm);

}  // namespace flambeau::train
