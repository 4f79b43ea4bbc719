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

// What a step of a schedule moves between the chip and its large memory.
struct Traffic {
  double read = 0, written = 0;
};

// Of an instruction in `scope` that no fusion holds. What only renames memory (tuples, bitcasts, a loop's state) moves
// nothing, nor does the part of an array that a slice leaves out or an update in place leaves alone.
Traffic traffic(const Module& module, const Scope& scope, const Instruction& instruction);

// A collective inside of a fusion that goes on with what another fusion began.
bool continues_collective(const Instruction& instruction);

// The kind of a collective's opcode (all-gather, ...); empty for what is none, and for the end of an asynchronous one.
std::string_view collective_kind(std::string_view opcode);

// What runs the computations that it calls as a part of itself; others (reduce, sort, ...) apply theirs to single elements.
bool runs_callees(std::string_view opcode);

// Multiply-adds times two of a dot or convolution, or of a kernel that tells; 0 for others. InvalidArgument where its
// dimensions are impossible.
double contraction_flops(const Scope& scope, const Instruction& instruction);

}  // namespace flambeau::hlo::compiled
