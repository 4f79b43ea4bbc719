// Addition to powers, extremes of two, interpolation.
#include "hlo/elements.h"
#include "ops/check.h"
#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;

bool integral(DType t) { return is_integer(t) || t == DType::Pred; }

// Of add, sub and their like.
void check_alpha(DType result, const Scalar& alpha) {
  DType category = alpha.category();
  if (category == DType::Pred && result != DType::Pred) raise<InvalidArgument>("Boolean alpha only supported for Boolean results.");
  if (integral(result) && !integral(category))
    raise<InvalidArgument>("For integral input tensors, argument alpha must not be a floating point number.");
  if (is_complex(category) && !is_complex(result))
    raise<InvalidArgument>("For non-complex input tensors, argument alpha must not be a complex number.");
  check_fits(alpha, compute_type(result));
}

Value add(Builder& b, Operand x, Operand y, Scalar alpha) {
  DType result = result_type({x, y});
  check_alpha(result, alpha);
  bool plain = alpha.is(1);
  return pointwise(b, plain ? compute_type(result, {x, y}) : compute_type(result), result, [&](Value p, Value q) {
    return b.add(p, plain ? q : b.multiply(q, scalar_like(b, q, alpha)));
  }, x, y);
}

Value subtract(Builder& b, Operand x, Operand y, Scalar alpha) {
  bool x_bool = x.value.dtype() == DType::Pred, y_bool = y.value.dtype() == DType::Pred;
  if (x_bool && y_bool)
    raise<InvalidArgument>("Subtraction, the `-` operator, with two bool tensors is not supported, use the `^` or `logical_xor()` "
                           "operator instead.");
  if (x_bool || y_bool)
    raise<InvalidArgument>("Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
                           "use the `~` or `logical_not()` operator instead.");
  DType result = result_type({x, y});
  check_alpha(result, alpha);
  bool plain = alpha.is(1);
  return pointwise(b, plain ? compute_type(result, {x, y}) : compute_type(result), result, [&](Value p, Value q) {
    return b.subtract(p, plain ? q : b.multiply(q, scalar_like(b, q, alpha)));
  }, x, y);
}

Value multiply(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  return pointwise(b, compute_type(result, {x, y}), result, [&](Value p, Value q) { return b.multiply(p, q); }, x, y);
}

// ---- division ------------------------------------------------------------------------------------------------------------

Value zero_like(Builder& b, Value x) { return constant_like(b, x, 0); }
Value is_negative(Builder& b, Value x) { return b.compare(x, zero_like(b, x), Comparison::LT); }
Value is_nonzero(Builder& b, Value x) { return b.compare(x, zero_like(b, x), Comparison::NE); }

// remainder != 0 and of the other sign than the divisor: where Python's floor division and remainder differ from C's.
Value needs_correction(Builder& b, Value remainder, Value divisor) {
  return b.logical_and(is_nonzero(b, remainder), b.compare(is_negative(b, remainder), is_negative(b, divisor), Comparison::NE));
}

Value python_remainder(Builder& b, Value x, Value y) {
  Value r = b.remainder(x, y);
  if (is_unsigned_integer(x.dtype())) return r;
  return b.select(needs_correction(b, r, y), b.add(r, y), r);
}

Value floor_quotient(Builder& b, Value x, Value y) {
  if (is_unsigned_integer(x.dtype())) return b.divide(x, y);
  if (is_integer(x.dtype())) {
    Value q = b.divide(x, y);
    return b.select(needs_correction(b, b.remainder(x, y), y), b.subtract(q, constant_like(b, q, 1)), q);
  }
  // Through the remainder, as CPython does: the plain floor(x / y) is wrong where x / y rounds up to an integer.
  Value r = b.remainder(x, y);
  Value q = b.divide(b.subtract(x, r), y);
  q = b.select(needs_correction(b, r, y), b.subtract(q, constant_like(b, q, 1)), q);
  Value floor = b.floor(q);
  floor = b.select(b.compare(b.subtract(q, floor), constant_like(b, q, 0.5), Comparison::GT), b.add(floor, constant_like(b, q, 1)), floor);
  Value exact = b.divide(x, y);
  Value signed_zero = b.multiply(zero_like(b, x), b.sign(exact));
  floor = b.select(is_nonzero(b, q), floor, signed_zero);
  return b.select(is_nonzero(b, y), floor, exact);
}

