// Activations and their derivatives, with PyTorch's formulas.
#include <numbers>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;

// The arithmetic of one activation: values of one shape and dtype, numbers as constants.
struct Math {
  Builder& b;
  Value like;

  Value number(double v) const { return constant_like(b, like, v); }
  Value number(const Scalar& s) const { return scalar_like(b, like, s); }
  Value add(Value x, Value y) const { return b.add(x, y); }
  Value add(Value x, double y) const { return b.add(x, number(y)); }
  Value sub(Value x, Value y) const { return b.subtract(x, y); }
  Value sub(double x, Value y) const { return b.subtract(number(x), y); }
  Value mul(Value x, Value y) const { return b.multiply(x, y); }
  Value mul(Value x, double y) const { return b.multiply(x, number(y)); }
  Value mul(Value x, const Scalar& s) const { return s.is(1) ? x : b.multiply(x, number(s)); }
  Value greater(Value x, Value y) const { return b.compare(x, y, Comparison::GT); }
  Value greater(Value x, double y) const { return greater(x, number(y)); }
};

// f(math, values...) of tensors that must be floats.
template <class F, class... X>
Value activation(Builder& b, std::string_view name, F f, X... xs) {
  DType result = result_type({Operand{xs}...});
  require_float(name, result);
  refuse_complex(name, result);
  return pointwise(b, compute_type(result), result, [&](Value first, auto... rest) { return f(Math{b, first}, first, rest...); },
                   Operand{xs}...);
}

// ---- relu and its kin ---------------------------------------------------------------------------------------------------------

Value relu(Builder& b, Value x) {
  if (x.dtype() == DType::Pred) raise<InvalidArgument>("Boolean inputs not supported for relu");
  if (is_complex(x.dtype())) raise<NotImplemented>("clamp is not supported for complex types");
  return is_unsigned_integer(x.dtype()) ? x : b.maximum(x, constant_like(b, x, 0));
}

Value threshold_values(Builder& b, Operand x, Scalar threshold, Operand below, Operand above) {
  DType result = result_type({x, below, above});
  refuse_bool("threshold_cpu", result);
  refuse_complex("threshold_cpu", result);
  return pointwise(b, result, result, [&](Value v, Value low, Value high) {
    return b.select(b.compare(v, scalar_like(b, v, threshold), Comparison::LE), low, high);
  }, x, below, above);
}
Value threshold(Builder& b, Value x, Scalar threshold, Scalar value) {
  return threshold_values(b, {x}, threshold, {value.as(b, x.dtype()), true}, {x});
}
Value threshold_backward(Builder& b, Value grad, Value x, Scalar threshold) {
  return threshold_values(b, {x}, threshold, {b.constant(grad.dtype(), 0), true}, {grad});
}

Value leaky_relu(Builder& b, Value x, Scalar slope) {
  return activation(b, "leaky_relu_cpu", [&](const Math& m, Value v) {
    return b.select(m.greater(v, 0), v, m.mul(v, slope));
  }, x);
}
Value leaky_relu_backward(Builder& b, Value grad, Value x, Scalar slope, bool is_result) {
  if (is_result && slope.known && slope.known->as_double() < 0)
    raise<InvalidArgument>("In-place leakyReLu backward calculation is triggered with a negative slope which is not supported. This is "
                           "caused by calling in-place forward function with a negative slope, please call out-of-place version instead.");
  return activation(b, "leaky_relu_backward_cpu", [&](const Math& m, Value g, Value v) {
    return b.select(m.greater(v, 0), g, m.mul(g, slope));
  }, grad, x);
}

Value prelu(Builder& b, Value x, Value weight) {
  return activation(b, "prelu_cpu", [&](const Math& m, Value v, Value w) { return b.select(m.greater(v, 0), v, m.mul(v, w)); }, x, weight);
}

void check_hardtanh(DType t, const Scalar& low) {
  if (t == DType::Pred) raise<InvalidArgument>("Bool inputs not supported for hardtanh");
  if (is_unsigned_integer(t) && low.number("hardtanh").as_double() < 0)
    raise<InvalidArgument>("cannot do hardtanh on an unsigned type with negative limits");
}
Value hardtanh(Builder& b, Value x, Scalar low, Scalar high) {
  check_hardtanh(x.dtype(), low);
  return b.minimum(b.maximum(x, scalar_like(b, x, low)), scalar_like(b, x, high));
}
Value hardtanh_backward(Builder& b, Value grad, Value x, Scalar low, Scalar high) {
  return activation(b, "hardtanh_backward_cpu", [&](const Math& m, Value g, Value v) {
    Value inside = b.logical_and(m.greater(v, m.number(low)), m.greater(m.number(high), v));
    Value not_a_number = is_nan(b, v);  // neither below nor above: the gradient passes
    return b.select(b.logical_or(inside, not_a_number), g, m.number(0));
  }, grad, x);
}

