// Normalisation over trailing dimensions (layer norm, RMS norm) and over groups of channels (group norm).
//
// Statistics and everything between input and output are float32 (float64 for float64), rounded once. Saved statistics are
// float32 where the input is float16 or bfloat16, as on every PyTorch device but the CPU.
#include <limits>

#include <fmt/ranges.h>

#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

Value as_compute(Builder& b, Value x) { return convert(b, x, compute_type(x.dtype())); }

// An input whose trailing dimensions are normalised.
struct Trailing {
  Dims dims;        // of the input
  Dims leading;     // 0 .. axis-1
  Dims normalised;  // axis .. rank-1
  Dims kept;        // the shape of statistics: leading sizes, then ones

  Trailing(Value input, const Dims& normalized_shape) : dims(input.dims()) {
    int64_t rank = input.rank(), count = static_cast<int64_t>(normalized_shape.size());
    if (count == 0)
      raise<InvalidArgument>(
          "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
          "normalized_shape = []");
    if (count > rank || !std::equal(normalized_shape.begin(), normalized_shape.end(), dims.end() - count))
      raise<InvalidArgument>("Given normalized_shape={}, expected input with shape [*, {}], but got input of size{}",
                             shape_text(normalized_shape), fmt::join(normalized_shape, ", "), shape_text(dims));
    kept = dims;
    for (int64_t d = 0; d < rank; ++d) (d < rank - count ? leading : normalised).push_back(d);
    for (int64_t d : normalised) kept[static_cast<size_t>(d)] = 1;
  }

  // A statistic (any shape with one element a row) or a weight [normalized_shape] as large as the input.
  Value rows(Builder& b, Value statistic) const {
    Dims sizes(dims.begin(), dims.begin() + static_cast<int64_t>(leading.size()));
    return spread(b, b.reshape(statistic, sizes), dims, normalised);
  }
  Value columns(Builder& b, Value weight, DType dtype) const {
    return b.broadcast_in_dim(convert(b, weight, dtype), dims, normalised);
  }

  void check_weight(std::string_view name, const std::optional<Value>& weight) const {
    Dims shape(dims.begin() + static_cast<int64_t>(leading.size()), dims.end());
    if (weight && weight->dims() != shape)
      raise<InvalidArgument>(
          "Expected {} to be of same shape as normalized_shape, but got {} of shape {} and normalized_shape = {}", name,
          name, shape_text(weight->dims()), shape_text(shape));
  }
};

Value reciprocal_root(Builder& b, Value square, double eps) { return b.rsqrt(plus(b, square, eps)); }

std::array<Value, 3> layer_norm(Builder& b, Value input, Dims normalized_shape, std::optional<Value> weight,
                                std::optional<Value> bias, double eps) {
  if (!is_float(input.dtype())) refuse_dtype("LayerNormKernelImpl", input.dtype());
  Trailing at(input, normalized_shape);
  at.check_weight("weight", weight);
  at.check_weight("bias", bias);
  Value x = as_compute(b, input);
  Value average = mean(b, x, at.normalised);
  Value centred = b.subtract(x, at.rows(b, average));
  Value rstd = reciprocal_root(b, mean(b, b.multiply(centred, centred), at.normalised), eps);
  Value y = b.multiply(centred, at.rows(b, rstd));
  if (weight) y = b.multiply(y, at.columns(b, *weight, x.dtype()));
  if (bias) y = b.add(y, at.columns(b, *bias, x.dtype()));
  return {convert(b, y, input.dtype()), b.reshape(average, at.kept), b.reshape(rstd, at.kept)};
}

// With n the normalised input and h = grad * weight: dx = rstd (h - mean(h) - n mean(h n)); RMS norm lacks the middle term.
Value normalised_backward(Builder& b, const Trailing& at, Value h, Value n, Value rstd, bool centred) {
  Value dx = b.subtract(h, b.multiply(n, at.rows(b, mean(b, b.multiply(h, n), at.normalised))));
  if (centred) dx = b.subtract(dx, at.rows(b, mean(b, h, at.normalised)));
  return b.multiply(dx, rstd);
}

std::array<Value, 3> layer_norm_backward(Builder& b, Value grad, Value input, Dims normalized_shape, Value average,
                                         Value rstd, std::optional<Value> weight, std::optional<Value> bias, Dims mask) {
  Trailing at(input, normalized_shape);
  Value x = as_compute(b, input), g = as_compute(b, grad);
  Value r = at.rows(b, convert(b, rstd, x.dtype()));
  Value n = b.multiply(b.subtract(x, at.rows(b, convert(b, average, x.dtype()))), r);
  std::array<Value, 3> out;
  if (wanted(mask, 0)) {
    Value h = weight ? b.multiply(g, at.columns(b, *weight, x.dtype())) : g;
    out[0] = convert(b, normalised_backward(b, at, h, n, r, true), input.dtype());
  }
  if (wanted(mask, 1) && weight) out[1] = convert(b, sum(b, b.multiply(g, n), at.leading), weight->dtype());
  if (wanted(mask, 2) && bias) out[2] = convert(b, sum(b, g, at.leading), bias->dtype());
  return out;
}

double default_eps(DType t) {
  return t == DType::F64 ? std::numeric_limits<double>::epsilon()
                         : static_cast<double>(std::numeric_limits<float>::epsilon());
}