// As on the CPU, integers divided by zero are an error: at once where the divisor is a known number. `count`: of quotients.
void check_divisor(Builder& b, const Operand& divisor, DType result, int64_t count) {
  constexpr const char* kMessage = "ZeroDivisionError";
  if (!is_integer(result) || count == 0) return;
  const DType type = divisor.value.dtype();
  if (const hlo::Literal* known = hlo::constant_literal(divisor.value); known && divisor.wrapped && integral(type)) {
    auto bits = static_cast<uint64_t>(hlo::decode_integer(type, known->bytes.data()));
    if (hlo::decode_bits(result, hlo::encode_integer(result, bits).data()) == 0) raise<InvalidArgument>(kMessage);
  } else if (checks_wanted()) {
    check(b, is_nonzero(b, convert(b, divisor.value, result)), kMessage);
  }
}

Value divide(Builder& b, Operand x, Operand y) {
  DType result = float_result(result_type({x, y}));
  return pointwise(b, compute_type(result, {x, y}), result, [&](Value p, Value q) { return b.divide(p, q); }, x, y);
}

Value divide_mode(Builder& b, Operand x, Operand y, std::optional<std::string> mode) {
  if (!mode) return divide(b, x, y);
  if (*mode != "trunc" && *mode != "floor")
    raise<InvalidArgument>("div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{}'", *mode);
  DType result = result_type({x, y});
  refuse_bool(*mode == "floor" ? "div_floor_cpu" : "div_trunc_cpu", result);
  refuse_complex(*mode == "floor" ? "div_floor_cpu" : "div_trunc_cpu", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) {
    check_divisor(b, y, result, p.elements());
    if (*mode == "floor") return floor_quotient(b, p, q);
    Value quotient = b.divide(p, q);
    return is_integer(p.dtype()) ? quotient : truncate(b, quotient);
  }, x, y);
}

Value floor_divide(Builder& b, Operand x, Operand y) { return divide_mode(b, x, y, "floor"); }

Value remainder(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  refuse_bool("remainder_cpu", result);
  refuse_complex("remainder_cpu", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) {
    check_divisor(b, y, result, p.elements());
    return python_remainder(b, p, q);
  }, x, y);
}

Value fmod(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  refuse_bool("fmod_cpu", result);
  refuse_complex("fmod_cpu", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) {
    check_divisor(b, y, result, p.elements());
    return b.remainder(p, q);
  }, x, y);
}

// The same with a number in one place.
template <auto F>
Value with_scalar(Builder& b, Value x, Scalar y) { return F(b, Operand{x}, y.operand(b)); }
template <auto F>
Value with_scalar_first(Builder& b, Scalar x, Value y) { return F(b, x.operand(b), Operand{y}); }

Value add_scalar(Builder& b, Value x, Scalar y, Scalar alpha) { return add(b, {x}, y.operand(b), alpha); }
Value subtract_scalar(Builder& b, Value x, Scalar y, Scalar alpha) { return subtract(b, {x}, y.operand(b), alpha); }
Value reverse_subtract(Builder& b, Operand x, Operand y, Scalar alpha) { return subtract(b, y, x, alpha); }
Value reverse_subtract_scalar(Builder& b, Value x, Scalar y, Scalar alpha) { return subtract(b, y.operand(b), {x}, alpha); }
Value divide_mode_scalar(Builder& b, Value x, Scalar y, std::optional<std::string> mode) {
  return divide_mode(b, {x}, y.operand(b), std::move(mode));
}

