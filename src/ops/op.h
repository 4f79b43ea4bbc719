// ATen operations as graph building: one function an op, one row an op.
//
// A row names the functional form of an overload ("aten::add.Tensor"); the device derives the in-place and out forms from the schema. An op
// of our own ("flambeau::dot_general") brings its schema.
// The function's parameters are the schema's arguments in order, without layout, device, pin_memory, memory_format and
// generator. C++ types stand for schema types:
//
//   Tensor       Value, or Operand where type promotion must know a wrapped number
//   Tensor?      std::optional<Value> or std::optional<Operand>
//   Tensor[]     std::vector<Value>             Tensor?[]  std::vector<std::optional<Value>>
//   Scalar(?)    Scalar, std::optional<Scalar>
//   int, SymInt  int64_t (?: std::optional)     int[]      Dims (?: std::optional<Dims>)
//   float        double (?: std::optional)      bool       bool (?: std::optional)
//                or Scalar, where the number changes from call to call (a learning rate)
//   ScalarType?  std::optional<DType>           str        std::string
//   (none)       Random, anywhere in the list: the op draws random numbers; its row is marked by that alone
//
// It returns a Value, a std::vector<Value> or a std::tuple/std::array of Values, in the schema's order; a default Value stands
// for an output that is not given (output_mask). A `Tensor[]` return is a vector.
// It raises InvalidArgument with PyTorch's own words for arguments that PyTorch refuses, and NotImplemented for what is legal in
// PyTorch and missing here. The function alone defines the op's output shapes and dtypes: there are no meta functions.
#pragma once

#include <complex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"
#include "hlo/builder.h"

