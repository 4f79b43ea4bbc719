// Our side of the comparison: calls of ops, evaluated by Flambeau.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace flambeau::op_test {

struct Call {
  c10::OperatorHandle op;
  std::string row;                     // "aten::add.Tensor"
  std::vector<c10::IValue> arguments;  // all of the schema's
  bool numbers_known = true;           // Scalars: constants of the program, or parameters
};

struct Outcome {
  bool raised = false;
  std::string error;
  std::vector<at::Tensor> outputs;  // on the CPU; a list counts as its tensors; undefined where an op gives none
};

// Arguments that say where and how a tensor lies, not what is in it: layout, device, pin_memory, memory_format, generator.
bool says_where(const c10::Argument& argument);

// All calls go into one program.
std::vector<Outcome> evaluate(std::span<const Call> calls);

}  // namespace flambeau::op_test
