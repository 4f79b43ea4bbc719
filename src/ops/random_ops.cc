// Random ops. In-place forms (uniform_, normal_, ...) are these functions with `self` for shape and dtype alone.
// rand, randn, randint and their like are composites of empty and the in-place forms.
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/check.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;

// The type that a draw for `dtype` is computed in.
DType draw_type(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

void require_real(std::string_view op, Value self) {
  if (!is_float(self.dtype())) refuse_dtype(op, self.dtype());
}

// A complex tensor from its real and imaginary parts, which are the last dimension: draws 2i and 2i + 1 make element i.
Value from_parts(Builder& b, Value parts) {
  int64_t last = parts.rank() - 1;
  auto half = [&](int64_t i) { return b.reshape(b.slice_dim(parts, last, i, i + 1), erased(parts.dims(), last)); };
  return b.binary(hlo::Op::Complex, half(0), half(1));
}
Dims with_parts(Dims dims) {
  dims.push_back(2);
  return dims;
}
DType part_type(DType complex) { return complex == DType::C128 ? DType::F64 : DType::F32; }

Value uniform_reals(Builder& b, DType dtype, const Dims& dims, double from, double to, const Random& random) {
  Value u = plus(b, times(b, random_unit(b, random, draw_type(dtype), dims), to - from), from);
  u = convert(b, u, dtype);
  // Rounding may reach `to`, which is not in the range.
  return b.select(compare_with(b, u, to, Comparison::EQ), constant_like(b, u, from), u);
}

Value uniform(Builder& b, Value self, double from, double to, const Random& random) {
  if (!(from <= to))
    raise<InvalidArgument>("uniform_ expects to return a [from, to) range, but found from={} > to={}", from, to);
  if (is_complex(self.dtype()))
    return from_parts(b, uniform_reals(b, part_type(self.dtype()), with_parts(self.dims()), from, to, random));
  require_real("check_uniform_bounds", self);
  return uniform_reals(b, self.dtype(), self.dims(), from, to, random);
}

void check_std(double std) {
  if (!(std >= 0)) raise<InvalidArgument>("normal expects std >= 0.0, but found std {}", std);
}

Value normal_functional(Builder& b, Value self, double mean, double std, const Random& random) {
  check_std(std);
  if (is_complex(self.dtype())) {  // each part has half the variance
    Value z = random_normal(b, random, part_type(self.dtype()), with_parts(self.dims()));
    Value result = from_parts(b, times(b, z, std / std::numbers::sqrt2));
    return mean == 0 ? result : b.add(result, b.broadcast(b.constant(self.dtype(), mean), self.dims()));
  }
  require_real("normal_kernel_cpu", self);
  Value z = random_normal(b, random, draw_type(self.dtype()), self.dims());
  return convert(b, plus(b, times(b, z, std), mean), self.dtype());
}

Value normal_of(Builder& b, Value mean, Value std, DType dtype, const Random& random) {
  DType t = draw_type(dtype);
  Dims dims = broadcast_dims(mean.dims(), std.dims());
  if (checks_wanted()) check(b, compare_with(b, std, 0, Comparison::GE), "normal expects all elements of std >= 0.0");
  auto spread_out = [&](Value x) { return b.broadcast(convert(b, x, t), dims); };
  Value z = random_normal(b, random, t, dims);
  return convert(b, b.add(spread_out(mean), b.multiply(spread_out(std), z)), dtype);
}

Value normal_tensor_tensor(Builder& b, Value mean, Value std, const Random& random) {
  return normal_of(b, mean, std, mean.dtype(), random);
}
Value normal_tensor_float(Builder& b, Value mean, double std, const Random& random) {
  check_std(std);
  return normal_of(b, mean, b.constant(draw_type(mean.dtype()), std), mean.dtype(), random);
}
Value normal_float_tensor(Builder& b, double mean, Value std, const Random& random) {
  return normal_of(b, b.constant(draw_type(std.dtype()), mean), std, std.dtype(), random);
}

Value log_normal(Builder& b, Value self, double mean, double std, const Random& random) {
  require_real("log_normal_", self);
  if (!(std > 0)) raise<InvalidArgument>("log_normal_ expects std > 0.0, but found std={}", std);
  Value z = random_normal(b, random, draw_type(self.dtype()), self.dims());
  return convert(b, b.exp(plus(b, times(b, z, std), mean)), self.dtype());
}

Value cauchy(Builder& b, Value self, double median, double sigma, const Random& random) {
  require_real("cauchy_", self);
  if (!(sigma > 0)) raise<InvalidArgument>("cauchy_ expects sigma > 0.0, but found sigma={}", sigma);
  Value u = random_unit(b, random, draw_type(self.dtype()), self.dims());
  Value t = b.unary(hlo::Op::Tan, times(b, plus(b, u, -0.5), std::numbers::pi));
  return convert(b, plus(b, times(b, t, sigma), median), self.dtype());
}

// Exp(1), never zero.
Value standard_exponential(Builder& b, const Random& random, DType t, const Dims& dims, Stream stream) {
  Value e = b.negate(b.log(random_positive_unit(b, random, t, dims, stream)));
  return b.maximum(e, constant_like(b, e, t == DType::F64 ? 0x1p-54 : 0x1p-25));
}

Value exponential(Builder& b, Value self, double lambd, const Random& random) {
  require_real("exponential_", self);
  if (!(lambd > 0)) raise<InvalidArgument>("exponential_ expects lambda > 0.0, but found lambda={}", lambd);
  Value e = standard_exponential(b, random, draw_type(self.dtype()), self.dims(), Stream::Main);
  return convert(b, times(b, e, 1 / lambd), self.dtype());
}

Value geometric(Builder& b, Value self, double p, const Random& random) {
  if (!(p > 0 && p < 1)) raise<InvalidArgument>("geometric_ expects p to be in (0, 1), but got p={}", p);
  DType t = byte_size(self.dtype()) == 8 ? DType::F64 : DType::F32;
  Value u = random_positive_unit(b, random, t, self.dims());
  Value trials = b.ceil(times(b, b.log(u), 1 / std::log1p(-p)));
  return convert(b, b.maximum(trials, constant_like(b, trials, 1)), self.dtype());
}

// ---- true with a probability ------------------------------------------------------------------------------------------

void check_probability(double p) {
  if (!(p >= 0 && p <= 1)) raise<InvalidArgument>("bernoulli_ expects p to be in [0, 1], but got p={}", p);
}

Value bernoulli_p(Builder& b, Value self, double p, const Random& random) {
  check_probability(p);
  return convert(b, random_mask(b, random, p, self.dims()), self.dtype());
}

Value bernoulli_tensor(Builder& b, Value self, Value p, const Random& random) {
  require_real("bernoulli", p);
  DType t = self.dtype() == DType::F64 ? DType::F64 : DType::F32;
  Value q = convert(b, p, t);
  if (checks_wanted()) {
    Value low = compare_with(b, q, 0, Comparison::GE), high = compare_with(b, q, 1, Comparison::LE);
    check(b, b.logical_and(low, high), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  }
  Value u = random_unit(b, random, t, self.dims());
  return convert(b, b.compare(u, b.broadcast(q, self.dims()), Comparison::LT), self.dtype());
}

Value bernoulli(Builder& b, Value self, const Random& random) { return bernoulli_tensor(b, self, self, random); }

std::array<Value, 2> native_dropout(Builder& b, Value input, double p, std::optional<bool> train, const Random& random) {
  if (!(p >= 0 && p <= 1)) raise<InvalidArgument>("dropout probability has to be between 0 and 1, but got {}", p);
  Value all = b.broadcast(b.constant(DType::Pred, 1), input.dims());
  if (!train.value_or(true) || p == 0) return {input, all};
  Value none = zeros(b, input.dtype(), input.dims());
  if (p == 1) return {none, b.logical_not(all)};
  Value keep = random_mask(b, random, 1 - p, input.dims());
  Value scaled = times(b, convert(b, input, compute_type(input.dtype())), 1 / (1 - p));
  return {b.select(keep, convert(b, scaled, input.dtype()), none), keep};
}

Value native_dropout_backward(Builder& b, Value grad, Value mask, double scale) {
  Value scaled = convert(b, times(b, convert(b, grad, compute_type(grad.dtype())), scale), grad.dtype());
  return b.select(convert(b, mask, DType::Pred), scaled, zeros(b, grad.dtype(), grad.dims()));
}

// ---- integers -----------------------------------------------------------------------------------------------------------

// How many integers a type counts without a gap, from 0 on, minus one; what random_() draws up to.
uint64_t greatest_counted(DType t) {
  switch (t) {
    case DType::Pred: return 1;
    case DType::F16: return 1u << 11;
    case DType::BF16: return 1u << 8;
    case DType::F32: return 1u << 24;
    case DType::F64: return uint64_t{1} << 53;
    default: break;
  }
  if (!is_integer(t)) refuse_dtype("random_", t);
  int bits = static_cast<int>(8 * byte_size(t)) - (is_signed_integer(t) ? 1 : 0);
  return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

// S64 in [0, count), modulo 2^64; count 0 stands for 2^64. Small counts scale 32 bits, larger ones take the remainder of 64.
// Some integers are therefore likelier than others by count / 2^32 or count / 2^64, as in PyTorch, with its limit of 2^28.
Value below(Builder& b, uint64_t count, DType dtype, const Dims& dims, const Random& random) {
  int64_t n = hlo::Type{dtype, dims}.elements();
  auto constant = [&](uint64_t x, int64_t size) {
    return b.broadcast(b.bitcast_convert(b.constant(DType::S64, static_cast<int64_t>(x)), DType::U64), {size});
  };
  Value v;
  if (count != 0 && count < (1u << 28)) {
    Value product = b.multiply(b.convert(random_bits(b, random, n), DType::U64), constant(count, n));
    v = b.shift_right_logical(product, constant(32, n));
  } else {
    bool room = byte_size(dtype) == 8;
    v = random_bits64(b, random, n, room ? Stream::Main : Stream::Wide);
    bool power = (count & (count - 1)) == 0;
    if (count != 0) v = power ? b.logical_and(v, constant(count - 1, n)) : b.remainder(v, constant(count, n));
  }
  return b.reshape(b.bitcast_convert(v, DType::S64), dims);
}

Value random_between(Builder& b, Value self, int64_t from, uint64_t count, const Random& random) {
  Value v = below(b, count, self.dtype(), self.dims(), random);
  return convert(b, from == 0 ? v : b.add(v, b.broadcast(b.constant(DType::S64, from), v.dims())), self.dtype());
}

void check_in_range(std::string_view name, int64_t x, DType t) {
  bool fits = is_unsigned_integer(t) || t == DType::Pred
                  ? x >= 0 && static_cast<uint64_t>(x) <= greatest_counted(t)
                  : !is_signed_integer(t) || (x <= static_cast<int64_t>(greatest_counted(t)) &&
                                              x >= -static_cast<int64_t>(greatest_counted(t)) - 1);
  if (!fits) raise<InvalidArgument>("{} is out of bounds for {}", name, torch_name(t));
}

Value random_from(Builder& b, Value self, int64_t from, std::optional<int64_t> to, const Random& random) {
  if (!to) {
    check_in_range("from", from, self.dtype());
    return random_between(b, self, from, greatest_counted(self.dtype()) - static_cast<uint64_t>(from) + 1, random);
  }
  if (from >= *to)
    raise<InvalidArgument>("random_ expects 'from' to be less than 'to', but got from={} >= to={}", from, *to);
  check_in_range("from", from, self.dtype());
  check_in_range("to - 1", *to - 1, self.dtype());
  return random_between(b, self, from, static_cast<uint64_t>(*to) - static_cast<uint64_t>(from), random);
}

Value random_to(Builder& b, Value self, int64_t to, const Random& random) { return random_from(b, self, 0, to, random); }

Value random_plain(Builder& b, Value self, const Random& random) {
  return random_between(b, self, 0, greatest_counted(self.dtype()) + 1, random);
}

// ---- orders and samples -------------------------------------------------------------------------------------------------

// Indices 0..n-1 along the last dimension in the order of their keys.
Value order_by(Builder& b, Value keys, Comparison before) {
  int64_t dim = keys.rank() - 1;
  Value index = b.iota({DType::S32, keys.dims()}, dim);
  return b.sort(std::array{keys, index}, dim, true, [&](Builder& in, std::span<const Value> x) {
    return std::vector<Value>{in.compare(x[0], x[1], before)};
  })[1];
}

Value randperm(Builder& b, int64_t n, std::optional<DType> dtype, const Random& random) {
  if (n < 0) raise<InvalidArgument>("Trying to create tensor with negative dimension {}: [{}]", n, n);
  DType t = dtype.value_or(DType::S64);
  Value keys = random_bits64(b, random, n, byte_size(t) == 8 ? Stream::Main : Stream::Wide);
  return convert(b, order_by(b, keys, Comparison::LT), t);
}

Value running_sum(Builder& b, Value x) {  // over dimension 1 of two, in log n passes
  Value zero = b.constant(x.dtype(), 0);
  for (int64_t shift = 1; shift < x.dim(1); shift *= 2) x = b.add(x, b.pad(x, zero, {0, shift}, {0, -shift}));
  return x;
}

// The first category of positive weight whose running sum exceeds a uniform share of the total.
Value sample_each(Builder& b, Value p, int64_t samples, const Random& random) {
  Dims cube{p.dim(0), samples, p.dim(1)};
  Value positive = compare_with(b, p, 0, Comparison::GT);
  Value index = b.iota({DType::S32, p.dims()}, 1);
  Value last = b.reduce(b.select(positive, index, zeros(b, DType::S32, p.dims())), {1}, hlo::Reduction::Max);
  Value sums = running_sum(b, p);
  Value total = b.reshape(b.slice_dim(sums, 1, p.dim(1) - 1, p.dim(1)), {p.dim(0)});
  Value share = b.multiply(random_unit(b, random, p.dtype(), {p.dim(0), samples}), along(b, total, {p.dim(0), samples}, 0));
  Value exceeds = b.compare(b.broadcast_in_dim(sums, cube, {0, 2}), b.broadcast_in_dim(share, cube, {0, 1}), Comparison::GT);
  Value hit = b.logical_and(exceeds, b.broadcast_in_dim(positive, cube, {0, 2}));
  return b.reduce(b.select(hit, b.broadcast_in_dim(index, cube, {0, 2}), along(b, last, cube, 0)), {2}, hlo::Reduction::Min);
}

// Without replacement: the order of p / Exp(1) is that of draws one after the other ("exponential race").
Value sample_distinct(Builder& b, Value p, int64_t samples, const Random& random) {
  Value q = standard_exponential(b, random, p.dtype(), p.dims(), Stream::Wide);
  return b.slice_dim(order_by(b, b.divide(p, q), Comparison::GT), 1, 0, samples);
}

void check_weights(Builder& b, Value p, int64_t distinct) {
  if (!checks_wanted()) return;
  Value positive = compare_with(b, p, 0, Comparison::GT);
  check(b, b.logical_and(b.is_finite(p), compare_with(b, p, 0, Comparison::GE)),
        "probability tensor contains either `inf`, `nan` or element < 0");
  Value count = b.reduce(b.convert(positive, DType::S32), {1}, hlo::Reduction::Sum);
  check(b, compare_with(b, count, 1, Comparison::GE), "invalid multinomial distribution (sum of probabilities <= 0)");
  check(b, compare_with(b, count, static_cast<double>(distinct), Comparison::GE),
        "invalid multinomial distribution (with replacement=False, not enough non-negative category to sample)");
}

Value multinomial(Builder& b, Value self, int64_t num_samples, bool replacement, const Random& random) {
  require_real("multinomial", self);
  if (self.rank() != 1 && self.rank() != 2) raise<InvalidArgument>("prob_dist must be 1 or 2 dim");
  if (num_samples <= 0) raise<InvalidArgument>("cannot sample n_sample <= 0 samples");
  int64_t categories = self.dims().back();
  if (!replacement && num_samples > categories)
    raise<InvalidArgument>("cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  Value p = convert(b, self, draw_type(self.dtype()));
  if (self.rank() == 1) p = b.reshape(p, {1, categories});
  check_weights(b, p, replacement ? 1 : num_samples);
  bool each = replacement || num_samples == 1;
  Value chosen = each ? sample_each(b, p, num_samples, random) : sample_distinct(b, p, num_samples, random);
  Dims dims = replaced(self.dims(), self.rank() - 1, num_samples);
  return b.reshape(b.convert(chosen, DType::S64), dims);
}

constexpr Row kRows[] = {
    row("aten::uniform", lower<&uniform>()),
    row("aten::normal_functional", lower<&normal_functional>()),
    row("aten::normal.Tensor_Tensor", lower<&normal_tensor_tensor>()),
    row("aten::normal.Tensor_float", lower<&normal_tensor_float>()),
    row("aten::normal.float_Tensor", lower<&normal_float_tensor>()),
    row("aten::log_normal", lower<&log_normal>()),
    row("aten::cauchy", lower<&cauchy>()),
    row("aten::exponential", lower<&exponential>()),
    row("aten::geometric", lower<&geometric>()),
    row("aten::bernoulli", lower<&bernoulli>()),
    row("aten::bernoulli.p", lower<&bernoulli_p>()),
    row("aten::bernoulli.Tensor", lower<&bernoulli_tensor>()),
    row("aten::native_dropout", lower<&native_dropout>()),
    row("aten::native_dropout_backward", lower<&native_dropout_backward>()),
    row("aten::random", lower<&random_plain>()),
    row("aten::random.from", lower<&random_from>()),
    row("aten::random.to", lower<&random_to>()),
    row("aten::randperm", lower<&randperm>()),
    row("aten::randperm.generator", lower<&randperm>()),
    row("aten::multinomial", lower<&multinomial>()),
};

}  // namespace

std::span<const Row> random_rows() { return kRows; }

}  // namespace flambeau::ops
