// Tensors from numbers, and conversions.
#include <cmath>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;

DType number_dtype(const Scalar& s) {
  DType category = s.category();
  return category == DType::F64 ? kDefaultFloat : category == DType::C128 ? DType::C64 : category == DType::U64 ? DType::S64 : category;
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

bool is_integral(const Number& n) { return n.category() != DType::F64 && n.category() != DType::C128; }

int64_t arange_size(double start, double end, double step) {
  double distance = end - start;
  if (!std::isfinite(distance)) raise<InvalidArgument>("unsupported range: {} -> {}", start, end);
  if (distance != 0 && (distance > 0) != (step > 0)) raise<InvalidArgument>("upper bound and lower bound inconsistent with step sign");
  return static_cast<int64_t>(std::ceil(distance / step));
}

// For int64 results PyTorch cuts the numbers first.
int64_t arange_size(int64_t start, int64_t end, int64_t step) {
  if (step == 0) raise<InvalidValue>("step must be nonzero");
  if (start != end && (end > start) != (step > 0)) raise<InvalidArgument>("upper bound and lower bound inconsistent with step sign");
  uint64_t distance = end > start ? static_cast<uint64_t>(end) - static_cast<uint64_t>(start)
                                  : static_cast<uint64_t>(start) - static_cast<uint64_t>(end);
  uint64_t by = step > 0 ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
  return static_cast<int64_t>(distance / by + (distance % by != 0));
}

Value arange_step(Builder& b, Scalar start, Scalar end, Scalar step, std::optional<DType> dtype) {
  const Number &first = start.number("arange"), &last = end.number("arange"), &by = step.number("arange");
  bool integers = is_integral(first) && is_integral(last) && is_integral(by);
  DType result = dtype.value_or(integers ? DType::S64 : kDefaultFloat);
  refuse_bool("arange", result);
  if (is_complex(result)) refuse_dtype("arange", result);
  if (by.as_double() == 0) raise<InvalidArgument>("step must be nonzero");
  int64_t size = result == DType::S64 ? arange_size(first.as_int(), last.as_int(), by.as_int())
                                      : arange_size(first.as_double(), last.as_double(), by.as_double());
  // Whole numbers that float32 holds need no more; others accumulate in float64, as on the CPU.
  auto is_small = [](double v) { return v == std::trunc(v) && std::abs(v) <= 0x1p24; };
  bool exact = is_small(first.as_double()) && is_small(last.as_double()) && is_small(last.as_double() - first.as_double()) &&
               is_small(by.as_double());
  DType compute = is_integer(result) ? DType::S64 : exact ? compute_type(result) : DType::F64;
  auto spread_over = [&](const Scalar& s) { return b.broadcast(s.as(b, compute), {size}); };
  Value values = b.convert(b.iota({DType::S64, {size}}, 0), compute);
  if (by.as_double() != 1) values = b.multiply(values, spread_over(step));
  if (first.as_double() != 0) values = b.add(values, spread_over(start));
  return convert(b, values, result);
}
Value arange_start(Builder& b, Scalar start, Scalar end, std::optional<DType> dtype) {
  return arange_step(b, start, end, Scalar{Number{int64_t{1}}, {}}, dtype);
}
Value arange(Builder& b, Scalar end, std::optional<DType> dtype) { return arange_start(b, Scalar{Number{int64_t{0}}, {}}, end, dtype); }

// `steps` numbers from start to end in the dtype of computation: the first half counts from the start, the second back from the end, so
// that both ends are exact. As in PyTorch, integer results start from integers and step in float64.
Value spaced(Builder& b, const Scalar& start, const Scalar& end, int64_t steps, DType result) {
  DType compute = is_integer(result) ? DType::F64 : compute_type(result);
  auto bound = [&](const Scalar& s) {
    check_fits(s, result);
    return is_integer(result) ? b.convert(s.as(b, result), compute) : s.as(b, compute);
  };
  auto spread_over = [&](Value v) { return b.broadcast(v, {steps}); };
  Value low = bound(start), high = bound(end);
  if (steps == 1) return spread_over(low);
  Value step = b.divide(b.subtract(high, low), b.constant(compute, steps - 1));
  Value i = b.iota({DType::S64, {steps}}, 0);
  Value back = b.subtract(b.broadcast(b.constant(DType::S64, steps - 1), {steps}), i);
  Value from_start = b.add(spread_over(low), b.multiply(spread_over(step), b.convert(i, compute)));
  Value from_end = b.subtract(spread_over(high), b.multiply(spread_over(step), b.convert(back, compute)));
  Value first_half = b.compare(i, b.broadcast(b.constant(DType::S64, steps / 2), {steps}), Comparison::LT);
  return b.select(first_half, from_start, from_end);
}

DType spaced_type(std::string_view op, const Scalar& start, const Scalar& end, int64_t steps, std::optional<DType> dtype) {
  if (steps < 0) raise<InvalidArgument>("number of steps must be non-negative");
  bool complex = is_complex(start.category()) || is_complex(end.category());
  if (complex && dtype && !is_complex(*dtype))
    raise<InvalidArgument>("torch.{}(): inferred dtype c10::complex<float> can't be safely cast to passed dtype {}", op, torch_name(*dtype));
  DType result = dtype.value_or(complex ? DType::C64 : kDefaultFloat);
  refuse_bool(op == "linspace" ? "linspace_cpu" : "logspace_cpu", result);
  return result;
}

Value linspace(Builder& b, Scalar start, Scalar end, int64_t steps, std::optional<DType> dtype) {
  DType result = spaced_type("linspace", start, end, steps, dtype);
  return convert(b, spaced(b, start, end, steps, result), result);
}

Value logspace(Builder& b, Scalar start, Scalar end, int64_t steps, double base, std::optional<DType> dtype) {
  DType result = spaced_type("logspace", start, end, steps, dtype);
  Value exponent = spaced(b, start, end, steps, result);
  return convert(b, b.power(b.constant(exponent.dtype(), base, {steps}), exponent), result);
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
    row("aten::full", lower<&full>(), Mark::Fits),
    row("aten::full_like", lower<&full_like>(), Mark::Fits),
    row("aten::scalar_tensor", lower<&scalar_tensor>(), Mark::Fits),
    row("aten::fill.Scalar", lower<&fill>(), Mark::Fits),
    row("aten::fill.Tensor", lower<&fill_tensor>()),
    row("aten::zero", lower<&zero>()),
    row("aten::_to_copy", lower<&to_copy>()),
    row("aten::copy", lower<&copy>()),
    row("aten::arange", lower<&arange>(), Mark::Specialise),
    row("aten::arange.start", lower<&arange_start>(), Mark::Specialise),
    row("aten::arange.start_step", lower<&arange_step>(), Mark::Specialise),
    row("aten::linspace", lower<&linspace>(), Mark::Fits),
    row("aten::logspace", lower<&logspace>(), Mark::Fits),
    row("aten::eye", lower<&eye>()),
    row("aten::eye.m", lower<&eye_rectangle>()),
    row("aten::tril", lower<&triangle<Comparison::LE>>()),
    row("aten::triu", lower<&triangle<Comparison::GE>>()),
};

}  // namespace

std::span<const Row> creation_rows() { return kRows; }

}  // namespace flambeau::ops
