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

// "Approximating the erfinv function", M. Giles, GPU Computing Gems (2010): erfinv(x) = x P(w), w = -log((1-x)(1+x)).
constexpr double kSingleCentre[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                    -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
constexpr double kSingleTail[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                                  -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
constexpr double kDoubleCentre[] = {
    -3.6444120640178196996e-21, -1.685059138182016589e-19,  1.2858480715256400167e-18,  1.115787767802518096e-17,
    -1.333171662854620906e-16,  2.0972767875968561637e-17,  6.6376381343583238325e-15,  -4.0545662729752068639e-14,
    -8.1519341976054721522e-14, 2.6335093153082322977e-12,  -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09,   -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
    -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352,   -0.00074070253416626697512,
    -0.0060336708714301490533,  0.24015818242558961693,     1.6536545626831027356};
constexpr double kDoubleMiddle[] = {
    2.2137376921775787049e-09,  9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
    1.5027403968909827627e-06,  -4.013867526981545969e-06, 2.9234449089955446044e-06,  1.2475304481671778723e-05,
    -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05,  -0.0003550375203628474796,
    0.00095328937973738049703,  -0.0016882755560235047313, 0.0024914420961078508066,   -0.0037512085075692412107,
    0.005370914553590063617,    1.0052589676941592334,     3.0838856104922207635};
constexpr double kDoubleTail[] = {-2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
                                  -3.7894654401267369937e-09, 7.6157012080783393804e-09,  -1.4960026627149240478e-08,
                                  2.9147953450901080826e-08,  -6.7711997758452339498e-08, 2.2900482228026654717e-07,
                                  -9.9298272942317002539e-07, 4.5260625972231537039e-06,  -1.9681778105531670567e-05,
                                  7.5995277030017761139e-05,  -0.00021503011930044477347, -0.00013871931833623122026,
                                  1.0103004648645343977,      4.8499064014085844221};

Value inverse_erf(Builder& b, Value x) {
  Value one = constant_like(b, x, 1);
  Value w = b.negate(b.log(b.multiply(b.subtract(one, x), b.add(one, x))));
  auto below = [&](double limit) { return compare_with(b, w, limit, hlo::Comparison::LT); };
  Value root = b.sqrt(w);
  Value p;
  if (x.dtype() == DType::F64) {
    Value outer = b.select(below(16), polynomial(b, plus(b, root, -3.25), kDoubleMiddle),
                           polynomial(b, plus(b, root, -5), kDoubleTail));
    p = b.select(below(6.25), polynomial(b, plus(b, w, -3.125), kDoubleCentre), outer);
  } else {
    p = b.select(below(5), polynomial(b, plus(b, w, -2.5), kSingleCentre), polynomial(b, plus(b, root, -3), kSingleTail));
  }
  return b.multiply(p, x);
}

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
