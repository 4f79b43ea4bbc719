// Cases of values that are easily lost: integers that no float holds, numbers beyond a dtype, complex numbers, divisions by zero.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

constexpr int64_t kTwo53 = int64_t{1} << 53, kTwo62 = int64_t{1} << 62;
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kGreatest = std::numeric_limits<int64_t>::max();

const Options kOnce = {.dtypes = kFloat};  // of cases whose tensors have dtypes of their own
const Options kLongs = {.dtypes = {at::kLong}};

TensorSpec longs(std::vector<int64_t> values) { return given(at::tensor(values, at::kLong)); }
TensorSpec doubles(std::vector<double> values) {
  return given([values](at::ScalarType t) { return at::tensor(values, at::kDouble).to(t); });
}

// Neighbours that round to one double, and both ends.
TensorSpec large() { return longs({kTwo53 + 1, kTwo53, -kTwo53 - 1, kTwo62 + 1, kTwo62, kLeast, kGreatest, 7, -2}); }
TensorSpec large_too() { return longs({kTwo53, kTwo53 + 1, -kTwo53, 3, kTwo62 + 1, kLeast, kGreatest - 1, 2, kTwo53 + 1}); }
// The same without the ends, whose sums and quotients leave int64.
TensorSpec wide() { return longs({kTwo53 + 1, kTwo53 + 3, -kTwo53 - 1, kTwo62 + 1, 5 - kTwo62, 7, -2, kTwo53 * 3 + 1, 10}); }

std::vector<OpCase> integer_cases() {
  std::vector<OpCase> cases;
  for (std::string name : {"add", "sub", "mul", "floor_divide", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or",
                           "bitwise_xor"}) {
    std::string tensor = name == "floor_divide" ? "" : ".Tensor";
    cases.push_back({"aten::" + name + tensor, {wide(), large_too()}, kOnce});
    for (int64_t number : {kTwo53 + 1, int64_t{-3}}) cases.push_back({"aten::" + name + ".Scalar", {large(), number}, kOnce});
  }
  for (std::string name : {"add", "sub", "rsub"}) {
    cases.push_back({"aten::" + name + ".Tensor", {wide(), wide(), kTwo53 + 1}, kOnce});
    cases.push_back({"aten::" + name + ".Tensor", {x(), y(), 1000}, {.dtypes = kNumbers}});
    cases.push_back({"aten::" + name + ".Scalar", {wide(), 1, kTwo53 + 1}, kOnce});
    cases.push_back({"aten::" + name + ".Scalar", {x(), 1000, 1}, {.dtypes = kNumbers}});
  }
  for (std::string name : {"abs", "neg", "sign", "sgn", "bitwise_not", "relu"}) cases.push_back({"aten::" + name, {large()}, kOnce});
  for (std::string mode : {"floor", "trunc"}) {
    cases.push_back({"aten::div.Tensor_mode", {wide(), large_too(), mode.c_str()}, kOnce});
    cases.push_back({"aten::div.Scalar_mode", {large(), kTwo53 + 1, mode.c_str()}, kOnce});
    if (mode == "floor") cases.push_back({"aten::div.Scalar_mode", {large(), -1, mode.c_str()}, kOnce});  // trunc: a signal on the CPU
  }
  for (std::string name : {"sum", "prod", "max", "min", "median", "count_nonzero", "argmax", "argmin"}) cases.push_back({"aten::" + name, {large()}, kOnce});
  for (std::string name : {"cumsum", "cumprod"}) cases.push_back({"aten::" + name, {large(), 0}, kOnce});
  for (std::string name : {"maximum", "minimum", "fmax", "fmin"}) cases.push_back({"aten::" + name, {large(), large_too()}, kOnce});
  return cases;
}
const bool integers = add_cases(integer_cases());

