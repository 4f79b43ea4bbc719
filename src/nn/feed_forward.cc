#include "nn/feed_forward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_N2F) {
    ctx->save_for_backward({x_N2F});
    return at::silu(x_N2F.select(1, 0)) * x_N2F.select(1, 1);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor x_N2F = ctx->get_saved_variables()[0];
    const at::Tensor gate = x_N2F.select(1, 0), up = x_N2F.select(1, 1), &g = gradients[0];
    const at::Tensor sigmoid = at::sigmoid(gate);
    const at::Tensor silu = gate * sigmoid;
    // silu' = sigmoid (1 + gate (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
    return {at::stack({g * up * (sigmoid + silu * (1 - sigmoid)), g * silu}, 1)};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& x_N2F) { return Swiglu::apply(x_N2F); }

}  // namespace flambeau::nn
