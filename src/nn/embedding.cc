#include "nn/embedding.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/stream_sum.h"
#include "nn/used_weight.h"
#include "spmd/manual.h"
#include "spmd/sharding_rules.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Legend: v this device's part of the vocabulary V, N tokens.

// Which tokens fall into a part of the vocabulary, and their rows there (row 0 for the others).
struct Part {
  at::Tensor rows, is_inside;

  Part(const at::Tensor& tokens, const at::Tensor& position, int64_t size) {
    const at::Tensor relative = tokens - position * size;
    is_inside = relative.ge(0).logical_and(relative.lt(size));
    rows = at::where(is_inside, relative, at::zeros({}, relative.options()));
  }
  at::Tensor or_zero(const at::Tensor& values) const {
    return at::where(is_inside.unsqueeze(-1), values, at::zeros({}, values.options()));
  }
};

hlo::Sharding token_sharding(const at::Tensor& tokens_BS) {
  return spmd::sharding_rules()->sharding_where_it_divides({"batch", "sequence"}, tokens_BS.sizes().vec());
}

at::Tensor lookup(const at::Tensor& used_VD, const at::Tensor& tokens_BS, const spmd::Axes& axes) {
  if (!spmd::can_be_manual() || spmd::sharding_rules()->parts(axes[0]) == 1) return at::embedding(used_VD, tokens_BS);
  const spmd::MeshAxes split = spmd::sharding_rules()->axes_of(axes[0]);
  const hlo::Sharding weight = spmd::sharding_rules()->gathered(axes);
  const StreamSum sum({tokens_BS.size(0), tokens_BS.size(1), used_VD.size(1)}, split);
  return spmd::manual({used_VD, tokens_BS, spmd::positions(split)},
                      {weight, token_sharding(tokens_BS), spmd::sharding_of_positions(split)}, {sum.sharding()},
                      [&](const std::vector<at::Tensor>& local) -> std::vector<at::Tensor> {
                        const Part part(local[1], local[2], local[0].size(0));
                        return {sum(part.or_zero(at::embedding(local[0], part.rows)))};
                      })[0];
}

at::Tensor table_gradient(const at::Tensor& g_BSD, const at::Tensor& tokens_BS, int64_t V, const spmd::Axes& axes) {
  const auto local_sum = [](const at::Tensor& g_ND, const at::Tensor& tokens_N, int64_t rows) {
    return at::embedding_dense_backward(g_ND, tokens_N, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
  };
  if (!spmd::can_be_manual()) return local_sum(g_BSD, tokens_BS, V);
  const hlo::Sharding stored = spmd::sharding_rules()->sharding(axes), tokens = token_sharding(tokens_BS);
  const spmd::MeshAxes &vocabulary = stored.dims[0].axes, &width = stored.dims[1].axes;
  spmd::MeshAxes summed = spmd::axes_used(tokens);
  for (const std::string& axis : width) {
    if (std::ranges::find(summed, axis) == summed.end()) return local_sum(g_BSD, tokens_BS, V);  // too few tokens to be split
    std::erase(summed, axis);
  }
  hlo::Sharding g = tokens;
  g.dims.emplace_back();
  const int64_t v = V / spmd::sharding_rules()->parts(axes[0]);
  return spmd::manual({g_BSD, tokens_BS, spmd::positions(vocabulary)}, {g, tokens, spmd::sharding_of_positions(vocabulary)}, {stored},
                      [&](const std::vector<at::Tensor>& local) -> std::vector<at::Tensor> {
                        // Each device of the width's axes takes its columns of all their tokens.
                        const at::Tensor g_Nd = spmd::all_to_all(local[0].flatten(0, 1), width, 1, 0);
                        // Sent as int32, which holds any row of a table.
                        const at::Tensor tokens_N = spmd::all_gather(local[1].flatten().to(at::kInt), width, 0).to(at::kLong);
                        if (vocabulary.empty()) return {spmd::all_reduce_sum(local_sum(g_Nd, tokens_N, v), summed)};
                        const Part part(tokens_N, local[2], v);
                        return {spmd::all_reduce_sum(local_sum(part.or_zero(g_Nd), part.rows, v), summed)};
                      })[0];
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& value, const at::Tensor& tokens, const Weight& weight,
                            at::ScalarType dtype) {
    ctx->save_for_backward({tokens});
    ctx->saved_data["rows"] = value.size(0);
    return lookup(used_weight(ctx, value, weight.axes, dtype), tokens, weight.axes);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor dw = table_gradient(gradients[0].to(at::kFloat), ctx->get_saved_variables()[0], ctx->saved_data["rows"].toInt(),
                                         ctx->saved_data["axes"].to<spmd::Axes>());
    return {as_stored(ctx, dw), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& tokens_BS, const Weight& weight, at::ScalarType dtype) {
  return Embedding::apply(weight.value, tokens_BS, weight, dtype);
}

}  // namespace flambeau::nn