const bool more_integers = add_cases({
    {"aten::pow.Tensor_Tensor", {longs({3, -3, 2, 10, 0, 7}), longs({39, 39, 62, 18, 0, 1})}, kOnce},
    {"aten::pow.Tensor_Tensor", {longs({3, -3, 2, -1, 5}), longs({1000, 77, 64, 65, kGreatest})}, kOnce},
    {"aten::pow.Tensor_Tensor", {longs({0, 1, -1, -1, 2, -5}), longs({-1, -5, -3, -2, -1, -2})}, kOnce},
    {"aten::pow.Tensor_Scalar", {longs({kTwo53 + 1, 3, -7}), 3}, kOnce},
    {"aten::pow.Tensor_Scalar", {longs({3, -3, 2}), 39}, kOnce},
    {"aten::pow.Tensor_Scalar", {longs({3, -3, 2}), -1}, kOnce},
    {"aten::pow.Tensor_Scalar", {x(), 1000}, {.dtypes = {at::kChar, at::kByte, at::kLong}}},
    {"aten::pow.Scalar", {3, longs({39, 0, 1})}, kOnce},
    {"aten::clamp", {large(), -kTwo53 - 1, kTwo53 + 1}, kOnce},
    {"aten::clamp_min", {large(), kTwo53 + 1}, kOnce},
    {"aten::clamp_max", {large(), kTwo53 + 1}, kOnce},
    {"aten::clamp.Tensor", {large(), large_too(), none}, kOnce},
    {"aten::addcmul", {wide(), longs({1, 2, 3, 4, 5, 6, 7, 8, 9}), wide(), 3}, kOnce},
    {"aten::eq.Scalar", {large(), static_cast<double>(kTwo53)}, kOnce},
    {"aten::gt.Scalar", {large(), static_cast<double>(kTwo53)}, kOnce},
    {"aten::where.self", {given(at::tensor({1, 0, 1, 1, 0, 1, 0, 1, 0}).to(at::kBool)), large(), large_too()}, kOnce},
    {"aten::masked_fill.Scalar", {large(), given(at::tensor({1, 0, 1, 1, 0, 1, 0, 1, 0}).to(at::kBool)), kTwo53 + 1}, kOnce},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kBool), 1000}, {.dtypes = kNumbers}},
    {"aten::fill.Scalar", {x(3), kTwo53 + 1}},
    {"aten::fill.Scalar", {x(3), 300}},
    {"aten::fill.Scalar", {x(3), -1}},
    {"aten::fill.Scalar", {x(3), 1.5}},
    {"aten::fill.Scalar", {x(3), 1e39}},
    {"aten::full", {ints(2), kTwo62 + 1}, kOnce},
    {"aten::full", {ints(2), kTwo62 + 1, at::kDouble}, kOnce},
    {"aten::full", {ints(2), 1e30, at::kLong}, kOnce},
    {"aten::full", {ints(2), NAN, at::kInt}, kOnce},
    {"aten::full", {ints(2), (uint64_t{1} << 63) + 1, at::kUInt64}, kOnce},
    {"aten::full", {ints(2), (uint64_t{1} << 63) + 1}, kOnce},
    {"aten::add.Scalar", {large(), (uint64_t{1} << 63) + 1, 1}, kOnce},
    {"aten::eq.Scalar", {large(), uint64_t{1} << 63}, kOnce},
    {"aten::full", {ints(2), 65504.5, at::kHalf}, kOnce},
    {"aten::full_like", {x(3), 200}},
    {"aten::sort", {large(), 0, false}, kOnce},
    {"aten::sort", {large(), 0, true}, kOnce},
    {"aten::topk", {large(), 4, 0, true, true}, kOnce},
    {"aten::topk", {large(), 9, 0, false, true}, kOnce},
    {"aten::kthvalue", {large(), 3}, kOnce},
    {"aten::median.dim", {large(), 0}, kOnce},
    {"aten::sum.dim_IntList", {large(), ints(0), false, at::kDouble}, kOnce},
    {"aten::mean", {large(), at::kDouble}, kOnce},
    {"aten::_to_copy", {large(), at::kFloat}, kOnce},
    {"aten::_to_copy", {large(), at::kInt}, kOnce},
    {"aten::_to_copy", {large(), at::kByte}, kOnce},
    {"aten::_to_copy", {doubles({-1.5, 300.7, -129.2, 40000.9, 70000}), at::kChar}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::_to_copy", {doubles({-1.5, 300.7, -129.2, 40000.9, 70000}), at::kShort}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::_to_copy", {doubles({-1.5, 300.7, -129.2, 40000.9, 70000}), at::kByte}, {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::add.Scalar", {given(at::tensor({200, 255, 3}, at::kByte)), 100}, kOnce},
    {"aten::sub.Tensor", {given(at::tensor({1, 255, 3}, at::kByte)), given(at::tensor({2, 255, 4}, at::kByte))}, kOnce},
    {"aten::mul.Tensor", {given(at::tensor({20, 255, 3}, at::kByte)), given(at::tensor({20, 255, 4}, at::kByte))}, kOnce},
    {"aten::neg", {given(at::tensor({0, 1, 255}, at::kByte))}, kOnce},
    {"aten::index_add", {longs({1, 2, 3}), 0, longs({2, 0, 2}), longs({kTwo53 + 1, kTwo62 + 1, 1}), 1}, kOnce},
    {"aten::index_add", {longs({1, 2, 3}), 0, longs({2, 0, 2}), longs({3, 5, 1}), kTwo53 + 1}, kOnce},
    {"aten::scatter_add", {longs({1, 2, 3}), 0, longs({2, 0, 2}), longs({kTwo53 + 1, kTwo62 + 1, 1})}, kOnce},
    {"aten::scatter.value", {longs({1, 2, 3}), 0, longs({2, 0}), kTwo53 + 1}, kOnce},
    {"aten::index_fill.int_Scalar", {longs({1, 2, 3}), 0, longs({2, 0}), kTwo53 + 1}, kOnce},
    {"aten::lerp.Scalar", {large(), large_too(), 0.5}, kOnce},
});

