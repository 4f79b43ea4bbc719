// Comparisons, logic, bits, classification of floats, selection by a mask.
#include <limits>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using hlo::Op;

// ---- comparisons -----------------------------------------------------------------------------------------------------------

template <Comparison direction>
Value compare(Builder& b, Operand x, Operand y) {
  if (direction != Comparison::EQ && direction != Comparison::NE) refuse_complex("comparison_cpu", result_type({x, y}));
  auto v = align(b, {x, y}, result_type({x, y}));
  return b.compare(v[0], v[1], direction);
}
template <Comparison direction>
Value compare_scalar(Builder& b, Value x, Scalar y) { return compare<direction>(b, {x}, y.operand(b)); }

// ---- logic and bits ----------------------------------------------------------------------------------------------------------

template <Op op>
Value logical(Builder& b, Operand x, Operand y) {
  auto v = align(b, {x, y}, DType::Pred);
  return b.binary(op, v[0], v[1]);
}
Value logical_not(Builder& b, Value x) { return b.logical_not(convert(b, x, DType::Pred)); }

template <Op op>
Value bitwise(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  require_integral(op == Op::And ? "bitwise_and_cpu" : op == Op::Or ? "bitwise_or_cpu" : "bitwise_xor_cpu", result);
  auto v = align(b, {x, y}, result);
  return b.binary(op, v[0], v[1]);
}
Value bitwise_not(Builder& b, Value x) {
  require_integral("bitwise_not_cpu", x.dtype());
  return b.logical_not(x);
}

// Shifting by more than the bits, or by a negative number, gives what StableHLO gives: 0, or the sign everywhere.
enum class Shift { Left, Right };
template <Shift direction>
Value shift(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  require_integral(direction == Shift::Left ? "lshift_cpu" : "rshift_cpu", result);
  refuse_bool(direction == Shift::Left ? "lshift_cpu" : "rshift_cpu", result);
  auto v = align(b, {x, y}, result);
  if (direction == Shift::Left) return b.shift_left(v[0], v[1]);
  return is_unsigned_integer(result) ? b.shift_right_logical(v[0], v[1]) : b.shift_right_arithmetic(v[0], v[1]);
}

template <auto F>
Value with_scalar(Builder& b, Value x, Scalar y) { return F(b, Operand{x}, y.operand(b)); }
template <auto F>
Value with_scalar_first(Builder& b, Scalar x, Value y) { return F(b, x.operand(b), Operand{y}); }

// ---- classes of floats ---------------------------------------------------------------------------------------------------------

Value equals_infinity(Builder& b, Value x, double sign) {
  if (!is_float(x.dtype())) return b.constant(DType::Pred, 0, x.dims());
  return b.compare(x, constant_like(b, x, sign * std::numeric_limits<double>::infinity()), Comparison::EQ);
}
Value is_inf(Builder& b, Value x) {
  if (is_complex(x.dtype())) return b.logical_or(is_inf(b, b.real(x)), is_inf(b, b.imag(x)));
  return is_float(x.dtype()) ? equals_infinity(b, b.abs(x), 1) : equals_infinity(b, x, 1);
}
template <int sign>
Value is_signed_infinity(Builder& b, Value x) {
  if (is_complex(x.dtype())) raise<InvalidArgument>("{} does not support complex inputs.", sign > 0 ? "isposinf" : "isneginf");
  return equals_infinity(b, x, sign);
}

Value signbit(Builder& b, Value x) {
  if (is_complex(x.dtype())) raise<NotImplemented>("signbit is not implemented for complex tensors.");
  if (x.dtype() == DType::Pred || is_unsigned_integer(x.dtype())) return b.constant(DType::Pred, 0, x.dims());
  if (is_float(x.dtype())) {
    int64_t bytes = byte_size(x.dtype());
    x = b.bitcast_convert(x, bytes == 8 ? DType::S64 : bytes == 4 ? DType::S32 : bytes == 2 ? DType::S16 : DType::S8);
  }
  return b.compare(x, constant_like(b, x, 0), Comparison::LT);
}

// ---- selection ------------------------------------------------------------------------------------------------------------------

Value where(Builder& b, Value condition, Operand x, Operand y) {
  if (condition.dtype() != DType::Pred && condition.dtype() != DType::U8)
    raise<InvalidArgument>("where expected condition to be a boolean tensor, but got a tensor with dtype {}", torch_name(condition.dtype()));
  DType result = result_type({x, y});
  Dims dims = broadcast_dims(broadcast_dims(condition.dims(), x.value.dims()), y.value.dims());
  auto full = [&](Value v, DType dtype) { return b.broadcast(convert(b, v, dtype), dims); };
  return b.select(full(condition, DType::Pred), full(x.value, result), full(y.value, result));
}

Value masked_fill(Builder& b, Value x, Value mask, Value value) {
  if (mask.dtype() != DType::Pred)
    raise<InvalidArgument>("masked_fill_ only supports boolean masks, but got mask with dtype {}", torch_name(mask.dtype()));
  Dims dims = broadcast_dims(x.dims(), mask.dims());
  return b.select(b.broadcast(mask, dims), b.broadcast(value, dims), b.broadcast(x, dims));
}

