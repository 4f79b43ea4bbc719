#include <fmt/format.h>

#include "hlo/builder.h"

namespace flambeau::hlo {
namespace {

// Groups of element types, as bits: what an operation accepts.
enum : unsigned { kPred = 1, kSigned = 2, kUnsigned = 4, kFloat = 8, kComplex = 16 };
constexpr unsigned kInteger = kSigned | kUnsigned;
constexpr unsigned kNumber = kInteger | kFloat | kComplex;

unsigned group_of(DType t) {
  if (t == DType::Pred) return kPred;
  if (is_signed_integer(t)) return kSigned;
  if (is_unsigned_integer(t)) return kUnsigned;
  return is_float(t) ? kFloat : kComplex;
}

std::string describe(unsigned groups) {
  std::string text;
  auto add = [&](unsigned group, std::string_view name) {
    if ((groups & group) != group) return;
    groups &= ~group;
    text += (text.empty() ? "" : groups ? ", " : " or ") + std::string(name);
  };
  add(kPred, "i1");
  add(kInteger, "integer");
  add(kSigned, "signed integer");
  add(kUnsigned, "unsigned integer");
  add(kFloat, "float");
  add(kComplex, "complex");
  return text;
}

// Zero: not an operation of one operand.
unsigned unary_groups(Op op) {
  switch (op) {
    case Op::Abs:
    case Op::Sign: return kSigned | kFloat | kComplex;
    case Op::Negate: return kNumber;
    case Op::Ceil:
    case Op::Floor:
    case Op::IsFinite:
    case Op::RoundNearestAfz:
    case Op::RoundNearestEven: return kFloat;
    case Op::CountLeadingZeros:
    case Op::PopulationCount: return kInteger;
    case Op::Not: return kPred | kInteger;
    case Op::Cbrt:
    case Op::Cosine:
    case Op::Exponential:
    case Op::ExponentialMinusOne:
    case Op::Imag:
    case Op::Log:
    case Op::LogPlusOne:
    case Op::Logistic:
    case Op::Real:
    case Op::Rsqrt:
    case Op::Sine:
    case Op::Sqrt:
    case Op::Tan:
    case Op::Tanh: return kFloat | kComplex;
    default: return 0;
  }
}

unsigned binary_groups(Op op) {
  switch (op) {
    case Op::Add:
    case Op::Multiply: return kPred | kNumber;
    case Op::Maximum:
    case Op::Minimum: return kPred | kInteger | kFloat;
    case Op::And:
    case Op::Or:
    case Op::Xor: return kPred | kInteger;
    case Op::Atan2: return kFloat | kComplex;
    case Op::Complex: return kFloat;
    case Op::Divide:
    case Op::Power:
    case Op::Subtract: return kNumber;
    case Op::Remainder: return kInteger | kFloat;
    case Op::ShiftLeft:
    case Op::ShiftRightArithmetic:
    case Op::ShiftRightLogical: return kInteger;
    default: return 0;
  }
}

// Plugins disagree about arithmetic on i1 (true + true): say what StableHLO means by it.
Op logical_form(Op op) {
  switch (op) {
    case Op::Add:
    case Op::Maximum: return Op::Or;
    case Op::Multiply:
    case Op::Minimum: return Op::And;
    default: return op;
  }
}

DType real_part(DType t) { return t == DType::C64 ? DType::F32 : t == DType::C128 ? DType::F64 : t; }

std::string_view direction_name(Comparison direction) {
  constexpr std::string_view kNames[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
  return kNames[static_cast<size_t>(direction)];
}

}  // namespace

Value Builder::unary(Op op, Value x) {
  check_operands(op, {x});
  const unsigned groups = unary_groups(op);
  if (!groups) fail(op, "expected an operation of one operand; call this one's own method");
  if (!(groups & group_of(x.dtype())))
    fail(op, fmt::format("expected {} elements, got {}", describe(groups), x.type().to_string()));
  Type type = x.type();
  if (op == Op::IsFinite) type.dtype = DType::Pred;
  if (op == Op::Abs || op == Op::Real || op == Op::Imag) type.dtype = real_part(type.dtype);
  return emit(op, {x}, std::move(type));
}

Value Builder::binary(Op op, Value x, Value y) {
  check_operands(op, {x, y});
  const unsigned groups = binary_groups(op);
  if (!groups) fail(op, "expected an operation of two operands; call this one's own method");
  if (x.type() != y.type())
    fail(op, fmt::format("expected operands of one type, got {} and {}", x.type().to_string(), y.type().to_string()));
  if (!(groups & group_of(x.dtype())))
    fail(op, fmt::format("expected {} elements, got {}", describe(groups), x.type().to_string()));
  Type type = x.type();
  if (type.dtype == DType::Pred) op = logical_form(op);
  if (op == Op::Complex) {
    if (type.dtype != DType::F32 && type.dtype != DType::F64)
      fail(op, fmt::format("expected f32 or f64 parts, got {}", type.to_string()));
    type.dtype = type.dtype == DType::F32 ? DType::C64 : DType::C128;
  }
  return emit(op, {x, y}, std::move(type));
}

Value Builder::compare(Value x, Value y, Comparison direction) {
  constexpr Op op = Op::Compare;
  check_operands(op, {x, y});
  if (x.type() != y.type())
    fail(op, fmt::format("expected operands of one type, got {} and {}", x.type().to_string(), y.type().to_string()));
  if (is_complex(x.dtype()) && direction != Comparison::EQ && direction != Comparison::NE)
    fail(op, fmt::format("expected EQ or NE for complex elements, got {}", direction_name(direction)));
  const bool floating = is_float(x.dtype()) || is_complex(x.dtype());
  const std::string_view kind = floating ? "FLOAT" : is_signed_integer(x.dtype()) ? "SIGNED" : "UNSIGNED";
  return emit(
      op, {x, y}, Type{DType::Pred, x.dims()},
      {{"comparison_direction", RawAttribute{fmt::format("#stablehlo<comparison_direction {}>", direction_name(direction))}},
       {"compare_type", RawAttribute{fmt::format("#stablehlo<comparison_type {}>", kind)}}});
}

Value Builder::select(Value condition, Value on_true, Value on_false) {
  constexpr Op op = Op::Select;
  check_operands(op, {condition, on_true, on_false});
  if (on_true.type() != on_false.type())
    fail(op, fmt::format("expected alternatives of one type, got {} and {}", on_true.type().to_string(),
                         on_false.type().to_string()));
  if (condition.dtype() != DType::Pred || (condition.rank() != 0 && condition.dims() != on_true.dims()))
    fail(op, fmt::format("expected a condition of type tensor<i1> or {}, got {}",
                         Type{DType::Pred, on_true.dims()}.to_string(), condition.type().to_string()));
  return emit(op, {condition, on_true, on_false}, on_true.type());
}

Value Builder::clamp(Value low, Value x, Value high) {
  constexpr Op op = Op::Clamp;
  check_operands(op, {low, x, high});
  if (is_complex(x.dtype())) fail(op, fmt::format("expected elements with an order, got {}", x.type().to_string()));
  for (Value bound : {low, high})
    if (bound.dtype() != x.dtype() || (bound.rank() != 0 && bound.dims() != x.dims()))
      fail(op, fmt::format("expected bounds of type {} or {}, got {}", Type{x.dtype(), {}}.to_string(), x.type().to_string(),
                           bound.type().to_string()));
  return emit(op, {low, x, high}, x.type());
}

Value Builder::convert(Value x, DType dtype) {
  check_operands(Op::Convert, {x});
  if (x.dtype() == dtype) return x;
  return emit(Op::Convert, {x}, Type{dtype, x.dims()});
}

Value Builder::bitcast_convert(Value x, DType dtype) {
  constexpr Op op = Op::BitcastConvert;
  check_operands(op, {x});
  if (x.dtype() == dtype) return x;
  if (x.dtype() == DType::Pred || dtype == DType::Pred || is_complex(x.dtype()) != is_complex(dtype))
    fail(op, fmt::format("expected two number types, both complex or neither, got {} and {}", hlo_name(x.dtype()),
                         hlo_name(dtype)));
  Type type{dtype, x.dims()};
  const int64_t from = byte_size(x.dtype()), to = byte_size(dtype);
  if (from > to) {
    type.dims.push_back(from / to);
  } else if (from < to) {
    if (x.rank() == 0 || x.dims().back() != to / from)
      fail(op, fmt::format("expected a last dimension of {} to merge into {}, got {}", to / from, hlo_name(dtype),
                           x.type().to_string()));
    type.dims.pop_back();
  }
  return emit(op, {x}, std::move(type));
}

}  // namespace flambeau::hlo
