#include "nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One function with its own derivative: composed of ops it would save five tensors of x's size and take twice the passes.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_ND, const at::Tensor& weight_D, double epsilon) {
    const at::Tensor x = x_ND.to(at::kFloat);
    const at::Tensor scale_N1 = at::mean(x * x, {-1}, true).add(epsilon).rsqrt();
    ctx->save_for_backward({x_ND, weight_D, scale_N1});
    return (x * scale_N1 * weight_D).to(x_ND.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight_D = saved[1], &scale_N1 = saved[2];
    const at::Tensor normed = saved[0].to(at::kFloat) * scale_N1;
    const at::Tensor g = gradients[0].to(at::kFloat);
    const at::Tensor gw = g * weight_D;
    const at::Tensor dx = (gw - normed * at::mean(gw * normed, {-1}, true)) * scale_N1;
    const at::Tensor dw = (g * normed).reshape({-1, weight_D.size(0)}).sum(0);
    return {dx.to(saved[0].scalar_type()), dw, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_ND, const at::Tensor& weight_D, double epsilon) {
  return RmsNorm::apply(x_ND, weight_D, epsilon);
}

}  // namespace flambeau::nn