// relu6(x + 3) / 6
Value hard_gate(const Math& m, Value v) { return m.mul(m.b.minimum(m.b.maximum(m.add(v, 3), m.number(0)), m.number(6)), 1.0 / 6); }
Value hardsigmoid(Builder& b, Value x) {
  return activation(b, "hardsigmoid", [&](const Math& m, Value v) { return hard_gate(m, v); }, x);
}
Value hardswish(Builder& b, Value x) {
  return activation(b, "hardswish_cpu", [&](const Math& m, Value v) { return m.mul(v, hard_gate(m, v)); }, x);
}

// ---- elu ------------------------------------------------------------------------------------------------------------------------

Value elu(Builder& b, Value x, Scalar alpha, Scalar scale, Scalar input_scale) {
  return activation(b, "elu_cpu", [&](const Math& m, Value v) {
    Value negative = m.mul(m.mul(b.expm1(m.mul(v, input_scale)), alpha), scale);
    return b.select(b.compare(v, m.number(0), Comparison::LT), negative, m.mul(v, scale));
  }, x);
}
Value elu_backward(Builder& b, Value grad, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Value x) {
  if (is_result && alpha.known && alpha.known->as_double() < 0)
    raise<InvalidArgument>("In-place elu backward calculation is triggered with a negative slope which is not supported. This is caused "
                           "by calling in-place forward function with a negative slope, please call out-of-place version instead.");
  return activation(b, "elu_backward_cpu", [&](const Math& m, Value g, Value v) {
    Value coefficient = m.mul(m.number(alpha), scale);
    Value slope = is_result ? m.add(v, coefficient) : m.mul(coefficient, b.exp(m.mul(v, input_scale)));
    Value negative = m.mul(m.mul(g, input_scale), slope);
    return b.select(b.compare(v, m.number(0), Comparison::LE), negative, m.mul(g, scale));
  }, grad, x);
}

// ---- logistic --------------------------------------------------------------------------------------------------------------------

Value silu(Builder& b, Value x) {
  return activation(b, "silu_cpu", [&](const Math& m, Value v) { return m.mul(v, b.logistic(v)); }, x);
}
Value silu_backward(Builder& b, Value grad, Value x) {
  return activation(b, "silu_backward_cpu", [&](const Math& m, Value g, Value v) {
    Value s = b.logistic(v);
    return m.mul(m.mul(g, s), m.add(m.mul(v, m.sub(1, s)), 1));
  }, grad, x);
}
Value sigmoid_backward(Builder& b, Value grad, Value y) {
  return activation(b, "sigmoid_backward_cpu", [&](const Math& m, Value g, Value s) { return m.mul(g, m.mul(m.sub(1, s), s)); }, grad, y);
}
Value tanh_backward(Builder& b, Value grad, Value y) {
  return activation(b, "tanh_backward_cpu", [&](const Math& m, Value g, Value t) { return m.mul(g, m.sub(1, m.mul(t, t))); }, grad, y);
}

Value softplus(Builder& b, Value x, Scalar beta, Scalar threshold) {
  return activation(b, "softplus_cpu", [&](const Math& m, Value v) {
    Value z = m.mul(v, beta);
    Value soft = b.log1p(b.exp(z));
    return b.select(m.greater(z, m.number(threshold)), v, beta.is(1) ? soft : b.divide(soft, m.number(beta)));
  }, x);
}
Value softplus_backward(Builder& b, Value grad, Value x, Scalar beta, Scalar threshold) {
  return activation(b, "softplus_backward_cpu", [&](const Math& m, Value g, Value v) {
    Value z = m.mul(v, beta);
    return b.select(m.greater(z, m.number(threshold)), g, m.mul(g, b.logistic(z)));
  }, grad, x);
}
Value mish(Builder& b, Value x) {
  return activation(b, "mish_cpu", [&](const Math& m, Value v) { return m.mul(v, b.tanh(b.log1p(b.exp(v)))); }, x);
}

// The second output is what PyTorch's CPU kernel keeps for the backward: exp(-|x|).
std::array<Value, 2> log_sigmoid(Builder& b, Value x) {
  require_float("log_sigmoid_cpu", x.dtype());
  Value v = convert(b, x, compute_type(x.dtype()));
  Value z = b.exp(b.negate(b.abs(v)));
  Value y = b.subtract(b.minimum(v, constant_like(b, v, 0)), b.log1p(z));
  return {convert(b, y, x.dtype()), convert(b, z, x.dtype())};
}
Value log_sigmoid_backward(Builder& b, Value grad, Value x, Value) {
  return activation(b, "log_sigmoid_backward_cpu", [&](const Math& m, Value g, Value v) { return m.mul(g, b.logistic(b.negate(v))); }, grad, x);
}

