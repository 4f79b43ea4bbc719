// Lowering one call: its arguments as values of a graph, and the types of its results.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/arguments.h"
#include "runtime/array.h"

namespace flambeau::runtime {

// Gives the values of what a call names.
class ArgumentScope {
 public:
  virtual ~ArgumentScope() = default;
  virtual hlo::Value view(hlo::Builder& b, const ValueView& v) = 0;
  virtual hlo::Value parameter(hlo::Builder& b, const ops::Number& number) = 0;
};

std::vector<ops::Argument> lower_arguments(hlo::Builder& b, std::span<const Recorded> recorded, ArgumentScope& scope);

// What result_types() remembers a call's types by; also a part of programs' keys. `mesh`: that the call is lowered for; may be null.
Key signature(const ops::Row& row, std::span<const Recorded> arguments, const DeviceMesh* mesh);
// The types of a call's results (none: the op does not give it), by lowering it into a graph that is thrown away. Remembered for the
// whole process: a warm call runs no lowering.
std::vector<std::optional<Type>> result_types(const Key& signature, const ops::Row& row, std::span<const Recorded> arguments,
                                              const DeviceMesh* mesh);

}  // namespace flambeau::runtime
