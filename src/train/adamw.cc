#include "train/adamw.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace flambeau::train {

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : options_(options), parameters_(std::move(parameters)) {
  for (const at::Tensor& p : parameters_) {
    exp_avg_.push_back(at::zeros(p.sizes(), p.options().requires_grad(false)));
    exp_avg_sq_.push_back(at::zeros(p.sizes(), p.options().requires_grad(false)));
  }
}

at::Tensor AdamW::scalars(double lr, int64_t step) const {
  const double n = static_cast<double>(step);
  const at::Tensor out = at::empty({3}, at::kFloat);
  float* values = out.data_ptr<float>();
  values[0] = static_cast<float>(lr / (1 - std::pow(options_.beta1, n)));
  values[1] = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, n)));
  values[2] = static_cast<float>(1 - lr * options_.weight_decay);
  return out;
}

void AdamW::update(const std::vector<at::Tensor>& gradients, const at::Tensor& scalars, const at::Tensor& apply) {
  const at::NoGradGuard no_grad;
  const at::Tensor step_size = scalars.select(0, 0), correction = scalars.select(0, 1), decay = scalars.select(0, 2);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor &p = parameters_[i], &m = exp_avg_[i], &v = exp_avg_sq_[i], &g = gradients[i];
    const at::Tensor new_m = m + (g - m) * (1 - options_.beta1);
    const at::Tensor new_v = v * options_.beta2 + g * g * (1 - options_.beta2);
    const at::Tensor new_p = p * decay - new_m / (new_v.sqrt() / correction + options_.epsilon) * step_size;
    p.copy_(at::where(apply, new_p, p));
    m.copy_(at::where(apply, new_m, m));
    v.copy_(at::where(apply, new_v, v));
  }
}

Clip clip_factor(const std::vector<at::Tensor>& gradients, double max_norm) {
  std::vector<at::Tensor> squares;
  squares.reserve(gradients.size());
  for (const at::Tensor& g : gradients) squares.push_back((g * g).sum());
  return clip_factor_of_squares(at::stack(squares), max_norm);
}

Clip clip_factor_of_squares(const at::Tensor& squares, double max_norm) {
  const at::Tensor norm = squares.sum().sqrt();
  return {norm, (max_norm / (norm + 1e-6)).clamp_max(1), squares};
}

}  // namespace flambeau::train
