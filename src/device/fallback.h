// Ops that the device does not have run on the CPU: arguments are copied there, results and what was written come back.
//
// Autograd lies above, so gradients of such an op work as on the CPU. What copies would make silently wrong is refused: ops whose results
// look at their arguments' elements, and calls within a captured step, whose values do not exist yet.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace flambeau::device {

enum class FallbackMode {
  Warn,    // once for each op
  Silent,
  Error,   // NotImplementedError
};
void set_fallback(FallbackMode mode);
FallbackMode fallback_mode();
// How often each op has run on the CPU, by its name: "aten::histc".
std::map<std::string, int64_t> fallbacks();

// Runs `op` on the CPU. `why` says what the device lacks: "it is not implemented ...".
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::string& why);

}  // namespace flambeau::device