// ---- divisions by zero ---------------------------------------------------------------------------------------------------------

std::vector<OpCase> division_cases() {
  std::vector<OpCase> cases;
  const Options of_few = {.dtypes = {at::kByte, at::kChar, at::kLong, at::kFloat}};
  auto with_zero = [] { return doubles({2, 0, 1}); };
  for (std::string name : {"floor_divide", "remainder", "fmod"}) {
    cases.push_back({"aten::" + name + (name == "floor_divide" ? "" : ".Tensor"), {x(3).range(1, 9), with_zero()}, of_few});
    cases.push_back({"aten::" + name + ".Scalar", {x(3).range(1, 9), 0}, of_few});
    cases.push_back({"aten::" + name + ".Scalar", {x(3).range(1, 9), 256}, of_few});
  }
  cases.push_back({"aten::remainder.Scalar_Tensor", {7, with_zero()}, of_few});
  for (const char* mode : {"floor", "trunc"}) {
    cases.push_back({"aten::div.Tensor_mode", {x(3).range(1, 9), with_zero(), mode}, of_few});
    cases.push_back({"aten::div.Scalar_mode", {x(3).range(1, 9), 0, mode}, of_few});
    cases.push_back({"aten::div.Tensor_mode", {x(0), y(0), mode}, of_few});
  }
  cases.push_back({"aten::div.Tensor", {x(3).range(1, 9), with_zero()}, of_few});
  return cases;
}
const bool divisions = add_cases(division_cases());

// ---- ranges --------------------------------------------------------------------------------------------------------------------

