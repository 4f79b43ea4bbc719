// What the loops of a training step are there for.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "hlo/compiled/analysis.h"

namespace flambeau::hlo::compiled {

// What the names of a loop's operations, or their sites, say of it: "backward/layers/attention/qkv", "loss/...".
class RoleVotes {
 public:
  void add(std::string_view op_name);
  // That most speak of. A backward loop of checkpointed layers repeats forward operations under their own names: a fifth of
  // backward ones makes it backward.
  LoopRole role() const;

 private:
  std::array<size_t, 5> votes_{};
};

struct LoopSite {
  const Computation* outer = nullptr;
  const Instruction* loop = nullptr;  // of `outer`
};

// Sets the roles of the analysis's loops, which stand at `sites`, and its saved_activations.
//
// The names that operations came with tell most. Without names, a loop that stacks values turn by turn and one that takes
// them off again are the layers, forward and backward.
void assign_roles(const Module& module, const std::vector<LoopSite>& sites, Analysis& analysis);

}  // namespace flambeau::hlo::compiled
