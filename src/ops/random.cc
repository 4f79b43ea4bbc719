#include "ops/random.h"

#include <numbers>

#include "base/philox.h"
#include "ops/pointwise.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using Words = std::array<Value, 4>;  // U32[blocks] each

int64_t words_per_element(DType dtype) { return dtype == DType::C128 ? 4 : byte_size(dtype) == 8 ? 2 : 1; }

Value low_word(Builder& b, Value x) { return b.convert(x, DType::U32); }  // XLA's conversion wraps
Value high_word(Builder& b, Value x) {
  return b.convert(b.shift_right_logical(x, b.broadcast(b.constant(DType::U64, 32), x.dims())), DType::U32);
}

Words first_counters(Builder& b, const Random& random, int64_t blocks, Stream stream) {
  Dims dims{blocks};
  Value index = b.iota({DType::U64, dims}, 0);
  if (stream == Stream::Main) {
    Value counter = b.add(index, b.broadcast(random.offset, dims));
    Value zero = b.broadcast(b.constant(DType::U32, 0), dims);
    return {low_word(b, counter), high_word(b, counter), zero, zero};
  }
  Value far = b.logical_or(high_word(b, random.offset), b.constant(DType::U32, int64_t{1} << 31));
  return {low_word(b, index), high_word(b, index), b.broadcast(low_word(b, random.offset), dims), b.broadcast(far, dims)};
}

// The high and low halves of the 64-bit product with a constant.
std::pair<Value, Value> multiply_wide(Builder& b, Value x, uint32_t multiplier) {
  Value m = b.broadcast(b.constant(DType::U64, int64_t{multiplier}), x.dims());
  Value product = b.multiply(b.convert(x, DType::U64), m);
  return {high_word(b, product), low_word(b, product)};
}

// Keys of rank 0, or one for each index of dimension 0.
Words encrypt(Builder& b, Words x, Value key0, Value key1) {
  const Dims& dims = x[0].dims();
  const auto plus_constant = [&](Value key, uint32_t number) {
    Value constant = b.constant(DType::U32, int64_t{number});
    return b.add(key, key.rank() == 0 ? constant : b.broadcast(constant, key.dims()));
  };
  auto mix = [&](Value p, Value q, Value key) {
    return b.logical_xor(b.logical_xor(p, q), key.rank() == 0 ? b.broadcast(key, dims) : b.broadcast_in_dim(key, dims, {0}));
  };
  for (int round = 0; round < philox::kRounds; ++round) {
    auto [high0, low0] = multiply_wide(b, x[0], philox::kMultiplier0);
    auto [high1, low1] = multiply_wide(b, x[2], philox::kMultiplier1);
    x = {mix(high1, x[1], key0), low1, mix(high0, x[3], key1), low0};
    key0 = plus_constant(key0, philox::kWeyl0);
    key1 = plus_constant(key1, philox::kWeyl1);
  }
  return x;
}

// The top bits of a draw as an exact integer in the float type.
Value top_bits(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream) {
  int64_t n = hlo::Type{dtype, dims}.elements();
  bool wide = dtype == DType::F64;
  Value bits = wide ? random_bits64(b, random, n, stream) : random_bits(b, random, n, stream);
  Value top = b.shift_right_logical(bits, b.broadcast(b.constant(bits.dtype(), wide ? 11 : 8), bits.dims()));
  // The signed type holds them too, and its conversion is one instruction on every machine.
  return b.reshape(b.convert(b.convert(top, wide ? DType::S64 : DType::S32), dtype), dims);
}

double cell(DType dtype) { return dtype == DType::F64 ? 0x1p-53 : 0x1p-24; }

}  // namespace

int64_t random_blocks(int64_t elements, DType dtype) { return (elements * words_per_element(dtype) + 3) / 4; }

std::array<Value, 4> random_words_of(Builder& b, Value index, Value high, Value key) {
  return encrypt(b, {low_word(b, index), high_word(b, index), low_word(b, high), high_word(b, high)}, low_word(b, key), high_word(b, key));
}

Value random_bits(Builder& b, const Random& random, int64_t words, Stream stream) {
  int64_t blocks = (words + 3) / 4;
  Words out = encrypt(b, first_counters(b, random, blocks, stream), low_word(b, random.seed), high_word(b, random.seed));
  for (Value& w : out) w = b.reshape(w, {blocks, 1});
  Value flat = b.reshape(b.concatenate(out, 1), {4 * blocks});
  return 4 * blocks == words ? flat : b.slice(flat, {0}, {words});
}

Value random_bits64(Builder& b, const Random& random, int64_t draws, Stream stream) {
  int64_t blocks = (draws + 1) / 2;
  Words w = encrypt(b, first_counters(b, random, blocks, stream), low_word(b, random.seed), high_word(b, random.seed));
  auto pair = [&](Value low, Value high) {
    Value shifted = b.shift_left(b.convert(high, DType::U64), b.broadcast(b.constant(DType::U64, 32), {blocks}));
    return b.reshape(b.logical_or(b.convert(low, DType::U64), shifted), {blocks, 1});
  };
  std::array<Value, 2> out{pair(w[0], w[1]), pair(w[2], w[3])};
  Value flat = b.reshape(b.concatenate(out, 1), {2 * blocks});
  return 2 * blocks == draws ? flat : b.slice(flat, {0}, {draws});
}

Value random_unit(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream) {
  return times(b, top_bits(b, random, dtype, dims, stream), cell(dtype));
}

Value random_positive_unit(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream) {
  return times(b, plus(b, top_bits(b, random, dtype, dims, stream), 1), cell(dtype));
}

Value random_normal(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream) {
  // (2k + 1) cell - 1 is an odd multiple of the cell below one: exact.
  Value k = top_bits(b, random, dtype, dims, stream);
  Value centred = plus(b, times(b, plus(b, k, -0.5 / cell(dtype)), 2), 1);
  return times(b, inverse_erf(b, times(b, centred, cell(dtype))), std::numbers::sqrt2);
}

Value random_mask(Builder& b, const Random& random, double p, const Dims& dims, Stream stream) {
  return compare_with(b, random_unit(b, random, DType::F32, dims, stream), p, hlo::Comparison::LT);
}

}  // namespace flambeau::ops
