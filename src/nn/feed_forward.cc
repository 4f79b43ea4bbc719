#include "nn/feed_forward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return at::silu(x.select(-2, 0)) * x.select(-2, 1);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor gate = x.select(-2, 0), up = x.select(-2, 1), &g = gradients[0];
    const at::Tensor sigmoid = at::sigmoid(gate);
    const at::Tensor silu = gate * sigmoid;
    // silu' = sigmoid (1 + gate (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
    return {at::stack({g * up * (sigmoid + silu * (1 - sigmoid)), g * silu}, -2)};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& x) { return Swiglu::apply(x); }

}  // namespace flambeau::nn
