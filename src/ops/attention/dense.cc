// Scaled dot product attention, forward and backward (aten::_scaled_dot_product_fused_attention_overrideable).
//
// query [B, H, L, D], key [B, K, S, D], value [B, K, S, E]; H is a multiple of K: head h reads key head h / (H / K). Scores
// and softmax statistics are float32; a row without an allowed key gives zeros. The backward pass makes the probabilities
// again from logsumexp [B, H, L] (FlashAttention-2, Dao 2023), and a dropout mask again from the saved stream position.
#include <cmath>
#include <limits>

#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using hlo::DotDims;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Shapes, checked, and products over [B, K, rows, columns]: the query heads of a key head are rows of one matrix, so that
// grouped heads cost no copies of keys and values, and their gradients come out summed.
struct Attention {
  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  DType dtype, compute;
  double scale;

  Attention(Value query, Value key, Value value, std::optional<double> given_scale) {
    for (Value x : {query, key, value})
      if (x.rank() != 4)
        raise<InvalidArgument>("[scaled_dot_product_attention] expected 4-D query, key and value, got shape {}",
                               shape_text(x.dims()));
    batch = query.dim(0), heads = query.dim(1), queries = query.dim(2), head_dim = query.dim(3);
    kv_heads = key.dim(1), keys = key.dim(2), value_dim = value.dim(3);
    dtype = query.dtype(), compute = compute_type(dtype);
    bool fits = key.dims() == Dims{batch, kv_heads, keys, head_dim} &&
                value.dims() == Dims{batch, kv_heads, keys, value_dim} && kv_heads > 0 && heads % kv_heads == 0;
    if (!fits)
      raise<InvalidArgument>(
          "[scaled_dot_product_attention] expected key and value of query's batch and head size, with a number of heads "
          "that "
          "divides query's; got query {}, key {}, value {}",
          shape_text(query.dims()), shape_text(key.dims()), shape_text(value.dims()));
    if (!is_float(dtype) || key.dtype() != dtype || value.dtype() != dtype)
      raise<InvalidArgument>(
          "Expected query, key, and value to have the same dtype, but got query.dtype: {} key.dtype: {} and value.dtype: {} "
          "instead.",
          torch_name(dtype), torch_name(key.dtype()), torch_name(value.dtype()));
    scale = given_scale.value_or(1 / std::sqrt(static_cast<double>(head_dim)));
  }

  Dims score_dims() const { return {batch, heads, queries, keys}; }
  Dims row_dims() const { return {batch, heads, queries}; }
  // [B, H, L, n] <-> [B, K, H / K * L, n]: neighbours in memory already.
  Value grouped(Builder& b, Value x) const { return b.reshape(x, {batch, kv_heads, heads / kv_heads * queries, x.dim(3)}); }
  Value ungrouped(Builder& b, Value x) const { return b.reshape(x, {batch, heads, queries, x.dim(3)}); }
  Value rows(Builder& b, Value statistic, int64_t width) const {
    return b.broadcast_in_dim(statistic, {batch, heads, queries, width}, {0, 1, 2});
  }

  // [B, H, L, n] x [B, K, S, n] -> [B, H, L, S]
  Value against_keys(Builder& b, Value x, Value y) const {
    return ungrouped(b, b.dot_general(grouped(b, x), y, DotDims{{0, 1}, {0, 1}, {3}, {3}}, compute));
  }
  // [B, H, L, S] x [B, K, S, n] -> [B, H, L, n]
  Value over_keys(Builder& b, Value p, Value y) const {
    return ungrouped(b, b.dot_general(grouped(b, convert(b, p, dtype)), y, DotDims{{0, 1}, {0, 1}, {3}, {2}}, compute));
  }
  // [B, H, L, S] x [B, H, L, n] -> [B, K, S, n]
  Value over_queries(Builder& b, Value p, Value x) const {
    return b.dot_general(grouped(b, convert(b, p, dtype)), grouped(b, x), DotDims{{0, 1}, {0, 1}, {2}, {2}}, compute);
  }

  // Scores as softmax sees them: scaled, biased, -inf where not allowed.
  Value scores(Builder& b, Value query, Value key, const std::optional<Value>& bias, bool is_causal) const {
    // Scaling the queries is one pass over less; float16 and bfloat16 would round once more.
    bool early = dtype == compute;
    Value s = against_keys(b, early ? times(b, query, scale) : query, key);
    if (!early) s = times(b, s, scale);
    Value never = filled(b, compute, -kInfinity, score_dims());
    if (bias) {
      if (broadcast_dims(bias->dims(), score_dims()) != score_dims())
        raise<InvalidArgument>("[scaled_dot_product_attention] expected a bias that broadcasts to {}, got {}",
                               shape_text(score_dims()), shape_text(bias->dims()));
      Value wide = bias->dtype() == DType::Pred ? *bias : convert(b, *bias, compute);
      wide = b.broadcast(wide, score_dims());
      s = bias->dtype() == DType::Pred ? b.select(wide, s, never) : b.add(s, wide);
    }
    if (is_causal) {
      Dims square{queries, keys};
      Value allowed = b.compare(b.iota({DType::S32, square}, 0), b.iota({DType::S32, square}, 1), Comparison::GE);
      s = b.select(b.broadcast(allowed, score_dims()), s, never);
    }
    return s;
  }
};