std::array<Value, 2> rms_norm(Builder& b, Value input, Dims normalized_shape, std::optional<Value> weight,
                              std::optional<double> eps) {
  if (!is_float(input.dtype())) refuse_dtype("rms_norm", input.dtype());
  Trailing at(input, normalized_shape);
  at.check_weight("weight", weight);
  Value x = as_compute(b, input);
  Value rstd = reciprocal_root(b, mean(b, b.multiply(x, x), at.normalised), eps.value_or(default_eps(x.dtype())));
  Value y = b.multiply(x, at.rows(b, rstd));
  if (weight) y = b.multiply(y, at.columns(b, *weight, x.dtype()));
  return {convert(b, y, input.dtype()), b.reshape(rstd, at.kept)};
}

std::array<Value, 2> rms_norm_backward(Builder& b, Value grad, Value input, Dims normalized_shape, Value rstd,
                                       std::optional<Value> weight, Dims mask) {
  Trailing at(input, normalized_shape);
  Value x = as_compute(b, input), g = convert(b, grad, x.dtype());
  Value r = at.rows(b, convert(b, rstd, x.dtype()));
  Value n = b.multiply(x, r);
  std::array<Value, 2> out;
  if (wanted(mask, 0)) {
    Value h = weight ? b.multiply(g, at.columns(b, *weight, x.dtype())) : g;
    out[0] = convert(b, normalised_backward(b, at, h, n, r, false), input.dtype());
  }
  if (wanted(mask, 1) && weight) out[1] = convert(b, sum(b, b.multiply(g, n), at.leading), weight->dtype());
  return out;
}

// ---- group norm
// -------------------------------------------------------------------------------------------------------------

// The input as [N, groups, C / groups, HxW]; statistics are [N, groups], weights [C].
struct Groups {
  Dims dims;

  Groups(int64_t n, int64_t c, int64_t hxw, int64_t groups) : dims{n, groups, groups > 0 ? c / groups : 0, hxw} {
    if (groups <= 0 || c % groups != 0)
      raise<InvalidArgument>(
          "Expected number of channels in input to be divisible by num_groups, but got input of shape [{}, {}, {}] and "
          "num_groups={}",
          n, c, hxw, groups);
  }
  Value rows(Builder& b, Value statistic) const { return b.broadcast_in_dim(statistic, dims, {0, 1}); }
  Value channels(Builder& b, Value weight, DType dtype) const {
    return b.broadcast_in_dim(b.reshape(convert(b, weight, dtype), {dims[1], dims[2]}), dims, {1, 2});
  }
};

std::array<Value, 3> group_norm(Builder& b, Value input, std::optional<Value> weight, std::optional<Value> bias, int64_t n,
                                int64_t c, int64_t hxw, int64_t group, double eps) {
  if (!is_float(input.dtype())) refuse_dtype("GroupNormKernelImpl", input.dtype());
  Groups at(n, c, hxw, group);
  Value x = b.reshape(as_compute(b, input), at.dims);
  Value average = mean(b, x, {2, 3});
  Value centred = b.subtract(x, at.rows(b, average));
  Value rstd = reciprocal_root(b, mean(b, b.multiply(centred, centred), {2, 3}), eps);
  Value y = b.multiply(centred, at.rows(b, rstd));
  if (weight) y = b.multiply(y, at.channels(b, *weight, x.dtype()));
  if (bias) y = b.add(y, at.channels(b, *bias, x.dtype()));
  return {b.reshape(convert(b, y, input.dtype()), input.dims()), average, rstd};
}

std::array<Value, 3> group_norm_backward(Builder& b, Value grad, Value input, Value average, Value rstd,
                                         std::optional<Value> weight, int64_t n, int64_t c, int64_t hxw, int64_t group,
                                         Dims mask) {
  Groups at(n, c, hxw, group);
  Value x = b.reshape(as_compute(b, input), at.dims), g = b.reshape(as_compute(b, grad), at.dims);
  Value r = at.rows(b, convert(b, rstd, x.dtype()));
  Value normal = b.multiply(b.subtract(x, at.rows(b, convert(b, average, x.dtype()))), r);
  std::array<Value, 3> out;
  DType parameter = weight ? weight->dtype() : input.dtype();
  auto per_channel = [&](Value v) { return convert(b, b.reshape(sum(b, v, {0, 3}), {c}), parameter); };
  if (wanted(mask, 0)) {
    Value h = weight ? b.multiply(g, at.channels(b, *weight, x.dtype())) : g;
    auto group_mean = [&](Value v) { return at.rows(b, mean(b, v, {2, 3})); };
    Value dx = b.subtract(b.subtract(h, group_mean(h)), b.multiply(normal, group_mean(b.multiply(h, normal))));
    out[0] = b.reshape(convert(b, b.multiply(dx, r), input.dtype()), input.dims());
  }
  if (wanted(mask, 1)) out[1] = per_channel(b.multiply(g, normal));
  if (wanted(mask, 2)) out[2] = per_channel(g);
  return out;
}

constexpr Row kRows[] = {
    row("aten::native_layer_norm", lower<&layer_norm>()),
    row("aten::native_layer_norm_backward", lower<&layer_norm_backward>()),
    row("aten::_fused_rms_norm", lower<&rms_norm>()),
    row("aten::_fused_rms_norm_backward", lower<&rms_norm_backward>()),
    row("aten::native_group_norm", lower<&group_norm>()),
    row("aten::native_group_norm_backward", lower<&group_norm_backward>()),
};

}  // namespace

std::span<const Row> norm_rows() { return kRows; }

}  // namespace flambeau::ops
