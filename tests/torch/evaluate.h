// Calls of ops, run by PyTorch's dispatcher: on the CPU, and on the device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace flambeau::op_test {

struct Call {
  c10::OperatorHandle op;              // of any form: functional, in place, out
  std::vector<c10::IValue> arguments;  // all of the schema's, on the CPU; the call works on copies with the same strides
  bool numbers_known = true;           // numbers of the program, or parameters of it
  std::vector<size_t> on_host = {};    // arguments that stay on the CPU, for the device too
};

struct Outcome {
  bool raised = false;
  std::string kind;   // Python's exception
  std::string error;  // its first line
  std::vector<at::Tensor> outputs;  // on the CPU; a list counts as its tensors; undefined where an op gives none
};

// `exactly`: float16 and bfloat16 tensors are given in double precision.
Outcome on_cpu(const Call& call, bool exactly = false);
// One program for all calls, which are expected to succeed.
std::vector<Outcome> on_device(std::span<const Call> calls);
// As eager mode runs it, with data-dependent checks raised by the call. What the device lacks runs on the CPU if it `may_fall_back`, or is a
// NotImplementedError.
Outcome on_device_at_once(const Call& call, bool may_fall_back = false);

// The in-place and out forms of an op that have a kernel for the device.
std::vector<c10::OperatorHandle> forms_of(const c10::OperatorHandle& functional);

bool is_narrow(const at::Tensor& t);  // float16 or bfloat16
// Arguments that say where and how a tensor lies, not what is in it: layout, device, pin_memory, memory_format, generator.
bool says_where(const c10::Argument& argument);

}  // namespace flambeau::op_test