const bool ranges = add_cases({
    {"aten::arange.start", {kTwo62, kTwo62 + 5}, kOnce},
    {"aten::arange.start_step", {kGreatest - 4, kGreatest, 2}, kOnce},
    {"aten::arange.start_step", {kLeast, kLeast + 7, 3}, kOnce},
    {"aten::arange.start_step", {kTwo53 + 5, kTwo53 - 2, -2}, kOnce},
    {"aten::arange.start_step", {0.5, 5.7, 1, at::kLong}, kOnce},
    {"aten::arange.start_step", {0.5, 5.7, 1, at::kInt}, kOnce},
    {"aten::arange.start_step", {0, 5, 0.5, at::kLong}, kOnce},
    {"aten::arange.start_step", {0, 5, 0.5, at::kInt}, kOnce},
    {"aten::arange.start_step", {0, 10, 3, at::kByte}, kOnce},
    {"aten::arange.start_step", {-100, 100, 0.1}, kOnce},
    {"aten::arange.start_step", {1, 0, -0.25, at::kDouble}, kOnce},
    {"aten::arange.start_step", {16777210, 16777230, 1, at::kFloat}, kOnce},
    {"aten::linspace", {kTwo62 / (1 << 22), kTwo62 / (1 << 22) + 8, 9, at::kLong}, kOnce},
    {"aten::linspace", {kTwo53 + 1, kTwo53 + 9, 9, at::kLong}, kOnce},
    {"aten::linspace", {-3, -11, 7, at::kInt}, kOnce},
    {"aten::linspace", {0, 10, 4, at::kLong}, kOnce},
    {"aten::linspace", {0.5, 3.7, 4, at::kLong}, kOnce},
    {"aten::linspace", {0, 255, 52, at::kByte}, kOnce},
    {"aten::linspace", {0, 300, 3, at::kByte}, kOnce},
    {"aten::linspace", {-5.5, 3.25, 30}, kOnce},
    {"aten::linspace", {16777217, 1, 5}, kOnce},
    {"aten::linspace", {0, 1, 11, at::kDouble}, kOnce},
    {"aten::linspace", {0.1, 1, 7, at::kBFloat16}, kOnce},
    {"aten::linspace", {3, 7, 1, at::kLong}, kOnce},
    {"aten::linspace", {3, 7, 0, at::kLong}, kOnce},
    {"aten::linspace", {3, 7, -1}, kOnce},
    {"aten::linspace", {0, 1, 3, at::kBool}, kOnce},
    {"aten::linspace", {std::complex<double>(0, 1), 2, 5}, kOnce},
    {"aten::linspace", {0, std::complex<double>(1, -1), 5, at::kComplexDouble}, kOnce},
    {"aten::linspace", {0, std::complex<double>(1, -1), 5, at::kFloat}, kOnce},
    {"aten::logspace", {0, 3, 4, 10.0, at::kLong}, kOnce},
    {"aten::logspace", {0, 40, 41, 2.0, at::kLong}, kOnce},
    {"aten::logspace", {-1.5, 2, 9}, kOnce},
    {"aten::logspace", {-1, 2, 9, 2.0, at::kDouble}, kOnce},
    {"aten::logspace", {2, 7, 1}, kOnce},
    {"aten::logspace", {0, 1, -1}, kOnce},
});

const bool inverse_errors = add_cases({
    {"aten::erfinv", {doubles({0.9999999, 1 - 0x1p-24, 0.99999, -0.999999, -0.5, 1e-10, -0.0, 1, -1, 1.5, NAN, 0.9999})}, {.dtypes = kFloats}},
    {"aten::erfinv", {doubles({1 - 0x1p-53, 1 - 1e-15, -1 + 1e-12, 1e-300, 0.9375, 0.99999999})}, {.dtypes = {at::kDouble}}},
});

// ---- complex numbers -----------------------------------------------------------------------------------------------------------

const std::complex<double> kZ(1.5, -2);

std::vector<OpCase> complex_cases() {
  std::vector<OpCase> cases;
  const Options complex = {.dtypes = kComplex};
  for (std::string name : {"add", "sub", "rsub"}) {
    cases.push_back({"aten::" + name + ".Tensor", {x(), y()}, {.dtypes = {at::kLong, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}, .pairs = true}});
    cases.push_back({"aten::" + name + ".Tensor", {x(), y(), kZ}, {.dtypes = {at::kLong, at::kFloat, at::kComplexFloat, at::kComplexDouble}}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), kZ, 2}, {.dtypes = {at::kBool, at::kLong, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}}});
  }
  for (std::string name : {"mul", "div", "eq", "ne"}) {
    cases.push_back({"aten::" + name + ".Tensor", {x(), y()}, complex});
    cases.push_back({"aten::" + name + ".Scalar", {x(), kZ}, {.dtypes = {at::kBool, at::kLong, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}}});
    cases.push_back({"aten::" + name + ".Scalar", {x(), 2.5}, complex});
  }
  for (std::string name : {"lt", "remainder", "fmod"}) cases.push_back({"aten::" + name + ".Tensor", {x(), y()}, complex});
  for (std::string name : {"abs", "angle", "neg", "sgn", "sign", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
                           "tan", "sinh", "cosh", "tanh", "sigmoid", "sinc", "isnan", "isinf", "logical_not",
                           "sum", "prod", "mean", "any", "all", "count_nonzero", "erf", "ceil", "floor", "frac", "relu", "max", "argmax", "isposinf", "signbit"})
    cases.push_back({"aten::" + name, {x()}, complex});
  for (std::string name : {"asin", "acos", "atan", "asinh", "acosh", "atanh", "silu"}) cases.push_back({"aten::" + name, {x()}, {.dtypes = kComplex, .runs_on_cpu = true}});
  for (std::string name : {"logical_and", "logical_or", "logical_xor", "maximum", "fmax", "atan2", "hypot"}) cases.push_back({"aten::" + name, {x(), y()}, complex});
  cases.push_back({"aten::logaddexp", {x(), y()}, {.dtypes = kComplex, .runs_on_cpu = true}});
  for (std::string name : {"cumsum", "cumprod"}) cases.push_back({"aten::" + name, {x(5, 3), 0}, complex});
  for (std::string name : {"var", "std", "var_mean", "std_mean"}) cases.push_back({"aten::" + name + ".correction", {x(3, 4), ints(1)}, complex});
  for (Arg p : {Arg(1), Arg(2), Arg(3), Arg(0), Arg(INFINITY), Arg(-INFINITY)}) cases.push_back({"aten::linalg_vector_norm", {x(3, 4), p, ints(1)}, complex});
  return cases;
}
const bool complex = add_cases(complex_cases());

