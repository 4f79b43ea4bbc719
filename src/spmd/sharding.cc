#include "spmd/sharding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "device/device.h"
#include "runtime/internal_ops.h"
#include "spmd/manual.h"
#include "spmd/sharding_rules.h"

namespace flambeau::spmd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call(const ops::Row& row, const at::Tensor& x, const hlo::Sharding& sharding) {
  runtime::check_divides(sharding_rules()->mesh(), sharding, device::ref_of(x).type());
  runtime::CallArgument arguments[] = {device::ref_of(x), runtime::encode_sharding(sharding)};
  return device::call(row, arguments);
}

void check_rank(const at::Tensor& x, const Axes& axes) {
  if (static_cast<size_t>(x.dim()) != axes.size())
    raise<InvalidArgument>("[sharding] expected one logical axis a dimension, got {} for a tensor of {} dimensions", axes.size(), x.dim());
}

bool applies(const at::Tensor& x, const Axes& axes) {
  if (!sharding_rules() || !device::is_tpu(x)) return false;
  check_rank(x, axes);
  return x.numel() > 0;
}

struct Hint : torch::autograd::Function<Hint> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Axes& axes, const Axes& gradient_axes) {
    ctx->saved_data["axes"] = gradient_axes;
    return call(runtime::kShardHint, x, sharding_rules()->sharding_where_it_divides(axes, x.sizes().vec()));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {shard_hint(gradients[0], ctx->saved_data["axes"].to<Axes>()), at::Tensor(), at::Tensor()};
  }
};

struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const Axes& axes) {
    ctx->saved_data["axes"] = axes;
    return call(runtime::kGatherWeight, weight, sharding_rules()->gathered(axes));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {shard_hint(gradients[0], ctx->saved_data["axes"].to<Axes>()), at::Tensor()};
  }
};

}  // namespace

at::Tensor shard_hint(const at::Tensor& x, const Axes& axes) { return shard_hint(x, axes, axes); }

at::Tensor shard_hint(const at::Tensor& x, const Axes& axes, const Axes& gradient_axes) {
  return applies(x, axes) ? Hint::apply(x, axes, gradient_axes) : x;
}

at::Tensor gather_weight(const at::Tensor& weight, const Axes& axes) {
  return applies(weight, axes) ? Gather::apply(weight, axes) : weight;
}

}  // namespace flambeau::spmd
