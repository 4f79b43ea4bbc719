// What lies in a device's memory while a compiled step runs: the compiler's buffers under the model's own names.
//
// Exact: sizes, and when which buffer is in use, as the compiler laid them out. Told from the program's structure: what a
// buffer that is no argument holds (saved activations, gradients, ...).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiled/analysis.h"
#include "compiled/buffers.h"
#include "plan/loop_roles.h"
#include "plan/report/report.h"

namespace flambeau::plan {

// What a parameter of the program is.
struct Argument {
  MemoryKind kind = MemoryKind::Batch;  // Parameters, OptimizerStates or Batch
  std::string name;                     // "layers.*.attention.wo.weight", "layers.*.attention.wo.weight, exp_avg", "tokens"
};

struct CompiledStep {
  const compiled::Module& module;
  const compiled::Analysis& analysis;
  const LoopRoles& roles;
  const compiled::Buffers& buffers;
  const std::vector<Argument>& arguments;  // by parameter number
};

// The kinds sum to the total exactly: each byte in use at the peak belongs to one buffer, and what no buffer fills, in tiles
// or between buffers, is padding. `limit`: what a program may use; 0 where that is not known.
Memory memory_of(const CompiledStep& step, int64_t limit);

}  // namespace flambeau::plan
