#include "nn/rope.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/used_weight.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor inverse_frequencies(const RopeOptions& options, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor base = at::pow(options.theta, exponents).reciprocal();
  if (options.factor == 1) return base;
  // Long wavelengths are stretched by `factor`, short ones kept, those between blended.
  const double original = static_cast<double>(options.original_context);
  const double low_wavelength = original / options.low_frequency_factor;
  const double high_wavelength = original / options.high_frequency_factor;
  const at::Tensor wavelength = (2 * std::numbers::pi) / base;
  const at::Tensor stretched = at::where(wavelength > low_wavelength, base / options.factor, base);
  const at::Tensor smooth = (original / wavelength - options.low_frequency_factor) /
                            (options.high_frequency_factor - options.low_frequency_factor);
  const at::Tensor blended = (1 - smooth) * stretched / options.factor + smooth * stretched;
  const at::Tensor between = (wavelength < high_wavelength).logical_not() * (wavelength > low_wavelength).logical_not();
  return at::where(between, blended, stretched);
}

at::Tensor turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

// cos and sin of [.., S, E] as [.., S, 1, 1, E/2] in x's dtype, to be applied to [B, S, K, P, E/2].
std::array<at::Tensor, 2> tables(const at::Tensor& table, at::ScalarType dtype) {
  const at::Tensor t = table.unsqueeze(-2).unsqueeze(-2).to(dtype);
  const int64_t half = t.size(-1) / 2;
  return {t.narrow(-1, 0, half), t.narrow(-1, half, half)};
}

struct SplitQkvRope : torch::autograd::Function<SplitQkvRope> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& table, double scale) {
    ctx->save_for_backward({table});
    ctx->saved_data["scale"] = scale;
    const int64_t B = qkv.size(0), S = qkv.size(1), K = qkv.size(2), G = qkv.size(3) - 2, E = qkv.size(4);
    const auto [cos, sin] = tables(table, qkv.scalar_type());
    const at::Tensor q = turn(qkv.narrow(3, 0, G), cos * scale, sin * scale);
    const at::Tensor k = turn(qkv.select(3, G).unsqueeze(3), cos, sin);
    return {q.reshape({B, S, K * G, E}).transpose(1, 2), k.reshape({B, S, K, E}).transpose(1, 2),
            qkv.select(3, G + 1).transpose(1, 2)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor &gq = gradients[0], &gk = gradients[1], &gv = gradients[2];
    const double scale = ctx->saved_data["scale"].toDouble();
    const int64_t B = gk.size(0), K = gk.size(1), S = gk.size(2), E = gk.size(3), G = gq.size(1) / K;
    const auto [cos, sin] = tables(ctx->get_saved_variables()[0], gk.scalar_type());
    // The inverse of a rotation is its transpose: the same with -sin.
    const at::Tensor dq = turn(gq.transpose(1, 2).reshape({B, S, K, G, E}), cos * scale, sin * -scale);
    const at::Tensor dk = turn(gk.transpose(1, 2).unsqueeze(3), cos, -sin);
    return {at::cat({dq, dk, gv.transpose(1, 2).unsqueeze(3)}, 3), at::Tensor(), at::Tensor()};
  }
};

struct SplitQkvNormRope : torch::autograd::Function<SplitQkvNormRope> {
  // Weight of each of the G queries and the key of a group, [G + 1, E]; `scale` is the queries' own.
  static at::Tensor weights(const at::Tensor& q_norm, const at::Tensor& k_norm, int64_t G, double scale) {
    return at::cat({(q_norm * scale).unsqueeze(0).expand({G, -1}), k_norm.unsqueeze(0)});
  }

  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& q_value, const at::Tensor& k_value,
                               const Weight& weight, double epsilon, const at::Tensor& table, double scale) {
    const at::Tensor q_norm = used_weight(ctx, q_value, weight.axes, at::kFloat);
    const at::Tensor k_norm = used_weight(ctx, k_value, weight.axes, at::kFloat);
    const int64_t B = qkv.size(0), S = qkv.size(1), K = qkv.size(2), G = qkv.size(3) - 2, E = qkv.size(4);
    const at::Tensor x = qkv.narrow(3, 0, G + 1).to(at::kFloat);
    const at::Tensor inverse_rms = at::mean(x * x, {-1}, true).add(epsilon).rsqrt();
    ctx->save_for_backward({qkv, q_norm, k_norm, table, inverse_rms});
    ctx->saved_data["scale"] = scale;
    const auto [cos, sin] = tables(table, at::kFloat);
    const at::Tensor qk = turn(x * inverse_rms * weights(q_norm, k_norm, G, scale), cos, sin).to(qkv.scalar_type());
    return {qk.narrow(3, 0, G).reshape({B, S, K * G, E}).transpose(1, 2), qk.select(3, G).transpose(1, 2),
            qkv.select(3, G + 1).transpose(1, 2)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &qkv = saved[0], &inverse_rms = saved[4];
    const double scale = ctx->saved_data["scale"].toDouble();
    const int64_t B = qkv.size(0), S = qkv.size(1), K = qkv.size(2), G = qkv.size(3) - 2, E = qkv.size(4);
    const auto [cos, sin] = tables(saved[3], at::kFloat);
    const at::Tensor gq = gradients[0].transpose(1, 2).reshape({B, S, K, G, E}), gk = gradients[1].transpose(1, 2).unsqueeze(3);
    const at::Tensor g = turn(at::cat({gq, gk}, 3).to(at::kFloat), cos, -sin);

    const at::Tensor normed = qkv.narrow(3, 0, G + 1).to(at::kFloat) * inverse_rms;
    const at::Tensor gw = g * weights(saved[1], saved[2], G, scale);
    const at::Tensor dx = (gw - normed * at::mean(gw * normed, {-1}, true)) * inverse_rms;
    const at::Tensor dw = (g * normed).sum({0, 1, 2});
    const at::Tensor dqkv = at::cat({dx.to(qkv.scalar_type()), gradients[2].transpose(1, 2).unsqueeze(3)}, 3);
    return {dqkv, weight_gradient(ctx, dw.narrow(0, 0, G).sum(0) * scale), weight_gradient(ctx, dw.select(0, G)), at::Tensor(),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rope_table(const RopeOptions& options, int64_t positions, int64_t head_dim) {
  const at::Tensor angles_SF =
      at::arange(positions, at::kLong).to(at::kFloat).unsqueeze(1) * inverse_frequencies(options, head_dim).unsqueeze(0);
  return at::cat({angles_SF.cos(), angles_SF.sin()}, 1);
}

std::array<at::Tensor, 3> split_qkv_rope(const at::Tensor& qkv_BSKPE, const at::Tensor& table, double scale) {
  auto parts = SplitQkvRope::apply(qkv_BSKPE, table, scale);
  return {parts[0], parts[1], parts[2]};
}

std::array<at::Tensor, 3> split_qkv_norm_rope(const at::Tensor& qkv_BSKPE, const Weight& q_norm_E, const Weight& k_norm_E,
                                              double epsilon, const at::Tensor& table, double scale) {
  auto parts = SplitQkvNormRope::apply(qkv_BSKPE, q_norm_E.value, k_norm_E.value, q_norm_E, epsilon, table, scale);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace flambeau::nn