Value glu(Builder& b, Value x, int64_t dim) {
  if (x.rank() == 0) raise<InvalidArgument>("glu does not support 0-dimensional tensors");
  int64_t d = wrap_dim(dim, x.rank()), size = x.dim(d);
  if (size % 2 != 0) raise<InvalidArgument>("Halving dimension must be even, but dimension {} is size {}", d, size);
  return activation(b, "glu_cpu", [&](const Math&, Value v, Value gate) { return b.multiply(v, b.logistic(gate)); },
                    b.slice_dim(x, d, 0, size / 2), b.slice_dim(x, d, size / 2, size));
}

// ---- gelu -----------------------------------------------------------------------------------------------------------------------

bool approximates(const std::string& approximate) {
  if (approximate != "none" && approximate != "tanh") raise<InvalidArgument>("approximate argument must be either none or tanh.");
  return approximate == "tanh";
}

constexpr double kTanhScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kTanhCubic = 0.044715;

Value gelu(Builder& b, Value x, std::string approximate) {
  bool by_tanh = approximates(approximate);
  return activation(b, "GeluKernelImpl", [&](const Math& m, Value v) {
    Value gate;
    if (by_tanh) {
      Value cube = m.mul(m.mul(v, v), v);
      gate = b.tanh(m.mul(m.add(v, m.mul(cube, kTanhCubic)), kTanhScale));
    } else {
      gate = erf(b, m.mul(v, 1 / std::numbers::sqrt2));
    }
    return m.mul(m.mul(v, 0.5), m.add(gate, 1));
  }, x);
}

Value gelu_backward(Builder& b, Value grad, Value x, std::string approximate) {
  bool by_tanh = approximates(approximate);
  return activation(b, "GeluBackwardKernelImpl", [&](const Math& m, Value g, Value v) {
    Value square = m.mul(v, v);
    if (by_tanh) {
      Value t = b.tanh(m.mul(m.add(v, m.mul(m.mul(square, v), kTanhCubic)), kTanhScale));
      Value inner = m.mul(m.add(m.mul(square, 3 * kTanhCubic), 1), kTanhScale);
      Value left = m.mul(m.add(t, 1), 0.5);
      Value right = m.mul(m.mul(m.mul(v, 0.5), m.sub(1, m.mul(t, t))), inner);
      return m.mul(g, m.add(left, right));
    }
    Value cdf = m.mul(m.add(erf(b, m.mul(v, 1 / std::numbers::sqrt2)), 1), 0.5);
    Value pdf = m.mul(b.exp(m.mul(square, -0.5)), 0.5 * kTanhScale);
    return m.mul(g, m.add(cdf, m.mul(v, pdf)));
  }, grad, x);
}

constexpr Row kRows[] = {
    row("aten::relu", lower<&relu>()),
    row("aten::threshold", lower<&threshold>()),
    row("aten::threshold_backward", lower<&threshold_backward>()),
    row("aten::leaky_relu", lower<&leaky_relu>()),
    row("aten::leaky_relu_backward", lower<&leaky_relu_backward>()),
    row("aten::_prelu_kernel", lower<&prelu>()),
    row("aten::hardtanh", lower<&hardtanh>(), Mark::Specialise),
    row("aten::hardtanh_backward", lower<&hardtanh_backward>()),
    row("aten::hardsigmoid", lower<&hardsigmoid>()),
    row("aten::hardswish", lower<&hardswish>()),
    row("aten::elu", lower<&elu>()),
    row("aten::elu_backward", lower<&elu_backward>()),
    row("aten::silu", lower<&silu>()),
    row("aten::silu_backward", lower<&silu_backward>()),
    row("aten::sigmoid_backward", lower<&sigmoid_backward>()),
    row("aten::tanh_backward", lower<&tanh_backward>()),
    row("aten::softplus", lower<&softplus>()),
    row("aten::softplus_backward", lower<&softplus_backward>()),
    row("aten::mish", lower<&mish>()),
    row("aten::log_sigmoid_forward", lower<&log_sigmoid>()),
    row("aten::log_sigmoid_backward", lower<&log_sigmoid_backward>()),
    row("aten::glu", lower<&glu>()),
    row("aten::gelu", lower<&gelu>()),
    row("aten::gelu_backward", lower<&gelu_backward>()),
};

}  // namespace

std::span<const Row> activation_rows() { return kRows; }

}  // namespace flambeau::ops
