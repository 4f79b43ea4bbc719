// A computation as it runs at one place of a program. Internal to src/compiled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "compiled/module.h"

namespace flambeau::compiled {

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

inline int index_in(const Computation& computation, const Instruction& i) {
  return static_cast<int>(&i - computation.instructions.data());
}

inline bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What has the value of its first operand, if in another place or type.
inline bool hands_on(std::string_view opcode) {
  return is_one_of(opcode, {"copy", "bitcast", "reshape", "convert", "optimization-barrier", "transpose"});
}

// How often the body of `loop`, a while in `outer`, runs: from its condition's comparison, the initial value and the step.
// None where they are not constants.
std::optional<int64_t> trip_count(const Module& module, const Scope& outer, const Instruction& loop);

// TPU's compiler starts what another core does, a collective above all, without operands; the first update brings them and so
// begins the work.
bool awaits_operands(const Instruction& instruction);
bool brings_operands(const Scope& scope, const Instruction& instruction);  // to its first operand, which awaited them

// What a step of a schedule moves between the chip and its large memory.
struct Traffic {
  double read = 0, written = 0;
};

// Of an instruction in `scope` that no fusion holds. What only renames memory (tuples, bitcasts, a loop's state) moves
// nothing, nor does the part of an array that a slice leaves out or an update in place leaves alone.
Traffic traffic(const Module& module, const Scope& scope, const Instruction& instruction);

// A collective inside of a fusion that goes on with what another fusion began.
bool continues_collective(const Instruction& instruction);

// collective_of, but for the end of an asynchronous one, which is empty.
std::string_view collective_kind(std::string_view opcode);

// What runs the computations that it calls as a part of itself; others (reduce, sort, ...) apply theirs to single elements.
bool runs_callees(std::string_view opcode);

// Multiply-adds times two of a dot or convolution, or of a kernel that tells; 0 for others. InvalidArgument where its
// dimensions are impossible.
double contraction_flops(const Scope& scope, const Instruction& instruction);

}  // namespace flambeau::compiled