const bool more_complex = add_cases({
    {"aten::full", {ints(2), kZ}, kOnce},
    {"aten::full", {ints(2), kZ, at::kComplexDouble}, kOnce},
    {"aten::full", {ints(2), kZ, at::kFloat}, kOnce},
    {"aten::full", {ints(2), std::complex<double>(2, 0), at::kFloat}, kOnce},
    {"aten::full", {ints(2), std::complex<double>(0, 1), at::kBool}, kOnce},
    {"aten::full_like", {x(3), kZ}, {.dtypes = {at::kLong, at::kFloat, at::kComplexFloat, at::kComplexDouble}}},
    {"aten::fill.Scalar", {x(3), kZ}, {.dtypes = {at::kBool, at::kLong, at::kFloat, at::kComplexFloat, at::kComplexDouble}}},
    {"aten::fill.Tensor", {x(3), scalar(1)}, {.dtypes = kComplex}},
    {"aten::masked_fill.Scalar", {x(), z().of(at::kBool), kZ}, {.dtypes = {at::kLong, at::kFloat, at::kComplexFloat}}},
    {"aten::where.self", {z().of(at::kBool), x(), y()}, {.dtypes = kComplex}},
    {"aten::pow.Tensor_Scalar", {x(), 2}, {.dtypes = kComplex}},
    {"aten::pow.Tensor_Scalar", {x(), 0.5}, {.dtypes = kComplex}},
    {"aten::pow.Tensor_Scalar", {x(), kZ}, {.dtypes = kComplex}},
    {"aten::pow.Tensor_Tensor", {x(), y()}, {.dtypes = kComplex}},
    {"aten::addcmul", {x(), y(), z(), kZ}, {.dtypes = kComplex}},
    {"aten::addcdiv", {x(), y(), z(), kZ}, {.dtypes = kComplex}},
    {"aten::lerp.Scalar", {x(), y(), 0.3}, {.dtypes = kComplex}},
    {"aten::lerp.Scalar", {x(), y(), kZ}, {.dtypes = kComplex}},
    {"aten::lerp.Tensor", {x(), y(), z()}, {.dtypes = kComplex}},
    {"aten::mm", {x(3, 4), y(4, 5)}, {.dtypes = kComplex}},
    {"aten::bmm", {x(2, 3, 4), y(2, 4, 5)}, {.dtypes = kComplex}},
    {"aten::addmm", {z(3, 5), x(3, 4), y(4, 5), kZ, kZ}, {.dtypes = kComplex}},
    {"aten::mv", {x(3, 4), y(4)}, {.dtypes = kComplex}},
    {"aten::dot", {x(4), y(4)}, {.dtypes = kComplex}},
    {"aten::nan_to_num", {x()}, {.dtypes = kComplex}},
    {"aten::round", {x()}, {.dtypes = kComplex}},
    {"aten::trunc", {x()}, {.dtypes = kComplex}},
    {"aten::clamp", {x(), -1, 1}, {.dtypes = kComplex}},
    {"aten::_to_copy", {x(), at::kComplexFloat}},
    {"aten::_to_copy", {x(), at::kComplexFloat}, {.dtypes = kComplex}},
    {"aten::index_add", {x(4, 5), 0, index(4, {6}), y(6, 5), kZ}, {.dtypes = kComplex}},
    {"aten::scatter.value", {x(3, 5), 1, index(5, {3, 2}), kZ}, {.dtypes = kComplex}},
    {"aten::index_fill.int_Scalar", {x(4, 5), 1, index(5, {3}), kZ}, {.dtypes = kComplex}},
});

}  // namespace

}  // namespace flambeau::op_test
