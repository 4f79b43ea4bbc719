#include "nn/norm.h"

#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/used_weight.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One function with its own derivative: composed of ops it would save five tensors of x's size and take twice the passes.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& given, const at::Tensor& value, const Weight& weight,
                            double epsilon) {
    const at::Tensor x = given.to(at::kFloat), weight_D = used_weight(ctx, value, weight.axes, at::kFloat);
    const at::Tensor scale = at::mean(x * x, {-1}, true).add(epsilon).rsqrt();
    ctx->save_for_backward({given, weight_D, scale});
    return (x * scale * weight_D).to(given.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight_D = saved[1], &scale = saved[2];
    const at::Tensor normed = saved[0].to(at::kFloat) * scale;
    const at::Tensor g = gradients[0].to(at::kFloat);
    const at::Tensor gw = g * weight_D;
    const at::Tensor dx = (gw - normed * at::mean(gw * normed, {-1}, true)) * scale;
    std::vector<int64_t> leading(static_cast<size_t>(g.dim() - 1));
    std::iota(leading.begin(), leading.end(), 0);
    const at::Tensor dw = weight_gradient(ctx, 1, [&] { return (g * normed).sum(leading); });
    return {dx.to(saved[0].scalar_type()), dw, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double epsilon) {
  return RmsNorm::apply(x, weight.value, weight, epsilon);
}

}  // namespace flambeau::nn