Value masked_fill_scalar(Builder& b, Value x, Value mask, Scalar value) {
  check_fits(value, x.dtype());
  return masked_fill(b, x, mask, value.as(b, x.dtype()));
}

Value masked_fill_tensor(Builder& b, Value x, Value mask, Value value) {
  if (value.rank() != 0)
    raise<InvalidArgument>("masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).", value.rank());
  if (!can_cast(value.dtype(), x.dtype()) && is_complex(value.dtype()))
    raise<InvalidArgument>("value cannot be converted to type {}", torch_name(x.dtype()));
  return masked_fill(b, x, mask, convert(b, value, x.dtype()));
}

constexpr Row kRows[] = {
    row("aten::eq.Tensor", lower<&compare<Comparison::EQ>>()),
    row("aten::eq.Scalar", lower<&compare_scalar<Comparison::EQ>>()),
    row("aten::ne.Tensor", lower<&compare<Comparison::NE>>()),
    row("aten::ne.Scalar", lower<&compare_scalar<Comparison::NE>>()),
    row("aten::lt.Tensor", lower<&compare<Comparison::LT>>()),
    row("aten::lt.Scalar", lower<&compare_scalar<Comparison::LT>>()),
    row("aten::le.Tensor", lower<&compare<Comparison::LE>>()),
    row("aten::le.Scalar", lower<&compare_scalar<Comparison::LE>>()),
    row("aten::gt.Tensor", lower<&compare<Comparison::GT>>()),
    row("aten::gt.Scalar", lower<&compare_scalar<Comparison::GT>>()),
    row("aten::ge.Tensor", lower<&compare<Comparison::GE>>()),
    row("aten::ge.Scalar", lower<&compare_scalar<Comparison::GE>>()),
    row("aten::logical_and", lower<&logical<Op::And>>()),
    row("aten::logical_or", lower<&logical<Op::Or>>()),
    row("aten::logical_xor", lower<&logical<Op::Xor>>()),
    row("aten::logical_not", lower<&logical_not>()),
    row("aten::bitwise_and.Tensor", lower<&bitwise<Op::And>>()),
    row("aten::bitwise_and.Scalar", lower<&with_scalar<&bitwise<Op::And>>>()),
    row("aten::bitwise_and.Scalar_Tensor", lower<&with_scalar_first<&bitwise<Op::And>>>()),
    row("aten::bitwise_or.Tensor", lower<&bitwise<Op::Or>>()),
    row("aten::bitwise_or.Scalar", lower<&with_scalar<&bitwise<Op::Or>>>()),
    row("aten::bitwise_or.Scalar_Tensor", lower<&with_scalar_first<&bitwise<Op::Or>>>()),
    row("aten::bitwise_xor.Tensor", lower<&bitwise<Op::Xor>>()),
    row("aten::bitwise_xor.Scalar", lower<&with_scalar<&bitwise<Op::Xor>>>()),
    row("aten::bitwise_xor.Scalar_Tensor", lower<&with_scalar_first<&bitwise<Op::Xor>>>()),
    row("aten::bitwise_not", lower<&bitwise_not>()),
    row("aten::bitwise_left_shift.Tensor", lower<&shift<Shift::Left>>()),
    row("aten::bitwise_left_shift.Tensor_Scalar", lower<&with_scalar<&shift<Shift::Left>>>()),
    row("aten::bitwise_left_shift.Scalar_Tensor", lower<&with_scalar_first<&shift<Shift::Left>>>()),
    row("aten::bitwise_right_shift.Tensor", lower<&shift<Shift::Right>>()),
    row("aten::bitwise_right_shift.Tensor_Scalar", lower<&with_scalar<&shift<Shift::Right>>>()),
    row("aten::bitwise_right_shift.Scalar_Tensor", lower<&with_scalar_first<&shift<Shift::Right>>>()),
    row("aten::__lshift__.Tensor", lower<&shift<Shift::Left>>()),
    row("aten::__lshift__.Scalar", lower<&with_scalar<&shift<Shift::Left>>>()),
    row("aten::__rshift__.Tensor", lower<&shift<Shift::Right>>()),
    row("aten::__rshift__.Scalar", lower<&with_scalar<&shift<Shift::Right>>>()),
    row("aten::isnan", lower<&is_nan>()),
    row("aten::isinf", lower<&is_inf>()),
    row("aten::isposinf", lower<&is_signed_infinity<1>>()),
    row("aten::isneginf", lower<&is_signed_infinity<-1>>()),
    row("aten::signbit", lower<&signbit>()),
    row("aten::where.self", lower<&where>()),
    row("aten::masked_fill.Scalar", lower<&masked_fill_scalar>(), Mark::Fits),
    row("aten::masked_fill.Tensor", lower<&masked_fill_tensor>()),
};

}  // namespace

std::span<const Row> logic_rows() { return kRows; }

}  // namespace flambeau::ops
