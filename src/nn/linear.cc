#include "nn/linear.h"

#include <numeric>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "device/own_ops.h"
#include "nn/used_weight.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> dims(static_cast<size_t>(end - begin));
  std::iota(dims.begin(), dims.end(), begin);
  return dims;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& value, const Weight& weight) {
    const at::Tensor used = used_weight(ctx, value, weight.axes, x.scalar_type());
    ctx->save_for_backward({x, used});
    return device::dot_general(x, used, {-1}, {-1});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &g = gradients[0];
    const int64_t leading = x.dim() - 1;
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = device::dot_general(g, weight, range(leading, g.dim()), range(0, weight.dim() - 1));
    if (ctx->needs_input_grad(1)) {
      dw = weight_gradient(ctx, device::dot_general(g, x, range(0, leading), range(0, leading), at::kFloat));
    }
    return {dx, dw, at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight) {
  const at::Tensor& w = weight.value;
  if (x.dim() < 2 || w.dim() < 2 || x.size(-1) != w.size(-1)) {
    raise<InvalidArgument>("[linear] expected x [..., I] and a weight [O..., I], got [{}] and [{}]; give both the same last dimension",
                           fmt::join(x.sizes(), ", "), fmt::join(w.sizes(), ", "));
  }
  return Linear::apply(x, w, weight);
}

}  // namespace flambeau::nn
