#include "nn/loss.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "device/capture.h"
#include "device/own_ops.h"
#include "nn/stream_sum.h"
#include "nn/used_weight.h"
#include "spmd/manual.h"
#include "spmd/sharding_rules.h"
#include "spmd/sharding.h"
#include "spmd/optimization_barrier.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;

// Legend: B batch, S sequence, C pieces of c tokens each, D width, V vocabulary.

// float32, or float64 where x is.
at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

struct Problem {
  at::Tensor weight_VD;  // in x's dtype
  at::Tensor divisor;
  LossOptions options;
  bool gradients = false, weight_gradient = false;  // the second only with the first, where the head is trained
  // Within a manual computation V is this device's part: the axes that split the vocabulary, and where the part begins.
  spmd::MeshAxes vocabulary = {};
  at::Tensor first = {};

  // Parts of a sum over devices are rounded after it, not before.
  at::ScalarType dx_type(const at::Tensor& x) const { return vocabulary.empty() ? x.scalar_type() : wide(x); }
};

struct Piece {
  at::Tensor loss, z;    // sums
  at::Tensor dx_BcD, dw_VD;  // as the problem asks for them
};

struct TokenValues {
  at::Tensor lse_Bc;    // log of the sum of exp(logit)
  at::Tensor label_Bc;  // the logit of the label
};

at::Tensor label_logits(const at::Tensor& logits_BcV, const at::Tensor& labels_Bc, const at::Tensor& is_label_BcV, LabelLookup lookup) {
  if (lookup == LabelLookup::Mask) return at::where(is_label_BcV, logits_BcV, at::zeros({}, logits_BcV.options())).sum(-1);
  const at::Tensor readable = at::where(labels_Bc.eq(kIgnoredLabel), at::zeros({}, labels_Bc.options()), labels_Bc);
  return logits_BcV.gather(-1, readable.unsqueeze(-1)).squeeze(-1);
}

// Where the vocabulary is split: the largest logit is agreed on, then both sums travel together.
TokenValues token_values(const at::Tensor& logits_BcV, const at::Tensor& labels_Bc, const at::Tensor& is_label_BcV, const Problem& p) {
  if (p.vocabulary.empty()) {
    return {at::logsumexp(logits_BcV, -1), label_logits(logits_BcV, labels_Bc, is_label_BcV, *p.options.lookup)};
  }
  const at::Tensor largest_Bc = spmd::all_reduce_max(logits_BcV.amax(-1), p.vocabulary);
  const at::Tensor exp_Bc = (logits_BcV - largest_Bc.unsqueeze(-1)).exp().sum(-1);
  const at::Tensor label_Bc = label_logits(logits_BcV, labels_Bc, is_label_BcV, LabelLookup::Mask);
  const at::Tensor sums = spmd::all_reduce_sum(at::stack({exp_Bc, label_Bc}), p.vocabulary);
  return {largest_Bc + sums.select(0, 0).log(), sums.select(0, 1)};
}

Piece piece_of(const at::Tensor& x_BcD, const at::Tensor& labels_Bc, const Problem& p) {
  const at::Tensor logits_BcV =
      spmd::shard_hint(device::dot_general(x_BcD, p.weight_VD, {2}, {1}, wide(x_BcD)), {"batch", "sequence", "vocab"});
  at::Tensor tokens_V = at::arange(p.weight_VD.size(0), labels_Bc.options());
  if (p.first.defined()) tokens_V = tokens_V + p.first;
  const at::Tensor is_label_BcV = tokens_V.eq(labels_Bc.unsqueeze(-1));
  const at::Tensor share_Bc = labels_Bc.ne(kIgnoredLabel).to(logits_BcV.scalar_type()) / p.divisor;
  const auto [lse_Bc, label_Bc] = token_values(logits_BcV, labels_Bc, is_label_BcV, p);
  const double z_loss = p.options.z_loss;

  Piece out;
  out.loss = ((lse_Bc - label_Bc) * share_Bc).sum();
  out.z = z_loss == 0 ? at::zeros_like(out.loss) : (lse_Bc.square() * share_Bc).sum() * z_loss;
  if (z_loss != 0) out.loss = out.loss + out.z;
  if (!p.gradients) return out;
  const at::Tensor softmax_BcV = (logits_BcV - lse_Bc.unsqueeze(-1)).exp();
  const at::Tensor pull_Bc = z_loss == 0 ? share_Bc : share_Bc * (1 + 2 * z_loss * lse_Bc);
  const at::Tensor wide_dlogits_BcV =
      softmax_BcV * pull_Bc.unsqueeze(-1) - is_label_BcV.to(logits_BcV.scalar_type()) * share_Bc.unsqueeze(-1);
  const at::Tensor dlogits_BcV = wide_dlogits_BcV.to(x_BcD.scalar_type());
  out.dx_BcD = device::dot_general(dlogits_BcV, p.weight_VD, {2}, {0}, p.dx_type(x_BcD));
  if (p.weight_gradient) out.dw_VD = device::dot_general(dlogits_BcV, x_BcD, {0, 1}, {0, 1}, wide(x_BcD));
  return out;
}