// ---- powers --------------------------------------------------------------------------------------------------------------

// XLA reads the last six bits of an integer exponent.
constexpr int kPowerBits = 6, kPowerLimit = 1 << kPowerBits;

// p^q of integers, six bits of q at a time.
Value integer_power(Builder& b, Value p, Value q) {
  const auto number = [&](int64_t n) { return b.broadcast(b.constant(q.dtype(), n), q.dims()); };
  const auto digit = [&](Value base, Value exponent) { return b.power(base, b.logical_and(exponent, number(kPowerLimit - 1))); };
  Value power = digit(p, q), base = p, rest = q;
  for (int bits = static_cast<int>(8 * byte_size(q.dtype())); bits > kPowerBits; bits -= kPowerBits) {
    base = b.power(base, number(kPowerLimit / 2));
    base = b.multiply(base, base);
    rest = b.shift_right_logical(rest, number(kPowerBits));
    power = b.multiply(power, digit(base, rest));
  }
  if (!is_signed_integer(q.dtype())) return power;
  // Of 0 to a negative power XLA says -1.
  Value inverse = b.select(is_nonzero(b, p), b.power(p, q), zero_like(b, p));
  return b.select(is_negative(b, q), inverse, power);
}

Value power(Builder& b, Operand x, Operand exponent) {
  DType result = result_type({x, exponent});
  refuse_bool("pow", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) {
    return is_integer(result) ? integer_power(b, p, q) : b.power(p, q);
  }, x, exponent);
}

// x^n for the exponents that have a cheaper form; no value otherwise.
Value special_power(Builder& b, Value x, double n) {
  auto one = [&] { return constant_like(b, x, 1); };
  if (n == 0) return one();
  if (n == 1) return x;
  if (n == 2) return b.multiply(x, x);
  if (n == 3) return b.multiply(b.multiply(x, x), x);
  if (!is_float(x.dtype()) && !is_complex(x.dtype())) return {};
  if (n == 0.5) return b.sqrt(x);
  if (n == -0.5) return b.rsqrt(x);
  if (n == -1) return b.divide(one(), x);
  if (n == -2) return b.divide(one(), b.multiply(x, x));
  return {};
}

Value power_scalar(Builder& b, Value x, Scalar exponent) {
  const Number& n = exponent.number("pow");
  DType result = result_type({{x}, exponent.operand(b)});
  if (integral(x.dtype()) && integral(n.category()) && n.as_int() < 0)
    raise<InvalidArgument>("Integers to negative integer powers are not allowed.");
  if (result == DType::Pred && n.as_int() > 1) refuse_bool("pow", result);
  if (integral(result)) check_fits(n, result);
  if (n.category() != DType::C128) {
    Value base = convert(b, x, compute_type(result));
    if (Value v = special_power(b, base, n.as_double())) return convert(b, v, result);
    if (is_integer(result) && n.as_double() > 0 && n.as_double() < kPowerLimit)
      return convert(b, b.power(base, constant_like(b, base, n.as_double())), result);
  }
  return power(b, {x}, exponent.operand(b));
}

Value scalar_power(Builder& b, Scalar x, Value exponent) { return power(b, x.operand(b), {exponent}); }

// ---- extremes of two -------------------------------------------------------------------------------------------------------

void refuse_complex_extremum(std::string_view op, DType dtype) {
  if (is_complex(dtype)) raise<InvalidArgument>("{} not implemented for complex tensors.", op);
}

Value maximum(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  refuse_complex_extremum("maximum", result);
  return pointwise(b, result, result, [&](Value p, Value q) { return b.maximum(p, q); }, x, y);
}

Value minimum(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  refuse_complex_extremum("minimum", result);
  return pointwise(b, result, result, [&](Value p, Value q) { return b.minimum(p, q); }, x, y);
}