Value finite_or_zero(Builder& b, Value x) {  // -inf, of rows without an allowed key, becomes 0
  return b.select(compare_with(b, x, -kInfinity, Comparison::EQ), constant_like(b, x, 0), x);
}

// 1 / (1 - p) where kept, 0 elsewhere.
Value dropout_factor(Builder& b, const Random& random, double p, const Dims& dims, DType t) {
  Value keep = random_mask(b, random, 1 - p, dims, Stream::Wide);
  return b.select(keep, filled(b, t, p == 1 ? 0 : 1 / (1 - p), dims), filled(b, t, 0, dims));
}

void check_dropout(double p) {
  if (!(p >= 0 && p <= 1)) raise<InvalidArgument>("dropout probability has to be between 0 and 1, but got {}", p);
}

// (output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask). The two integers are
// the caller's: L and S. The stream position (rank-0 S64, same bits) is given with dropout only, the other tensors never.
std::vector<Value> attention(Builder& b, Value query, Value key, Value value, std::optional<Value> bias, double dropout_p,
                             bool is_causal, bool, std::optional<double> scale, const Random& random) {
  check_dropout(dropout_p);
  Attention a(query, key, value, scale);
  Value s = a.scores(b, query, key, bias, is_causal);
  Value greatest = b.reduce(s, {3}, hlo::Reduction::Max);
  Value p = b.exp(b.subtract(s, a.rows(b, finite_or_zero(b, greatest), a.keys)));
  Value total = sum(b, p, {3});
  std::vector<Value> out(9);
  if (dropout_p > 0) {
    p = b.multiply(p, dropout_factor(b, random, dropout_p, a.score_dims(), a.compute));
    out[6] = b.bitcast_convert(random.seed, DType::S64);
    out[7] = b.bitcast_convert(random.offset, DType::S64);
  }
  // Dividing after the product touches L x E elements, not L x S.
  Value divisor = b.select(compare_with(b, total, 0, Comparison::EQ), constant_like(b, total, 1), total);
  Value y = b.divide(a.over_keys(b, p, value), a.rows(b, divisor, a.value_dim));
  out[0] = convert(b, y, a.dtype);
  out[1] = b.add(greatest, b.log(divisor));
  return out;
}

// The gradient of a bias: `x` [B, H, L, S] summed over what was broadcast.
Value summed_to(Builder& b, Value x, const Dims& dims) {
  Dims axes;
  int64_t extra = x.rank() - static_cast<int64_t>(dims.size());
  for (int64_t d = 0; d < x.rank(); ++d)
    if (d < extra || (dims[static_cast<size_t>(d - extra)] == 1 && x.dim(d) != 1)) axes.push_back(d);
  return b.reshape(sum(b, x, axes), dims);
}

std::array<Value, 4> attention_backward(Builder& b, Value grad, Value query, Value key, Value value,
                                        std::optional<Value> bias, Dims mask, Value out, Value logsumexp,
                                        std::optional<Value>, std::optional<Value>, int64_t, int64_t, double dropout_p,
                                        bool is_causal, std::optional<Value> seed, std::optional<Value> offset,
                                        std::optional<double> scale) {
  check_dropout(dropout_p);
  Attention a(query, key, value, scale);
  Value s = a.scores(b, query, key, bias, is_causal);
  Value p = b.exp(b.subtract(s, a.rows(b, finite_or_zero(b, convert(b, logsumexp, a.compute)), a.keys)));
  Value dp = a.against_keys(b, grad, value);
  Value dropped = p;
  if (dropout_p > 0) {
    if (!seed || !offset)
      raise<InvalidArgument>(
          "[scaled_dot_product_attention] the backward pass of dropout needs philox_seed and philox_offset");
    Random random{b.bitcast_convert(*seed, DType::U64), b.bitcast_convert(*offset, DType::U64)};
    Value factor = dropout_factor(b, random, dropout_p, a.score_dims(), a.compute);
    dropped = b.multiply(p, factor);
    dp = b.multiply(dp, factor);
  }
  Value delta = sum(b, b.multiply(convert(b, grad, a.compute), convert(b, out, a.compute)), {3});
  Value ds = b.multiply(p, b.subtract(dp, a.rows(b, delta, a.keys)));
  std::array<Value, 4> grads;
  if (wanted(mask, 0)) grads[0] = convert(b, times(b, a.over_keys(b, ds, key), a.scale), a.dtype);
  if (wanted(mask, 1)) grads[1] = convert(b, times(b, a.over_queries(b, ds, query), a.scale), a.dtype);
  if (wanted(mask, 2)) grads[2] = convert(b, a.over_queries(b, dropped, grad), a.dtype);
  if (wanted(mask, 3) && bias && is_float(bias->dtype()))
    grads[3] = convert(b, summed_to(b, ds, bias->dims()), bias->dtype());
  return grads;
}

constexpr Row kRows[] = {
    row("aten::_scaled_dot_product_fused_attention_overrideable", lower<&attention>()),
    row("aten::_scaled_dot_product_fused_attention_overrideable_backward", lower<&attention_backward>()),
};

}  // namespace

std::span<const Row> dense_attention_rows() { return kRows; }

}  // namespace flambeau::ops
