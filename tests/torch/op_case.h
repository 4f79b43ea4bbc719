// Cases of the op table: data that says how to call an op; torch CPU says what it must answer.
//
// A file of cases is one static registration:
//
//   const bool registered = add_cases({
//       {"aten::relu", {x()}},                                  // every dtype, every shape of the list of shapes
//       {"aten::add.Tensor", {x(), y(), 2}, {.pairs = true}},   // every pair of dtypes, every broadcast of the list
//       {"aten::_log_softmax", {x(3, 5), 1, false}, {.dtypes = kFloats}},
//       {"aten::index_select", {x(4, 5), 1, index(5, {3})}},
//   });
//
// Arguments are the schema's, in order, without layout, device, pin_memory, memory_format and generator; those at the end that
// have defaults may be left out. A tensor without a dtype takes the case's: the case is run once a dtype of `.dtypes`.
// What torch CPU refuses must be refused here with an exception of its class; where the CPU alone lacks a kernel for float16 or bfloat16,
// the answer is that of double precision.
// Every call runs through PyTorch's dispatcher on tpu tensors, contiguous and strided ones in turn, with numbers that are part of the
// program and such that are parameters of it, and beside it the op's in-place and out forms.
// A NotImplementedError of the device's is agreement only where torch CPU raises too, or a case says that it `runs_on_cpu`.
// The test fails for a row of the op table without a case.
#pragma once

#include <complex>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ATen.h>

namespace flambeau::op_test {

using Shape = std::vector<int64_t>;
using DTypes = std::vector<at::ScalarType>;

inline const DTypes kAll = {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
inline const DTypes kFloats = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
inline const DTypes kIntegers = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};
inline const DTypes kNumbers = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
inline const DTypes kFew = {at::kBool, at::kInt, at::kLong, at::kBFloat16, at::kFloat};  // where dtypes do not matter much
inline const DTypes kFloat = {at::kFloat};
inline const DTypes kComplex = {at::kComplexFloat, at::kComplexDouble};
inline const DTypes kFloatsAndComplex = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};

// A seeded random tensor. Floats lie in [low, high); integers are drawn from the same range (cut to the dtype's).
struct TensorSpec {
  int role = 0;                          // 0: x, 1: y, 2: z; picks the shape of a shape-free case and the dtype of a pair
  std::optional<Shape> dims;             // none: taken from the list of shapes
  std::optional<at::ScalarType> dtype;   // none: the case's
  double low = -3, high = 3;
  bool is_nonzero = false;               // no zeros (divisors)
  bool is_distinct = false;              // no two elements alike (sort, argmax): a shuffled range
  bool is_special = false;               // floats: a few NaN, +-inf, +-0 in between
  std::function<at::Tensor(at::ScalarType)> make;  // instead of all of the above

  TensorSpec of(at::ScalarType t) const { auto s = *this; s.dtype = t; return s; }
  TensorSpec range(double lo, double hi) const { auto s = *this; s.low = lo; s.high = hi; return s; }
  TensorSpec positive() const { return range(0.1, 4); }
  TensorSpec nonzero() const { auto s = *this; s.is_nonzero = true; return s; }
  TensorSpec distinct() const { auto s = *this; s.is_distinct = true; return s; }
  TensorSpec special() const { auto s = *this; s.is_special = true; return s; }
};

inline TensorSpec tensor(int role, std::optional<Shape> dims) {
  TensorSpec s;
  s.role = role;
  s.dims = std::move(dims);
  return s;
}
// x() has no shape of its own; x(3, 5) has; scalar() is 0-dim. y and z are further operands: they have other shapes (that
// broadcast with x's) and, in a case with `.pairs`, y has another dtype.
template <class... D> TensorSpec x(D... d) { return tensor(0, sizeof...(D) ? std::optional(Shape{static_cast<int64_t>(d)...}) : std::nullopt); }
template <class... D> TensorSpec y(D... d) { return tensor(1, sizeof...(D) ? std::optional(Shape{static_cast<int64_t>(d)...}) : std::nullopt); }
template <class... D> TensorSpec z(D... d) { return tensor(2, sizeof...(D) ? std::optional(Shape{static_cast<int64_t>(d)...}) : std::nullopt); }
inline TensorSpec scalar(int role = 0) { return tensor(role, Shape{}); }
// int64 indices in [0, size).
inline TensorSpec index(int64_t size, Shape dims) { return tensor(0, std::move(dims)).of(at::kLong).range(0, static_cast<double>(size)); }
// A tensor made by hand; `make` gets the case's dtype.
inline TensorSpec given(std::function<at::Tensor(at::ScalarType)> make) {
  TensorSpec s;
  s.make = std::move(make);
  return s;
}
inline TensorSpec given(at::Tensor t) { return given([t](at::ScalarType) { return t; }); }

struct None {};
inline constexpr None none{};

struct Arg {
  std::variant<None, bool, int64_t, uint64_t, double, std::complex<double>, std::string, Shape, at::ScalarType, TensorSpec, std::vector<Arg>> value;

  Arg(None) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Arg(T v) {
    if constexpr (std::is_same_v<T, bool>) value = v;
    else if constexpr (std::is_same_v<T, uint64_t>) value = v;
    else if constexpr (std::is_integral_v<T>) value = static_cast<int64_t>(v);
    else value = static_cast<double>(v);
  }
  Arg(std::complex<double> z) : value(z) {}
  Arg(const char* text) : value(std::string(text)) {}
  Arg(Shape ints) : value(std::move(ints)) {}
  Arg(at::ScalarType t) : value(t) {}
  Arg(TensorSpec t) : value(std::move(t)) {}
  Arg(std::vector<Arg> list) : value(std::move(list)) {}
};

template <class... I> Arg ints(I... i) { return Arg(Shape{static_cast<int64_t>(i)...}); }
// Tensor[] and Tensor?[]: tensors({x(3), none, y(3)}). bool[]: list(true, false, true).
inline Arg tensors(std::vector<Arg> list) { return Arg(std::move(list)); }
template <class... T> Arg list(T... items) { return Arg(std::vector<Arg>{Arg(items)...}); }

struct Options {
  DTypes dtypes = kAll;
  bool pairs = false;             // x and y take every pair of dtypes
  bool meta_only = false;         // random ops: compare shapes and dtypes, and that values are finite
  bool runs_on_cpu = false;       // some of these dtypes the device does not have: they run on the CPU (device/fallback.h)
  std::vector<int> skip_outputs = {};  // outputs that PyTorch leaves unspecified
  // Tolerances wider than PyTorch's own, by dtype of the output; each must say why.
  struct Wider {
    Wider(at::ScalarType dtype, double rtol, double atol, std::string_view why) : dtype(dtype), rtol(rtol), atol(atol), why(why) {}
    at::ScalarType dtype;
    double rtol, atol;
    std::string_view why;
  };
  std::vector<Wider> tolerances = {};
  // Instead of torch CPU's kernel, for ops that it does not have: what must come out for all of the schema's arguments.
  std::function<std::vector<at::Tensor>(const std::vector<c10::IValue>&)> reference = {};
};

struct OpCase {
  std::string op;  // "aten::add.Tensor"
  std::vector<Arg> args;
  Options options = {};
};

bool add_cases(std::vector<OpCase> cases);
const std::vector<OpCase>& all_cases();

}  // namespace flambeau::op_test