// NaN loses against a number.
template <hlo::Op op>
Value ignoring_nan(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  refuse_complex_extremum(op == hlo::Op::Maximum ? "fmax" : "fmin", result);
  return pointwise(b, result, result, [&](Value p, Value q) {
    Value both = b.binary(op, p, q);
    if (!is_float(result)) return both;
    return b.select(is_nan(b, p), q, b.select(is_nan(b, q), p, both));
  }, x, y);
}

Value clamp_values(Builder& b, Value x, std::optional<Operand> low, std::optional<Operand> high) {
  if (!low && !high) raise<InvalidArgument>("torch.clamp: At least one of 'min' or 'max' must not be None");
  std::vector<Operand> operands{{x}};
  if (low) operands.push_back(*low);
  if (high) operands.push_back(*high);
  DType result = result_type(operands);
  refuse_bool("clamp", result);
  if (is_complex(result)) raise<NotImplemented>("clamp is not supported for complex types");
  auto v = align(b, operands, result);
  Value clamped = v[0];
  if (low) clamped = b.maximum(clamped, v[1]);
  if (high) clamped = b.minimum(clamped, v.back());
  return clamped;
}

Value clamp(Builder& b, Value x, std::optional<Scalar> low, std::optional<Scalar> high) {
  auto operand = [&](const std::optional<Scalar>& s) { return s ? std::optional(s->operand(b)) : std::nullopt; };
  Value clamped = clamp_values(b, x, operand(low), operand(high));
  for (const auto& bound : {low, high})
    if (bound) check_fits(*bound, clamped.dtype());
  return clamped;
}
Value clamp_min(Builder& b, Value x, Scalar low) { return clamp(b, x, low, {}); }
Value clamp_max(Builder& b, Value x, Scalar high) { return clamp(b, x, {}, high); }
Value clamp_min_tensor(Builder& b, Value x, Operand low) { return clamp_values(b, x, low, {}); }
Value clamp_max_tensor(Builder& b, Value x, Operand high) { return clamp_values(b, x, {}, high); }

// ---- three operands --------------------------------------------------------------------------------------------------------

void check_same_dtype(Value start, Value other, std::string_view name) {
  if (start.dtype() != other.dtype())
    raise<InvalidArgument>("expected dtype {} for `{}` but got dtype {}", torch_name(start.dtype()), name, torch_name(other.dtype()));
}

// Both forms are exact at their own end.
Value interpolate(Builder& b, Value start, Value end, Value weight) {
  Value difference = b.subtract(end, start), one = constant_like(b, weight, 1);
  Value size = b.abs(weight);
  return b.select(b.compare(size, constant_like(b, size, 0.5), Comparison::LT),
                  b.add(start, b.multiply(weight, difference)),
                  b.subtract(end, b.multiply(difference, b.subtract(one, weight))));
}

Value lerp_scalar(Builder& b, Value start, Value end, Scalar weight) {
  check_same_dtype(start, end, "end");
  DType result = start.dtype();
  require_float("lerp_kernel_scalar", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) {
    return interpolate(b, p, q, scalar_like(b, p, weight));
  }, Operand{start}, Operand{end});
}

Value lerp_tensor(Builder& b, Value start, Value end, Value weight) {
  check_same_dtype(start, end, "end");
  check_same_dtype(start, weight, "weight");
  DType result = start.dtype();
  require_float("lerp_kernel_tensor", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q, Value w) { return interpolate(b, p, q, w); },
                   Operand{start}, Operand{end}, Operand{weight});
}

Value addcmul(Builder& b, Operand x, Operand y, Operand z, Scalar value) {
  DType result = result_type({x, y, z});
  refuse_bool("addcmul_cpu_out", result);
  check_fits(value, compute_type(result));
  return pointwise(b, compute_type(result), result, [&](Value p, Value q, Value r) {
    Value product = b.multiply(q, r);
    return b.add(p, value.is(1) ? product : b.multiply(scalar_like(b, p, value), product));
  }, x, y, z);
}

