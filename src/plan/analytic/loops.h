// The loops of a recorded program: how often they run, and what they are there for.
#pragma once

#include <unordered_map>

#include "hlo/graph.h"
#include "plan/loop_roles.h"

namespace flambeau::plan {

// Of a loop that for_loop built, whose condition is index < constant. 1 for others.
double trips_of(const hlo::Node& loop);

// Told by the sites of a loop's nodes, as those of a compiled step are by their names.
class RecordedRoles {
 public:
  explicit RecordedRoles(const hlo::Graph& graph) { visit(graph.body(), LoopRole::Other); }

  // Of a loop inside of the layers or the loss, theirs.
  LoopRole of(const hlo::Node& loop) const { return roles_.at(&loop); }

 private:
  void visit(const hlo::Block& block, LoopRole around);

  std::unordered_map<const hlo::Node*, LoopRole> roles_;
};

}  // namespace flambeau::plan