namespace flambeau::ops {

using hlo::Builder;
using hlo::Dims;
using hlo::Value;

// A Python number with its category: a bool, an int (an unsigned one where no int64 holds it), a float or a complex.
struct Number {
  std::variant<bool, int64_t, double, std::complex<double>, uint64_t> value;
  DType category() const;  // Pred, S64, F64, C128 or U64
  double as_double() const;
  int64_t as_int() const;
  friend bool operator==(const Number&, const Number&) = default;
};

// A tensor argument and whether it is a wrapped number (which takes part in promotion by its category only).
struct Operand {
  Value value;
  bool wrapped = false;
};

// A number argument: known while the program is built, or a rank-0 parameter of it (dtype = its category), so that a changing
// learning rate does not recompile.
struct Scalar {
  std::optional<Number> known;
  Value parameter;  // when not known
  DType category() const { return known ? known->category() : parameter.dtype(); }
  bool is(double x) const { return known && category() != DType::C128 && known->as_double() == x; }
  Value as(Builder& b, DType dtype) const;  // rank 0
  Operand operand(Builder& b) const;        // a wrapped number
  // For arguments that must be known: the row must say Specialise.
  const Number& number(std::string_view op) const;
};

// The stream position of a random op: Philox-4x32-10 with key `seed` and counter offset + iota (see random.h).
struct Random {
  Value seed;    // rank-0 U64
  Value offset;  // rank-0 U64, in blocks of four 32-bit words
};

using Argument = std::variant<std::monostate, Operand, std::vector<std::optional<Operand>>, Scalar, int64_t, double, bool, Dims,
                              DType, std::string>;

using Lowering = std::vector<Value> (*)(Builder&, std::span<const Argument>, const Random*);

struct Row {
  std::string_view name;  // "aten::add.Tensor", of the functional form; "flambeau::dot_general"
  Lowering lower = nullptr;
  bool random = false;
  bool specialise = false;  // every Scalar is known: its value is part of the program
  uint64_t scalars = 0;     // bit i: parameter i of the function, Random not counted, is a Scalar
  uint64_t fits = 0;        // bit i: parameter i must lie within the first output's dtype; bits of `scalars`
  bool in_compute_type = false;  // ... within the dtype that it is computed in
  std::string_view schema = {};  // of an op of our own, in PyTorch's words without the name: "(Tensor x) -> Tensor"
};

// A number that becomes an element of `dtype` must lie within it (negative integers may wrap): InvalidArgument otherwise.
void check_fits(const Number& number, DType dtype);
// The same of the numbers of a call that are parameters of its program; lowerings look at the known ones. `result`: the first output.
void check_parameter_fits(const Row& row, size_t index, const Number& number, DType result);

// Every op that Flambeau has. Rows are found by name in constant time; indices are stable within a process.
std::span<const Row> all_rows();
const Row* find_row(std::string_view name);

// ---- making rows: {"aten::relu", lower<&relu>()} -----------------------------------------------------------------------

namespace detail {

template <class T>
struct Unpack;  // from Argument to the parameter type

[[noreturn]] void bad_argument(size_t index, std::string_view expected);
inline bool is_none(const Argument& a) { return std::holds_alternative<std::monostate>(a); }

template <class T, class Stored = T>
struct UnpackPlain {
  static T get(const Argument& a, size_t i) {
    if (auto* p = std::get_if<Stored>(&a)) return T(*p);
    bad_argument(i, "another type");
  }
};
template <> struct Unpack<Operand> : UnpackPlain<Operand> {};
template <> struct Unpack<Value> {
  static Value get(const Argument& a, size_t i) { return Unpack<Operand>::get(a, i).value; }
};
template <> struct Unpack<Scalar> {
  static Scalar get(const Argument& a, size_t i) {
    if (auto* number = std::get_if<double>(&a)) return {Number{*number}, {}};
    return UnpackPlain<Scalar>::get(a, i);
  }
};
template <> struct Unpack<int64_t> : UnpackPlain<int64_t> {};
template <> struct Unpack<bool> : UnpackPlain<bool> {};
template <> struct Unpack<DType> : UnpackPlain<DType> {};
template <> struct Unpack<Dims> : UnpackPlain<Dims> {};
template <> struct Unpack<std::string> : UnpackPlain<std::string> {};
template <> struct Unpack<double> : UnpackPlain<double> {};
template <> struct Unpack<std::vector<std::optional<Value>>> {
  static std::vector<std::optional<Value>> get(const Argument& a, size_t i) {
    auto* list = std::get_if<std::vector<std::optional<Operand>>>(&a);
    if (!list) bad_argument(i, "a list of tensors");
    std::vector<std::optional<Value>> values;
    for (const auto& x : *list) values.push_back(x ? std::optional(x->value) : std::nullopt);
    return values;
  }
};
template <> struct Unpack<std::vector<Operand>> {
  static std::vector<Operand> get(const Argument& a, size_t i) {
    auto* list = std::get_if<std::vector<std::optional<Operand>>>(&a);
    if (!list) bad_argument(i, "a list of tensors");
    std::vector<Operand> operands;
    for (const auto& x : *list) operands.push_back(x ? *x : (bad_argument(i, "a tensor in every place of the list"), *x));
    return operands;
  }
};
template <> struct Unpack<std::vector<Value>> {
  static std::vector<Value> get(const Argument& a, size_t i) {
    std::vector<Value> values;
    for (const Operand& x : Unpack<std::vector<Operand>>::get(a, i)) values.push_back(x.value);
    return values;
  }
};
template <class T> struct Unpack<std::optional<T>> {
  static std::optional<T> get(const Argument& a, size_t i) {
    if (is_none(a)) return std::nullopt;
    return Unpack<T>::get(a, i);
  }
};

inline std::vector<Value> pack(Value v) { return {v}; }
inline std::vector<Value> pack(std::vector<Value> v) { return v; }
template <class... T> std::vector<Value> pack(const std::tuple<T...>& t) {
  return std::apply([](auto... v) { return std::vector<Value>{v...}; }, t);
}
template <size_t N> std::vector<Value> pack(const std::array<Value, N>& a) { return {a.begin(), a.end()}; }

template <class T, class U>
inline constexpr bool is_a = std::is_same_v<std::remove_cvref_t<T>, U>;

template <class T>
std::conditional_t<is_a<T, Random>, const Random&, std::remove_cvref_t<T>> take(std::span<const Argument> arguments,
                                                                                const Random* random, size_t& next) {
  if constexpr (is_a<T, Random>) {
    return *random;
  } else {
    size_t i = next++;
    if (i >= arguments.size()) bad_argument(i, "one argument more");
    return Unpack<std::remove_cvref_t<T>>::get(arguments[i], i);
  }
}

template <auto F>
struct Lower;
template <class R, class... P, R (*F)(Builder&, P...)>
struct Lower<F> {
  static std::vector<Value> run(Builder& b, std::span<const Argument> arguments, const Random* random) {
    size_t next = 0;
    std::tuple<std::conditional_t<is_a<P, Random>, const Random&, std::remove_cvref_t<P>>...> values{
        take<P>(arguments, random, next)...};  // braces: evaluated left to right
    if (next != arguments.size()) bad_argument(next, "no further argument");
    return std::apply([&](auto&&... v) { return pack(F(b, std::forward<decltype(v)>(v)...)); }, std::move(values));
  }
  static constexpr bool random = (is_a<P, Random> || ...);
  static constexpr uint64_t scalars = [] {
    uint64_t bits = 0, bit = 1;
    ((is_a<P, Random> ? 0 : (bits |= is_a<P, Scalar> ? bit : 0, bit <<= 1)), ...);
    return bits;
  }();
};

}  // namespace detail

struct Entry {
  Lowering lower;
  bool random;
  uint64_t scalars;
};
template <auto F>
constexpr Entry lower() {
  return {&detail::Lower<F>::run, detail::Lower<F>::random, detail::Lower<F>::scalars};
}

enum class Mark {
  None,
  Specialise,
  Fits,       // every Scalar must lie within the first output's dtype
  AlphaFits,  // the last one must, within the dtype of computation
};
constexpr Row row(std::string_view name, Entry entry, Mark mark = Mark::None) {
  uint64_t last = entry.scalars;
  while (last & (last - 1)) last &= last - 1;  // its highest bit
  uint64_t fits = mark == Mark::Fits ? entry.scalars : mark == Mark::AlphaFits ? last : 0;
  return {name, entry.lower, entry.random, mark == Mark::Specialise, entry.scalars, fits, mark == Mark::AlphaFits};
}

// An op that PyTorch does not have: the device registers it with this schema, as torch.ops.flambeau.NAME.
constexpr Row own_row(std::string_view name, Entry entry, std::string_view schema) {
  Row own = row(name, entry);
  own.schema = schema;
  return own;
}

}  // namespace flambeau::ops
