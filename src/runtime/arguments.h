// The arguments of op calls: as the caller gives them, over storages, and as a trace records them, over values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ops/op.h"
#include "runtime/key.h"
#include "runtime/storage.h"

namespace flambeau::runtime {

using ValueId = uint32_t;
using hlo::Dims;
using hlo::Type;

// ---- arguments as the caller gives them ----------------------------------------------------------------------------------

// A number among the arguments: a Scalar, a wrapped number, or what a 0-dim CPU tensor holds (dtype set).
struct NumberRef {
  ops::Number number;
  bool as_tensor = false;       // stands in a Tensor place
  std::optional<DType> dtype;   // of the CPU tensor; none: a wrapped number
  std::optional<uint32_t> input = {};  // captures: which of the numbers that each replay is given (doubles)
};
using CallArgument = std::variant<std::monostate, TensorRef, std::vector<std::optional<TensorRef>>, NumberRef, int64_t, double,
                                  bool, Dims, DType, std::string>;

// ---- arguments as they are recorded ----------------------------------------------------------------------------------------

struct ValueView {
  ValueId value;
  View view;
  DType dtype;
  bool whole;  // the value as it is: no view to take, no other type
};
struct RecordedNumber {
  ops::Number number;
  bool as_tensor;
  std::optional<DType> dtype;
  bool parameter;  // its value is an input of the program, not a part of it
  std::optional<uint32_t> input = {};  // captures: which of the numbers that a replay is given
};
using Recorded = std::variant<std::monostate, ValueView, std::vector<std::optional<ValueView>>, RecordedNumber, int64_t, double,
                              bool, Dims, DType, std::string>;

// The value as it is.
ValueView whole_value(ValueId id, const Type& type);

void hash_type(KeyHasher& h, const Type& type);
// What decides an op's result types: everything but which values the arguments are and how they lie in memory.
void hash_signature(KeyHasher& h, const Recorded& argument);
// The rest.
void hash_view(KeyHasher& h, const ValueView& v);
void hash_views(KeyHasher& h, const Recorded& argument);

// How they are shown in messages.
std::string to_string(const ops::Number& number);
std::string to_string(const Recorded& argument);

// A visitor of a variant made of lambdas.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace flambeau::runtime
