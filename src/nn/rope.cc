#include "nn/rope.h"

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

// The halves of the last dimension swapped. Compilers for TPUs read a window of a doubled tensor where it is used; halves of 64
// lanes, put together again, they would write out, in tiles of 128.
at::Tensor swap_halves(const at::Tensor& x) {
  const int64_t size = x.size(-1);
  return at::cat({x, x}, -1).narrow(-1, size / 2, size);
}

// `x` in the dtype of the tables.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) { return x * cos + swap_halves(x) * sin; }

// (cos, cos) and (-sin, sin) as [.., S, 1, 1, E] in x's dtype, to be applied to [B, S, K, P, E].
std::array<at::Tensor, 2> tables(const at::Tensor& table, at::ScalarType dtype) {
  const at::Tensor t = table.unsqueeze(-2).unsqueeze(-2).to(dtype);
  const int64_t half = t.size(-1) / 2;
  const at::Tensor cos = t.narrow(-1, 0, half), sin = t.narrow(-1, half, half);
  return {at::cat({cos, cos}, -1), at::cat({-sin, sin}, -1)};
}

struct SplitQkvRope : torch::autograd::Function<SplitQkvRope> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& table, double scale) {
    ctx->save_for_backward({table});
    ctx->saved_data["scale"] = scale;
    const int64_t B = qkv.size(0), S = qkv.size(1), K = qkv.size(2), G = qkv.size(3) - 2, E = qkv.size(4);
    const auto [cos, sin] = tables(table, qkv.scalar_type());
    const at::Tensor q = rotate(qkv.narrow(3, 0, G), cos * scale, sin * scale);
    const at::Tensor k = rotate(qkv.select(3, G).unsqueeze(3), cos, sin);
    return {q.reshape({B, S, K * G, E}).transpose(1, 2), k.reshape({B, S, K, E}).transpose(1, 2),
            qkv.select(3, G + 1).transpose(1, 2)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor &gq = gradients[0], &gk = gradients[1], &gv = gradients[2];
    const double scale = ctx->saved_data["scale"].toDouble();
    const int64_t B = gk.size(0), K = gk.size(1), S = gk.size(2), E = gk.size(3), G = gq.size(1) / K;
    const auto [cos, sin] = tables(ctx->get_saved_variables()[0], gk.scalar_type());
    // The inverse of a rotation is its transpose: the same with -sin.
    const at::Tensor dq = rotate(gq.transpose(1, 2).reshape({B, S, K, G, E}), cos * scale, sin * -scale);
    const at::Tensor dk = rotate(gk.transpose(1, 2).unsqueeze(3), cos, -sin);
    return {at::cat({dq, dk, gv.transpose(1, 2).unsqueeze(3)}, 3), at::Tensor(), at::Tensor()};
  }
};

// RMSNorm by weight w [E] and then a rotation, of x [B, S, K, P, E]: rotate(x * inverse_rms * w).
struct NormRope {
  at::Tensor cos, sin;  // as tables() gives them, float32

  static at::Tensor inverse_rms(const at::Tensor& given, double epsilon) {
    const at::Tensor x = given.to(at::kFloat);
    return at::mean(x * x, {-1}, true).add(epsilon).rsqrt();
  }

  // The halves of what is given are swapped and not those of the norm's result, which has twice the bytes.
  at::Tensor forward(const at::Tensor& given, const at::Tensor& inverse_rms, const at::Tensor& w) const {
    return (rotate(given, w * cos, swap_halves(w) * sin) * inverse_rms).to(given.scalar_type());
  }

  // Gradients of `given` and w.
  std::array<at::Tensor, 2> backward(const at::Tensor& gradient, const at::Tensor& given, const at::Tensor& inverse_rms,
                                     const at::Tensor& w) const {
    const at::Tensor g = rotate(gradient, cos, -sin), normed = given.to(at::kFloat) * inverse_rms, gw = g * w;
    const at::Tensor dx = (gw - normed * at::mean(gw * normed, {-1}, true)) * inverse_rms;
    return {dx.to(given.scalar_type()), (g * normed).sum({0, 1, 2, 3})};
  }
};

struct SplitQkvNormRope : torch::autograd::Function<SplitQkvNormRope> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& q_value, const at::Tensor& k_value,
                               const Weight& weight, double epsilon, const at::Tensor& table, double scale) {
    const at::Tensor q_norm = used_weight(ctx, q_value, weight.axes, at::kFloat);
    const at::Tensor k_norm = used_weight(ctx, k_value, weight.axes, at::kFloat);
    const int64_t B = qkv.size(0), S = qkv.size(1), K = qkv.size(2), G = qkv.size(3) - 2, E = qkv.size(4);
    const at::Tensor q = qkv.narrow(3, 0, G), k = qkv.narrow(3, G, 1);
    const at::Tensor q_rms = NormRope::inverse_rms(q, epsilon), k_rms = NormRope::inverse_rms(k, epsilon);
    ctx->save_for_backward({qkv, q_norm, k_norm, table, q_rms, k_rms});
    ctx->saved_data["scale"] = scale;
    const auto [cos, sin] = tables(table, at::kFloat);
    const NormRope rope{cos, sin};
    return {rope.forward(q, q_rms, q_norm * scale).reshape({B, S, K * G, E}).transpose(1, 2),
            rope.forward(k, k_rms, k_norm).squeeze(3).transpose(1, 2), qkv.select(3, G + 1).transpose(1, 2)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &qkv = saved[0], &q_norm = saved[1], &k_norm = saved[2];
    const double scale = ctx->saved_data["scale"].toDouble();
    const int64_t B = qkv.size(0), S = qkv.size(1), K = qkv.size(2), G = qkv.size(3) - 2, E = qkv.size(4);
    const auto [cos, sin] = tables(saved[3], at::kFloat);
    const NormRope rope{cos, sin};
    const at::Tensor gq = gradients[0].transpose(1, 2).reshape({B, S, K, G, E}), gk = gradients[1].transpose(1, 2).unsqueeze(3),
                     dv = gradients[2].transpose(1, 2).unsqueeze(3);
    const auto [dq, dwq] = rope.backward(gq, qkv.narrow(3, 0, G), saved[4], q_norm * scale);
    const auto [dk, dwk] = rope.backward(gk, qkv.narrow(3, G, 1), saved[5], k_norm);
    const at::Tensor dqkv = at::cat({dq, dk, dv}, 3);
    const at::Tensor dwq_stored = weight_gradient(ctx, 1, [&, g = dwq] { return g * scale; });
    const at::Tensor dwk_stored = weight_gradient(ctx, 2, [g = dwk] { return g; });
    return {dqkv, dwq_stored, dwk_stored, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
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
