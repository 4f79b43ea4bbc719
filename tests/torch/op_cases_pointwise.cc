// Cases of ops that work element by element.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const DTypes kSignedAndFloats = {at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
const Options kPairs = {.pairs = true};
const Options kOfFloats = {.dtypes = kFloats};

const bool arithmetic = add_cases({
    {"aten::add.Tensor", {x(), y()}, kPairs},
    {"aten::add.Tensor", {x(), y(), 2}, kPairs},
    {"aten::add.Tensor", {x(), y(), 0.3}},
    {"aten::add.Tensor", {x(), y(), true}},
    {"aten::add.Tensor", {x().special(), y().special()}, kOfFloats},
    {"aten::add.Tensor", {x(2, 3), y(2, 4)}},
    {"aten::add.Scalar", {x(), 3, 2}},
    {"aten::add.Scalar", {x(), 0.1, 1}},
    {"aten::add.Scalar", {x(), true, 1}},
    {"aten::sub.Tensor", {x(), y()}, kPairs},
    {"aten::sub.Tensor", {x(), y(), -3}},
    {"aten::sub.Scalar", {x(), 2.5, 2}},
    {"aten::sub.Scalar", {x(), 2}},
    {"aten::rsub.Tensor", {x(), y(), 2}, kPairs},
    {"aten::rsub.Scalar", {x(), 7, 1}},
    {"aten::rsub.Scalar", {x(), 0.7, 3}},
    {"aten::mul.Tensor", {x(), y()}, kPairs},
    {"aten::mul.Tensor", {x().range(-100, 100), y().range(-100, 100)}, {.dtypes = kIntegers}},
    {"aten::mul.Scalar", {x(), 3}},
    {"aten::mul.Scalar", {x(), -1.7}},
    {"aten::mul.Scalar", {x(), true}},
    {"aten::div.Tensor", {x(), y().nonzero()}, kPairs},
    {"aten::div.Tensor", {x().special(), y().special()}, kOfFloats},
    {"aten::div.Scalar", {x(), 3}},
    {"aten::div.Scalar", {x(), 0.3}},
    {"aten::div.Tensor_mode", {x(), y().nonzero(), none}, kPairs},
    {"aten::div.Tensor_mode", {x().range(-20, 20), y().nonzero(), "floor"}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::div.Tensor_mode", {x().range(-20, 20), y().nonzero(), "trunc"}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::div.Tensor_mode", {x().special(), y().special(), "floor"}, kOfFloats},
    {"aten::div.Tensor_mode", {x(), y(), "ceil"}},
    {"aten::div.Scalar_mode", {x().range(-20, 20), 3, "floor"}, {.dtypes = kNumbers}},
    {"aten::div.Scalar_mode", {x().range(-20, 20), -1.5, "trunc"}, {.dtypes = kNumbers}},
    {"aten::div.Scalar_mode", {x(), 4, none}},
    {"aten::floor_divide", {x().range(-20, 20), y().nonzero()}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::floor_divide.Scalar", {x().range(-20, 20), 3}, {.dtypes = kNumbers}},
    {"aten::floor_divide.Scalar", {x().range(-20, 20), -0.3}, {.dtypes = kNumbers}},
    {"aten::remainder.Tensor", {x().range(-20, 20), y().nonzero()}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::remainder.Tensor", {x().special(), y().special()}, kOfFloats},
    {"aten::remainder.Scalar", {x().range(-20, 20), 3}, {.dtypes = kNumbers}},
    {"aten::remainder.Scalar", {x().range(-20, 20), -0.7}, {.dtypes = {at::kInt, at::kFloat, at::kDouble}}},
    {"aten::remainder.Scalar_Tensor", {7, x().nonzero()}, {.dtypes = kNumbers}},
    {"aten::fmod.Tensor", {x().range(-20, 20), y().nonzero()}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::fmod.Scalar", {x().range(-20, 20), 3}, {.dtypes = kNumbers}},
    {"aten::fmod.Scalar", {x().range(-20, 20), -1.5}, {.dtypes = kNumbers}},
    {"aten::pow.Tensor_Tensor", {x().positive(), y()}, {.dtypes = kFloats, .pairs = true}},
    {"aten::pow.Tensor_Tensor", {x(), y().range(0, 5)}, {.dtypes = kIntegers, .pairs = true}},
    {"aten::pow.Tensor_Tensor", {x().special(), y().special()}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::pow.Tensor_Scalar", {x(), 0}},
    {"aten::pow.Tensor_Scalar", {x(), 2}},
    {"aten::pow.Tensor_Scalar", {x(), 3}},
    {"aten::pow.Tensor_Scalar", {x(), 5}, {.dtypes = kNumbers}},
    {"aten::pow.Tensor_Scalar", {x(), -1}, {.dtypes = kNumbers}},
    {"aten::pow.Tensor_Scalar", {x().positive(), 0.5}},
    {"aten::pow.Tensor_Scalar", {x().positive().nonzero(), -0.5}, {.dtypes = kNumbers}},
    {"aten::pow.Tensor_Scalar", {x().positive(), -2.0}, kOfFloats},
    {"aten::pow.Tensor_Scalar", {x().positive(), 1.7}},
    {"aten::pow.Tensor_Scalar", {x().special(), 2.0}, kOfFloats},
    {"aten::pow.Scalar", {2, x().range(0, 4)}, {.dtypes = kNumbers}},
    {"aten::pow.Scalar", {1.7, x()}, {.dtypes = kNumbers}},
    {"aten::pow.Scalar", {1, x()}, {.dtypes = kNumbers}},
    {"aten::maximum", {x(), y()}, kPairs},
    {"aten::maximum", {x().special(), y().special()}, kOfFloats},
    {"aten::minimum", {x(), y()}, kPairs},
    {"aten::minimum", {x().special(), y().special()}, kOfFloats},
    {"aten::fmax", {x(), y()}, kPairs},
    {"aten::fmax", {x().special(), y().special()}, kOfFloats},
    {"aten::fmin", {x(), y()}, kPairs},
    {"aten::fmin", {x().special(), y().special()}, kOfFloats},
    {"aten::clamp", {x(), -1, 2}},
    {"aten::clamp", {x(), 0, none}},
    {"aten::clamp", {x(), none, 1.5}},
    {"aten::clamp", {x(), none, none}, {.dtypes = kFloat}},
    {"aten::clamp", {x(), 0}},
    {"aten::clamp", {x().special(), -1.0, 1.0}, kOfFloats},
    {"aten::clamp", {x(), 2, -2}, {.dtypes = kSignedAndFloats}},
    {"aten::clamp.Tensor", {x(), y(), none}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::clamp.Tensor", {x(), none, y()}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::clamp.Tensor", {x().special(), y().special(), z().special()}, kOfFloats},
    {"aten::clamp_min", {x(), 1}},
    {"aten::clamp_min", {x(), 0.5}},
    {"aten::clamp_min.Tensor", {x(), y()}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::clamp_max", {x(), 1}},
    {"aten::clamp_max", {x(), 0.5}},
    {"aten::clamp_max.Tensor", {x(), y()}, {.dtypes = kNumbers, .pairs = true}},
    {"aten::lerp.Scalar", {x(), y(), 0.3}},
    {"aten::lerp.Scalar", {x(), y(), 0.7}, kOfFloats},
    {"aten::lerp.Scalar", {x(), y(), -2.5}, kOfFloats},
    {"aten::lerp.Tensor", {x(), y(), z().range(-0.5, 1.5)}},
    {"aten::addcmul", {x(), y(), z(), 1}, kPairs},
    {"aten::addcmul", {x(), y(), z(), 3}},
    {"aten::addcmul", {x(), y(), z(), -0.7}},
    {"aten::addcdiv", {x(), y(), z().nonzero(), 1}, kPairs},
    {"aten::addcdiv", {x(), y(), z().positive(), -0.7}},
});

const bool of_reals = add_cases({
    {"aten::exp", {x()}},
    {"aten::exp", {x().special()}, kOfFloats},
    {"aten::exp2", {x()}},
    {"aten::expm1", {x()}},
    {"aten::expm1", {x().range(-0.001, 0.001)}, kOfFloats},
    {"aten::log", {x()}},
    {"aten::log", {x().special()}, kOfFloats},
    {"aten::log1p", {x()}},
    {"aten::log1p", {x().range(-0.001, 0.001)}, kOfFloats},
    {"aten::log2", {x()}},
    {"aten::log10", {x()}},
    {"aten::sqrt", {x()}},
    {"aten::sqrt", {x().special()}, kOfFloats},
    {"aten::rsqrt", {x()}},
    {"aten::reciprocal", {x()}},
    {"aten::sin", {x().range(-10, 10)}},
    {"aten::cos", {x().range(-10, 10)}},
    {"aten::tan", {x()}},
    {"aten::sinc", {x()}},
    {"aten::sinc", {x().special()}, kOfFloats},
    {"aten::asin", {x().range(-1.2, 1.2)}},
    {"aten::acos", {x().range(-1.2, 1.2)}},
    {"aten::atan", {x()}},
    {"aten::atan", {x().special()}, kOfFloats},
    {"aten::sinh", {x()}},
    {"aten::sinh", {x().range(-0.01, 0.01)}, kOfFloats},
    {"aten::sinh", {x().range(-80, 80)}, {.dtypes = {at::kDouble}}},
    {"aten::cosh", {x()}},
    {"aten::tanh", {x()}},
    {"aten::tanh", {x().special()}, kOfFloats},
    {"aten::asinh", {x()}},
    {"aten::asinh", {x().range(-1e6, 1e6)}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::acosh", {x().range(0.5, 5)}},
    {"aten::atanh", {x().range(-1.2, 1.2)}},
    {"aten::sigmoid", {x()}},
    {"aten::sigmoid", {x().range(-100, 100)}, kOfFloats},
    {"aten::erf", {x()}},
    {"aten::erf", {x().range(-7, 7)}, kOfFloats},
    {"aten::erf", {x().special()}, kOfFloats},
    {"aten::erfc", {x()}},
    {"aten::erfc", {x().range(-10, 10)}, kOfFloats},
    {"aten::erfc", {x().special()}, kOfFloats},
    {"aten::erfinv", {x().range(-1, 1)}},
    {"aten::erfinv", {x().range(-1.5, 1.5)}, kOfFloats},
    {"aten::neg", {x()}},
    {"aten::conj_physical", {x()}},
    {"aten::complex", {x(), y()}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::polar", {x(), y().range(-4, 4)}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::abs", {x()}},
    {"aten::abs", {x().special()}, kOfFloats},
    {"aten::sign", {x()}},
    {"aten::sign", {x().special()}, kOfFloats},
    {"aten::sgn", {x()}},
    {"aten::sgn", {x().special()}, kOfFloats},
    {"aten::ceil", {x()}},
    {"aten::floor", {x()}},
    {"aten::round", {x()}},
    {"aten::round", {given([](at::ScalarType t) { return at::tensor({-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}, at::kDouble).to(t); })}},
    {"aten::round.decimals", {x(), 1}},
    {"aten::round.decimals", {x().range(-300, 300), -1}},
    {"aten::round.decimals", {x(), 0}},
    {"aten::trunc", {x()}},
    {"aten::trunc", {x().special()}, kOfFloats},
    {"aten::frac", {x()}},
    {"aten::nan_to_num", {x()}},
    {"aten::nan_to_num", {x().special()}, kOfFloats},
    {"aten::nan_to_num", {x().special(), 1.0, 2.0, 3.0}, kOfFloats},
    {"aten::atan2", {x(), y()}, kPairs},
    {"aten::atan2", {x().special(), y().special()}, kOfFloats},
    {"aten::hypot", {x(), y()}},
    {"aten::hypot", {x().special(), y().special()}, kOfFloats},
    {"aten::logaddexp", {x(), y()}},
    {"aten::logaddexp", {x().special(), y().special()}, kOfFloats},
    {"aten::xlogy.Tensor", {x(), y()}, kPairs},
    {"aten::xlogy.Tensor", {x().special(), y().special()}, kOfFloats},
    {"aten::xlogy.Scalar_Other", {x(), 2.5}},
    {"aten::xlogy.Scalar_Self", {2, x()}},
});

const bool activations = add_cases({
    {"aten::relu", {x()}},
    {"aten::relu", {x().special()}, kOfFloats},
    {"aten::threshold", {x(), 0.5, -3}, {.dtypes = kFloats}},
    {"aten::threshold", {x(), 1, 7}},
    {"aten::threshold_backward", {x(), x(), 0}},
    {"aten::threshold_backward", {x(), y().special(), 0.5}, kOfFloats},
    {"aten::leaky_relu", {x()}},
    {"aten::leaky_relu", {x(), -0.3}, kOfFloats},
    {"aten::leaky_relu_backward", {x(), y(3, 5), 0.1, false}, kOfFloats},
    {"aten::_prelu_kernel", {x(), y()}, kOfFloats},
    {"aten::hardtanh", {x()}},
    {"aten::hardtanh", {x(), 0, 2}},
    {"aten::hardtanh_backward", {x(3, 5), y(3, 5), -1.0, 1.0}, kOfFloats},
    {"aten::hardsigmoid", {x().range(-5, 5)}},
    {"aten::hardswish", {x().range(-5, 5)}},
    {"aten::elu", {x()}},
    {"aten::elu", {x(), 1.3, 0.7, 0.4}, kOfFloats},
    {"aten::elu_backward", {x(3, 5), 1.3, 0.7, 0.4, false, y(3, 5)}, kOfFloats},
    {"aten::elu_backward", {x(3, 5), 1.3, 0.7, 0.4, true, y(3, 5)}, kOfFloats},
    {"aten::silu", {x()}},
    {"aten::silu", {x().range(-30, 30)}, kOfFloats},
    {"aten::silu_backward", {x(), y()}, kOfFloats},
    {"aten::sigmoid_backward", {x(), y().range(0, 1)}, kOfFloats},
    {"aten::tanh_backward", {x(), y().range(-1, 1)}, kOfFloats},
    {"aten::softplus", {x()}},
    {"aten::softplus", {x(), 2, 1.5}, kOfFloats},
    {"aten::softplus_backward", {x(), y(), 1, 20}, kOfFloats},
    {"aten::softplus_backward", {x(), y(), 2.0, 1.5}, kOfFloats},
    {"aten::mish", {x()}},
    {"aten::log_sigmoid_forward", {x()}, kOfFloats},
    {"aten::log_sigmoid_forward", {x().range(-100, 100)}, kOfFloats},
    {"aten::log_sigmoid_backward",
     {x(3, 5), given([](at::ScalarType t) { return at::linspace(-3, 3, 15).view({3, 5}).to(t); }),
      given([](at::ScalarType t) { return at::linspace(-3, 3, 15).view({3, 5}).to(t).abs().neg().exp(); })},
     kOfFloats},
    {"aten::glu", {x(4, 6), 1}},
    {"aten::glu", {x(4, 6), 0}, kOfFloats},
    {"aten::glu", {x(4, 5), 1}, kOfFloats},
    {"aten::gelu", {x()}},
    {"aten::gelu", {x().range(-6, 6), "tanh"}},
    {"aten::gelu", {x(), "erf"}, kOfFloats},
    {"aten::gelu_backward", {x(3, 5), y(3, 5), "none"}, kOfFloats},
    {"aten::gelu_backward", {x(3, 5), y(3, 5), "tanh"}, kOfFloats},
});

std::vector<OpCase> comparison_cases() {
  std::vector<OpCase> cases;
  for (std::string name : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    cases.push_back({"aten::" + name + ".Tensor", {x(), y()}, kPairs});
    cases.push_back({"aten::" + name + ".Tensor", {x().special(), y().special()}, kOfFloats});
    cases.push_back({"aten::" + name + ".Scalar", {x(), 1}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), -1}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), 0.5}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), true}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), 1000}});
  }
  for (std::string name : {"logical_and", "logical_or", "logical_xor"}) {
    cases.push_back({"aten::" + name, {x(), y()}, kPairs});
    cases.push_back({"aten::" + name, {x().special(), y().special()}, kOfFloats});
  }
  for (std::string name : {"bitwise_and", "bitwise_or", "bitwise_xor"}) {
    cases.push_back({"aten::" + name + ".Tensor", {x(), y()}, kPairs});
    cases.push_back({"aten::" + name + ".Scalar", {x(), 5}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), true}});
    cases.push_back({"aten::" + name + ".Scalar_Tensor", {6, x()}});
  }
  for (std::string name : {"bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"}) {
    bool old = name[0] == '_';
    Options of_integers{.dtypes = kIntegers, .pairs = true};
    cases.push_back({"aten::" + name + ".Tensor", {x().range(-100, 100), y().range(0, 7)}, of_integers});
    cases.push_back({"aten::" + name + ".Tensor", {x().range(-100, 100), y().range(0, 70)}, {.dtypes = kIntegers}});
    cases.push_back({"aten::" + name + (old ? ".Scalar" : ".Tensor_Scalar"), {x().range(-100, 100), 2}, {.dtypes = kIntegers}});
    if (!old) cases.push_back({"aten::" + name + ".Scalar_Tensor", {37, x().range(0, 7)}, {.dtypes = kIntegers}});
  }
  for (std::string name : {"isnan", "isinf", "isposinf", "isneginf", "signbit", "logical_not"}) {
    cases.push_back({"aten::" + name, {x()}});
    cases.push_back({"aten::" + name, {x().special()}, kOfFloats});
  }
  return cases;
}

const bool logic = add_cases(comparison_cases());

const bool selection = add_cases({
    {"aten::bitwise_not", {x()}},
    {"aten::where.self", {z().of(at::kBool), x(), y()}, kPairs},
    {"aten::where.self", {z().of(at::kByte), x(), y()}},
    {"aten::where.self", {z().of(at::kFloat), x(), y()}},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kBool), 1}},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kBool), -0.5}},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kBool), 70000}},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kBool), -INFINITY}},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kInt), 1}},
    {"aten::masked_fill.Tensor", {x(), z().of(at::kBool), scalar()}},
    {"aten::masked_fill.Tensor", {x(), z().of(at::kBool), y(1)}},
});

}  // namespace

}  // namespace flambeau::op_test
