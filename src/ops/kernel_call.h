// Calls of kernels: a text says what is called, with which operands, and what the results are (src/kernels gives such texts).
//
//   {"target": "tpu_custom_call", "config": "..."       a Mosaic module, which the program carries
//    or "target": "flambeau.NAME", "attributes": {...}   a handler of this process, by XLA's FFI
//    "operands": [{"input": "query", "shape": [2, 8, 256], "type": "bf16", "dims": [0, 1, 2]}, ...],
//    "results": [{"shape": [...], "type": "f32", "name": "output"}, ...]}
//
// An operand is an input by name, or a constant ({"shape": ..., "values": [...]}, 0, 1, 2, ... without values), whose dimension i becomes
// dimension dims[i] of `shape`. An input of one row may leave its first dimension, of size 1, out. Results that are used have names.
// Whatever stands there, types are checked; the kernel itself is opaque, and so is it to the partitioner: on a mesh a call must be within
// a manual computation.
#pragma once

#include <map>
#include <string>

#include "ops/op.h"

namespace flambeau::ops {

using NamedValues = std::map<std::string, Value, std::less<>>;

// The results that have names. InvalidArgument for a text that describes no call of these inputs.
NamedValues call_kernel(Builder& b, const std::string& text, const NamedValues& inputs);
// A result of `type`, from one that may lack a first dimension of size 1.
Value kernel_result(Builder& b, const NamedValues& results, std::string_view name, const hlo::Type& type);

// Rows whose lowering calls a kernel that an argument describes. They are no part of the table: not every target runs them, and rows of the
// table compute the same.
std::span<const Row> kernel_rows();

}  // namespace flambeau::ops