// [loss, z], and behind them [dx, dw] as the problem asks for them.
Tensors all_pieces(const at::Tensor& x_BSD, const at::Tensor& labels_BS, const Problem& p) {
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), D = x_BSD.size(2);
  const int64_t c = (S + p.options.chunks - 1) / p.options.chunks, C = S / c;
  if (c == S) {
    const Piece all = piece_of(x_BSD, labels_BS, p);
    Tensors results{all.loss, all.z};
    if (p.gradients) results.push_back(all.dx_BcD);
    if (p.weight_gradient) results.push_back(all.dw_VD);
    return results;
  }

  const at::Tensor x_BCcD = x_BSD.narrow(1, 0, C * c).reshape({B, C, c, D});
  const at::Tensor labels_BCc = labels_BS.narrow(1, 0, C * c).reshape({B, C, c});
  const at::TensorOptions options = x_BSD.options().dtype(wide(x_BSD)).requires_grad(false);
  Tensors sums{at::zeros({}, options), at::zeros({}, options)};
  if (p.gradients) sums.push_back(at::zeros({B, C, c, D}, options.dtype(p.dx_type(x_BSD))));
  if (p.weight_gradient) sums.push_back(at::zeros(p.weight_VD.sizes(), options));
  sums = device::loop(C, std::move(sums), [&](const at::Tensor& i, const Tensors& carry) {
    const at::Tensor at = i.reshape({1});
    const Piece piece = piece_of(x_BCcD.index_select(1, at).squeeze(1), labels_BCc.index_select(1, at).squeeze(1), p);
    Tensors next{carry[0] + piece.loss, carry[1] + piece.z};
    if (p.gradients) next.push_back(carry[2].index_copy(1, at, piece.dx_BcD.unsqueeze(1)));
    if (p.weight_gradient) next.push_back(carry[3] + piece.dw_VD);
    return next;
  });
  if (p.gradients) sums[2] = sums[2].view({B, C * c, D});
  if (C * c < S) {
    const Piece tail = piece_of(x_BSD.narrow(1, C * c, S - C * c), labels_BS.narrow(1, C * c, S - C * c), p);
    sums[0] = sums[0] + tail.loss;
    sums[1] = sums[1] + tail.z;
    if (p.gradients) sums[2] = at::cat({sums[2], tail.dx_BcD}, 1);
    if (p.weight_gradient) sums[3] = sums[3] + tail.dw_VD;
  }
  return sums;
}

// The same on a mesh: each device goes through the pieces of its own tokens and its part of the vocabulary, so that what is summed
// over devices (the head's gradient above all) is summed once and not for every piece.
Tensors all_pieces_on_mesh(const at::Tensor& x_BSD, const at::Tensor& labels_BS, const Problem& problem, const Weight& head) {
  const spmd::ShardingRules& rules = *spmd::sharding_rules();
  const std::vector<int64_t> shape = x_BSD.sizes().vec();
  const hlo::Sharding x = rules.sharding_where_it_divides({"batch", "sequence", ""}, shape), weight = rules.gathered(head.axes);
  const hlo::Sharding labels{{x.dims[0], x.dims[1]}};
  const spmd::MeshAxes vocabulary = weight.dims[0].axes, tokens = spmd::axes_used(labels);
  // The gradient of x is a sum over the parts of the vocabulary, which goes where the residual stream is.
  const StreamSum dx_sum(shape, vocabulary);
  const hlo::Sharding per_device{{{.axes = tokens}}};
  const hlo::Sharding dw{{{.axes = tokens}, weight.dims[0], {}}};

  std::vector<hlo::Sharding> out{per_device, per_device};
  if (problem.gradients) out.push_back(dx_sum.sharding());
  if (problem.weight_gradient) out.push_back(dw);
  Tensors parts = spmd::manual(
      {x_BSD, labels_BS, problem.weight_VD, problem.divisor, spmd::positions(vocabulary)},
      {x, labels, weight, {}, spmd::sharding_of_positions(vocabulary)}, out, [&](const Tensors& local) {
        Problem p = problem;
        p.weight_VD = local[2];
        p.divisor = local[3];
        p.vocabulary = vocabulary;
        if (!vocabulary.empty()) p.first = local[4] * local[2].size(0);
        p.options.chunks = std::min(p.options.chunks, local[0].size(1));
        Tensors sums = all_pieces(local[0], local[1], p);
        sums[0] = sums[0].reshape({1});
        sums[1] = sums[1].reshape({1});
        if (p.gradients) sums[2] = dx_sum(sums[2]).to(x_BSD.scalar_type());
        if (p.weight_gradient) sums[3] = sums[3].unsqueeze(0);
        return sums;
      });
  parts[0] = parts[0].sum();
  parts[1] = parts[1].sum();
  if (problem.weight_gradient) parts[3] = parts[3].sum(0);
  return parts;
}

