// What a collective is: its kind, who takes part, how many bytes. Internal to src/compiled.
#pragma once

#include "compiled/analysis.h"
#include "compiled/scope.h"

namespace flambeau::compiled {

// Of an instruction whose opcode has a collective_kind. Where it stands (loop, begin, end, op_name) is left to the caller.
Collective collective_at(const Scope& scope, const Instruction& instruction, int64_t device_count);

// The same of a transfer between slices, which begins with this "send"; and the "recv" that ends with it, an index into the
// computation's instructions, -1 where there is none.
Collective transfer_at(const Scope& scope, const Instruction& send, int64_t device_count);
int receiver_of(const Computation& computation, const Instruction& send);

// Whether TPU's compiler begins the collective here and lets it go on within what runs next, which may be a loop: the fusions
// there, and the one that waits for its end, hold the same instruction again.
bool begins_and_goes_on(const Computation& computation, const Instruction& collective);

}  // namespace flambeau::compiled