Value addcdiv(Builder& b, Operand x, Operand y, Operand z, Scalar value) {
  if (integral(y.value.dtype()) && integral(z.value.dtype()))
    raise<InvalidArgument>("Integer division with addcdiv is no longer supported, and in a future release addcdiv will perform a "
                           "true division of tensor1 and tensor2. Use (input + value * torch.trunc(tensor1 / tensor2)).to(input.dtype) "
                           "for the historic behaviour, or (input + value * tensor1 / tensor2) for the future one.");
  DType result = result_type({x, y, z});
  check_fits(value, compute_type(result));
  return pointwise(b, compute_type(result), result, [&](Value p, Value q, Value r) {
    Value numerator = value.is(1) ? q : b.multiply(scalar_like(b, q, value), q);
    return b.add(p, b.divide(numerator, r));
  }, x, y, z);
}

constexpr Row kRows[] = {
    row("aten::add.Tensor", lower<&add>(), Mark::AlphaFits),
    row("aten::add.Scalar", lower<&add_scalar>(), Mark::AlphaFits),
    row("aten::sub.Tensor", lower<&subtract>(), Mark::AlphaFits),
    row("aten::sub.Scalar", lower<&subtract_scalar>(), Mark::AlphaFits),
    row("aten::rsub.Tensor", lower<&reverse_subtract>(), Mark::AlphaFits),
    row("aten::rsub.Scalar", lower<&reverse_subtract_scalar>(), Mark::AlphaFits),
    row("aten::mul.Tensor", lower<&multiply>()),
    row("aten::mul.Scalar", lower<&with_scalar<&multiply>>()),
    row("aten::div.Tensor", lower<&divide>()),
    row("aten::div.Scalar", lower<&with_scalar<&divide>>()),
    row("aten::div.Tensor_mode", lower<&divide_mode>()),
    row("aten::div.Scalar_mode", lower<&divide_mode_scalar>()),
    row("aten::floor_divide", lower<&floor_divide>()),
    row("aten::floor_divide.Scalar", lower<&with_scalar<&floor_divide>>()),
    row("aten::remainder.Tensor", lower<&remainder>()),
    row("aten::remainder.Scalar", lower<&with_scalar<&remainder>>()),
    row("aten::remainder.Scalar_Tensor", lower<&with_scalar_first<&remainder>>()),
    row("aten::fmod.Tensor", lower<&fmod>()),
    row("aten::fmod.Scalar", lower<&with_scalar<&fmod>>()),
    row("aten::pow.Tensor_Tensor", lower<&power>()),
    row("aten::pow.Tensor_Scalar", lower<&power_scalar>(), Mark::Specialise),
    row("aten::pow.Scalar", lower<&scalar_power>()),
    row("aten::maximum", lower<&maximum>()),
    row("aten::minimum", lower<&minimum>()),
    row("aten::fmax", lower<&ignoring_nan<hlo::Op::Maximum>>()),
    row("aten::fmin", lower<&ignoring_nan<hlo::Op::Minimum>>()),
    row("aten::clamp", lower<&clamp>(), Mark::Fits),
    row("aten::clamp.Tensor", lower<&clamp_values>()),
    row("aten::clamp_min", lower<&clamp_min>(), Mark::Fits),
    row("aten::clamp_min.Tensor", lower<&clamp_min_tensor>()),
    row("aten::clamp_max", lower<&clamp_max>(), Mark::Fits),
    row("aten::clamp_max.Tensor", lower<&clamp_max_tensor>()),
    row("aten::lerp.Scalar", lower<&lerp_scalar>()),
    row("aten::lerp.Tensor", lower<&lerp_tensor>()),
    row("aten::addcmul", lower<&addcmul>(), Mark::AlphaFits),
    row("aten::addcdiv", lower<&addcdiv>(), Mark::AlphaFits),
};

}  // namespace

std::span<const Row> arithmetic_rows() { return kRows; }

}  // namespace flambeau::ops