Tensors sums_of(const at::Tensor& x_BSD, const at::Tensor& labels_BS, const Problem& problem, const Weight& head) {
  return spmd::can_be_manual() ? all_pieces_on_mesh(x_BSD, labels_BS, problem, head) : all_pieces(x_BSD, labels_BS, problem);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_BSD, const at::Tensor& value_VD, const at::Tensor& labels_BS,
                               const Weight& head, Problem problem) {
    problem.weight_VD = used_weight(ctx, value_VD, head.axes, x_BSD.scalar_type());
    problem.gradients = true;
    problem.weight_gradient = value_VD.requires_grad();
    const Tensors results = sums_of(x_BSD, labels_BS, problem, head);
    if (problem.weight_gradient) {
      // The head's gradient is summed over the devices before the layers' backward pass begins, or it lies there whole all the while.
      const auto [dx, dw] = spmd::optimization_barrier(results[2], weight_gradient(ctx, results[3].to(value_VD.scalar_type())));
      ctx->save_for_backward({dx, dw});
    } else {
      ctx->save_for_backward({results[2], at::Tensor()});
    }
    ctx->mark_non_differentiable({results[1]});
    return {results[0], results[1]};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& g = gradients[0];  // 1 where the loss is what is differentiated
    const auto scaled = [&](const at::Tensor& gradient) {
      return gradient.defined() ? gradient * g.to(gradient.scalar_type()) : at::Tensor();
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Loss linear_cross_entropy(const at::Tensor& x_BSD, const Weight& head, const at::Tensor& labels_BS, const at::Tensor& divisor,
                          const LossOptions& options) {
  const at::Tensor& w = head.value;
  if (x_BSD.dim() != 3 || w.dim() != 2 || x_BSD.size(2) != w.size(1) || labels_BS.sizes() != x_BSD.sizes().slice(0, 2)) {
    raise<InvalidArgument>("[linear_cross_entropy] expected x [B, S, D], a head [V, D] and labels [B, S], got [{}], [{}] and [{}]; "
                           "give them shapes that agree", fmt::join(x_BSD.sizes(), ", "), fmt::join(w.sizes(), ", "),
                           fmt::join(labels_BS.sizes(), ", "));
  }
  if (x_BSD.numel() == 0) {
    raise<InvalidArgument>("[linear_cross_entropy] expected at least one token and a width, got x [{}]; leave the step out", fmt::join(x_BSD.sizes(), ", "));
  }
  if (options.chunks < 1) raise<InvalidArgument>("[linear_cross_entropy] expected at least 1 chunk, got {}; set loss.chunks = 1", options.chunks);
  Problem problem{.weight_VD = {}, .divisor = divisor.to(wide(x_BSD)), .options = options};
  problem.options.chunks = std::min(options.chunks, x_BSD.size(1));
  const bool split = spmd::sharding_rules() != nullptr && spmd::sharding_rules()->parts("vocab") > 1;
  if (!options.lookup) problem.options.lookup = split ? LabelLookup::Mask : LabelLookup::Gather;
  if (at::GradMode::is_enabled() && (x_BSD.requires_grad() || w.requires_grad())) {
    const variable_list results = LinearCrossEntropy::apply(x_BSD, w, labels_BS, head, problem);
    return {results[0], results[1]};
  }
  problem.weight_VD = spmd::gather_weight(w.to(x_BSD.scalar_type()), head.axes);
  const Tensors results = sums_of(x_BSD, labels_BS, problem, head);
  return {results[0], results[1]};
}

at::Tensor valid_tokens(const at::Tensor& labels) {
  return labels.ne(kIgnoredLabel).to(at::kFloat).sum().clamp_min(1);
}

}  // namespace flambeau::nn
