// What the loops of a training step are there for. Internal to src/hlo/compiled.
#pragma once

#include <vector>

#include "hlo/compiled/analysis.h"

namespace flambeau::hlo::compiled {

struct LoopSite {
  const Computation* outer = nullptr;
  const Instruction* loop = nullptr;  // of `outer`
};

// Sets the roles of the analysis's loops, which stand at `sites`, and its saved_activations.
//
// The names that operations came with tell most: "layers/attention/qkv", "backward/layers/...", "loss/...". Without names, a
// loop that stacks values turn by turn and one that takes them off again are the layers, forward and backward.
void assign_roles(const Module& module, const std::vector<LoopSite>& sites, Analysis& analysis);

}  // namespace flambeau::hlo::compiled
