// The arguments of PyTorch's dispatcher as arguments of the runtime's calls.
#pragma once

#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "ops/op.h"
#include "runtime/arguments.h"

namespace flambeau::device {

// What the schema calls a value decides: an int may stand for a ScalarType, an empty list for a list of ints. Placement says where and how
// memory lies; lowerings do not see it.
enum class ArgumentKind { Placement, Tensor, Number, Int, Float, Bool, IntList, List, DType, String };

// Of each argument of a row's functional form.
std::vector<ArgumentKind> argument_kinds(const ops::Row& row, const c10::FunctionSchema& functional);

enum class Asked {
  Results,
  Shapes,  // alone: meta tensors, which have no elements, are arguments too
};

// Of any kind but Placement. Raises PyTorch's error for a tensor of another device.
runtime::CallArgument to_argument(ArgumentKind kind, const c10::IValue& value, Asked asked = Asked::Results);

}  // namespace flambeau::device
