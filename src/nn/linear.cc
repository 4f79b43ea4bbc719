#include "nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& weight) { return weight.reshape({-1, weight.size(-1)}); }

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_NI, const at::Tensor& weight) {
    ctx->save_for_backward({x_NI, weight});
    return x_NI.mm(as_matrix(weight).to(x_NI.scalar_type()).t());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x_NI = saved[0], &weight = saved[1], &g_NO = gradients[0];
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = g_NO.mm(as_matrix(weight).to(g_NO.scalar_type()));
    // In the weight's own dtype: rounding to bfloat16 before gradients are summed over devices would lose bits.
    if (ctx->needs_input_grad(1)) {
      dw = g_NO.to(weight.scalar_type()).t().mm(x_NI.to(weight.scalar_type())).reshape(weight.sizes());
    }
    return {dx, dw};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x_NI, const at::Tensor& weight) {
  if (x_NI.dim() != 2 || weight.dim() < 2 || x_NI.size(1) != weight.size(-1)) {
    raise<InvalidArgument>("[linear] expected x [N, I] and a weight [..., I], got {} and {} dimensions with {} and {} "
                           "columns; flatten the input to [tokens, features]",
                           x_NI.dim(), weight.dim(), x_NI.size(-1), weight.size(-1));
  }
  return Linear::apply(x_NI, weight);
}

}  // namespace flambeau::nn
