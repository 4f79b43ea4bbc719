// What the loops of a training step are to the model: its layers, forward and backward, the loss, the accumulation of gradients.
//
// Programs carry the names of what recorded their operations ("backward/layers/attention/wo", "loss/..."), as sites before
// compilation and as metadata after it. Names tell most; what a compiler left without names is told by structure.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compiled/analysis.h"

namespace flambeau::plan {

enum class LoopRole { Other, LayersForward, LayersBackward, Loss, Accumulation };

// Where of the step such a loop stands, for people: "layers, forward", "accumulation", "outside of the layers".
std::string_view place_of(LoopRole role);

inline bool is_layers(LoopRole role) { return role == LoopRole::LayersForward || role == LoopRole::LayersBackward; }

// What the names of a loop's operations say of it.
class RoleVotes {
 public:
  void add(std::string_view op_name);
  // That most speak of. A backward loop of checkpointed layers repeats forward operations under their own names: a fifth of
  // backward ones makes it backward.
  LoopRole role() const;

 private:
  std::array<size_t, 5> votes_{};
};

// Of a compiled step, by the index of a loop in its analysis.
struct LoopRoles {
  std::vector<LoopRole> innermost;  // of the innermost loop around with a role, itself among them
  // Values that a forward loop of the layers stacks up, a row an iteration, and a backward one reads, by all the names that they
  // have (compiled::value_name).
  std::set<std::string> saved_activations;

  // -1: outside of all loops.
  LoopRole of(int loop) const { return loop < 0 ? LoopRole::Other : innermost.at(static_cast<size_t>(loop)); }
};

LoopRoles loop_roles(const compiled::Module& module, const compiled::Analysis& analysis);

}  // namespace flambeau::plan
