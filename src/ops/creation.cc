// Tensors from numbers, and conversions.
#include <cmath>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

void check_fits(const Scalar& number, DType dtype) {
  if (!number.known || dtype == DType::Pred) return;
  double low, high;
  int bits = static_cast<int>(8 * byte_size(dtype));
  bool from_integer = number.category() == DType::S64 || number.category() == DType::Pred;
  if (is_signed_integer(dtype)) {
    high = std::ldexp(1.0, bits - 1);
    low = -high;
  } else if (is_unsigned_integer(dtype)) {
    high = std::ldexp(1.0, bits);
    low = from_integer ? 1 - high : 0;
  } else if (dtype == DType::F16) {
    high = 65504.5;
    low = -high;
  } else {
    return;
  }
  double v = number.known->as_double();
  if (std::isinf(v) && !is_integer(dtype)) return;
  if (!(v >= low && v < high) && !(std::isnan(v) && !is_integer(dtype)))
    raise<InvalidArgument>("value cannot be converted to type {} without overflow", torch_name(dtype));
}

namespace {

using hlo::Comparison;

DType number_dtype(const Scalar& s) {
  DType category = s.category();
  return category == DType::F64 ? kDefaultFloat : category == DType::C128 ? DType::C64 : category;
}

void check_sizes(const Dims& dims) {
  for (int64_t d : dims)
    if (d < 0) raise<InvalidArgument>("Trying to create tensor with negative dimension {}: {}", d, shape_text(dims));
}

Value full(Builder& b, Dims size, Scalar value, std::optional<DType> dtype) {
  check_sizes(size);
  DType result = dtype.value_or(number_dtype(value));
  check_fits(value, result);
  return b.broadcast(value.as(b, result), size);
}
Value full_like(Builder& b, Value x, Scalar value, std::optional<DType> dtype) { return full(b, x.dims(), value, dtype.value_or(x.dtype())); }
Value scalar_tensor(Builder& b, Scalar value, std::optional<DType> dtype) { return full(b, {}, value, dtype.value_or(kDefaultFloat)); }

Value fill(Builder& b, Value x, Scalar value) {
  check_fits(value, x.dtype());
  return scalar_like(b, x, value);
}
Value fill_tensor(Builder& b, Value x, Value value) {
  if (value.rank() != 0)
    raise<InvalidArgument>("fill_ only supports 0-dimension value tensor but got tensor with {} dimensions.", value.rank());
  return b.broadcast(convert(b, value, x.dtype()), x.dims());
}
Value zero(Builder& b, Value x) { return zeros(b, x.dtype(), x.dims()); }

Value to_copy(Builder& b, Value x, std::optional<DType> dtype, bool) { return convert(b, x, dtype.value_or(x.dtype())); }

Value copy(Builder& b, Value x, Value source, bool) {
  bool fits = source.rank() <= x.rank();
  for (int64_t k = 1; fits && k <= source.rank(); ++k) {
    int64_t n = source.dim(source.rank() - k);
    fits = n == 1 || n == x.dim(x.rank() - k);
  }
  if (!fits)
    raise<InvalidArgument>("The expanded size of the tensor {} must match the existing size {}.", shape_text(x.dims()), shape_text(source.dims()));
  return b.broadcast(convert(b, source, x.dtype()), x.dims());
}

// ---- ranges --------------------------------------------------------------------------------------------------------------------

// ceil((end - start) / step); in integers where all are, as doubles lose digits beyond 2^53.
int64_t arange_size(const Number& start, const Number& end, const Number& step, bool integers) {
  double s = step.as_double(), distance = end.as_double() - start.as_double();
  if (s == 0) raise<InvalidArgument>("step must be nonzero");
  if (!std::isfinite(distance))
    raise<InvalidArgument>("unsupported range: {} -> {}", start.as_double(), end.as_double());
  if (distance != 0 && (distance > 0) != (s > 0))
    raise<InvalidArgument>("upper bound and lower bound inconsistent with step sign");
  if (!integers) return static_cast<int64_t>(std::ceil(distance / s));
  int64_t span = end.as_int() - start.as_int(), by = step.as_int();
  return span / by + (span % by != 0);
}

Value arange_step(Builder& b, Scalar start, Scalar end, Scalar step, std::optional<DType> dtype) {
  const Number &first = start.number("arange"), &last = end.number("arange"), &by = step.number("arange");
  bool integers = true;
  for (const Number* n : {&first, &last, &by}) integers &= n->category() == DType::S64 || n->category() == DType::Pred;
  DType result = dtype.value_or(integers ? DType::S64 : kDefaultFloat);
  refuse_bool("arange", result);
  bool as_integers = is_integer(result);
  if (as_integers && by.as_int() == 0) raise<InvalidArgument>("step must be nonzero");
  int64_t size = arange_size(first, last, by, as_integers && integers);
  DType compute = as_integers ? DType::S64 : compute_type(result);
  Value values = b.iota({compute, {size}}, 0);
  if (as_integers) {
    if (by.as_int() != 1) values = b.multiply(values, b.broadcast(b.constant(compute, by.as_int()), {size}));
    if (first.as_int() != 0) values = b.add(values, b.broadcast(b.constant(compute, first.as_int()), {size}));
  } else {
    values = times(b, values, by.as_double());
    if (first.as_double() != 0) values = plus(b, values, first.as_double());
  }
  return convert(b, values, result);
}
Value arange_start(Builder& b, Scalar start, Scalar end, std::optional<DType> dtype) {
  return arange_step(b, start, end, Scalar{Number{int64_t{1}}, {}}, dtype);
}
Value arange(Builder& b, Scalar end, std::optional<DType> dtype) { return arange_start(b, Scalar{Number{int64_t{0}}, {}}, end, dtype); }

// The first half counts from the start, the second back from the end, so that both ends are exact.
Value linspace(Builder& b, Scalar start, Scalar end, int64_t steps, std::optional<DType> dtype) {
  if (steps < 0) raise<InvalidArgument>("number of steps must be non-negative");
  DType result = dtype.value_or(kDefaultFloat);
  refuse_bool("linspace_cpu", result);
  DType compute = is_float(result) ? compute_type(result) : DType::F32;
  if (steps == 1) return b.broadcast(convert(b, start.as(b, compute), result), {1});
  auto spread_over = [&](Value v) { return b.broadcast(v, {steps}); };
  // An integer result starts from integers: PyTorch converts the ends first.
  auto bound = [&](const Scalar& s) { return is_integer(result) ? convert(b, s.as(b, result), compute) : s.as(b, compute); };
  Value low = bound(start), high = bound(end);
  Value step = b.divide(b.subtract(high, low), b.constant(compute, static_cast<double>(steps - 1)));
  Value i = b.iota({DType::S32, {steps}}, 0);
  Value back = b.subtract(b.broadcast(b.constant(DType::S32, steps - 1), {steps}), i);
  Value from_start = b.add(spread_over(low), b.multiply(spread_over(step), b.convert(i, compute)));
  Value from_end = b.subtract(spread_over(high), b.multiply(spread_over(step), b.convert(back, compute)));
  Value first_half = compare_with(b, i, static_cast<double>(steps / 2), Comparison::LT);
  return convert(b, b.select(first_half, from_start, from_end), result);
}

// ---- matrices -------------------------------------------------------------------------------------------------------------------

// Pred [dims]: column - row `direction` diagonal, over the last two dimensions.
Value diagonal_mask(Builder& b, const Dims& dims, int64_t diagonal, Comparison direction) {
  Dims matrix(dims.end() - 2, dims.end());
  Value row = b.iota({DType::S32, matrix}, 0), column = b.iota({DType::S32, matrix}, 1);
  // Beyond the matrix every diagonal is alike.
  diagonal = std::clamp(diagonal, -matrix[0] - 1, matrix[1] + 1);
  if (diagonal != 0) row = b.add(row, b.broadcast(b.constant(DType::S32, diagonal), matrix));
  return b.broadcast(b.compare(column, row, direction), dims);
}

Value eye_rectangle(Builder& b, int64_t n, int64_t m, std::optional<DType> dtype) {
  if (n < 0) raise<InvalidArgument>("n must be greater or equal to 0, got {}", n);
  if (m < 0) raise<InvalidArgument>("m must be greater or equal to 0, got {}", m);
  return b.convert(diagonal_mask(b, {n, m}, 0, Comparison::EQ), dtype.value_or(kDefaultFloat));
}
Value eye(Builder& b, int64_t n, std::optional<DType> dtype) { return eye_rectangle(b, n, n, dtype); }

template <Comparison kept>
Value triangle(Builder& b, Value x, int64_t diagonal) {
  if (x.rank() < 2) raise<InvalidArgument>("{}: input tensor must have at least 2 dimensions", kept == Comparison::LE ? "tril" : "triu");
  return b.select(diagonal_mask(b, x.dims(), diagonal, kept), x, zeros(b, x.dtype(), x.dims()));
}

constexpr Row kRows[] = {
    row("aten::full", lower<&full>()),
    row("aten::full_like", lower<&full_like>()),
    row("aten::scalar_tensor", lower<&scalar_tensor>()),
    row("aten::fill.Scalar", lower<&fill>()),
    row("aten::fill.Tensor", lower<&fill_tensor>()),
    row("aten::zero", lower<&zero>()),
    row("aten::_to_copy", lower<&to_copy>()),
    row("aten::copy", lower<&copy>()),
    row("aten::arange", lower<&arange>(), Mark::Specialise),
    row("aten::arange.start", lower<&arange_start>(), Mark::Specialise),
    row("aten::arange.start_step", lower<&arange_step>(), Mark::Specialise),
    row("aten::linspace", lower<&linspace>()),
    row("aten::eye", lower<&eye>()),
    row("aten::eye.m", lower<&eye_rectangle>()),
    row("aten::tril", lower<&triangle<Comparison::LE>>()),
    row("aten::triu", lower<&triangle<Comparison::GE>>()),
};

}  // namespace

std::span<const Row> creation_rows() { return kRows; }

}  // namespace flambeau::ops
