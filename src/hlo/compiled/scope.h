// A computation as it runs at one place of a program. Internal to src/hlo/compiled.
#pragma once

#include "hlo/compiled/module.h"

namespace flambeau::hlo::compiled {

// `call` of `caller` runs `computation`: a fusion or call gives its operands to the parameters, a while its state.
// Scopes live on the stack of who walks down.
struct Scope {
  const Computation& computation;
  const Scope* caller = nullptr;  // none: the entry
  const Instruction* call = nullptr;

  const Instruction& at(int index) const { return computation.instructions[static_cast<size_t>(index)]; }
};

inline const Computation& callee(const Module& module, const Instruction& call, size_t which = 0) {
  return module.computations[static_cast<size_t>(call.called[which])];
}

// How often the body of `loop`, a while in `outer`, runs: from its condition's comparison, the initial value and the step.
// None where they are not constants.
std::optional<int64_t> trip_count(const Module& module, const Scope& outer, const Instruction& loop);

// Multiply-adds times two of a dot or convolution; 0 for others. InvalidArgument where its dimensions are impossible.
double contraction_flops(const Scope& scope, const Instruction& instruction);

}  // namespace flambeau::hlo::compiled
