// Where Flambeau's errors become PyTorch's.
//
// What the user reads is the message, then which op was called with what, and from where:
//   The size of tensor a (3) must match ... [aten::add.Tensor(self: float32[3, 4], other: float32[4, 3], alpha: 1) at train.py:12]
// All of it is put together when something is raised, so that a call that works pays nothing.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include "base/error.h"

namespace flambeau::device {

// The user's line of Python that the calling thread is at ("train.py:12"); empty without one. The Python module gives it.
using LineSource = std::string (*)();
void set_line_source(LineSource source);

// That line, or in a backward pass the node of autograd that runs. Begins with " at " or " in "; empty where nothing is known.
std::string user_line();

// How a warning reaches the user; the Python module gives Python's way.
using Warner = void (*)(const std::string& text);
void set_warner(Warner warner);
void warn(const std::string& text);

// An op with its arguments, of which there are as many as its schema has: "aten::relu(self: float32[3])".
std::string describe(const c10::OperatorHandle& op, const c10::IValue* arguments);

// The tensors among a call's arguments, which are null where they are none: "float32[3], int64[]".
std::string tensors_text(std::initializer_list<const at::Tensor*> tensors);

// Throws the c10::Error of PyTorch's class for `error`: Python's NotImplementedError, IndexError, ValueError or RuntimeError.
[[noreturn]] void throw_as_torch(const Error& error, const std::string& call);

// Calls f; `call()` describes the op when f raises.
template <class F, class Call>
decltype(auto) at_the_edge(F&& f, Call&& call) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    throw_as_torch(error, call());
  }
}

}  // namespace flambeau::device
