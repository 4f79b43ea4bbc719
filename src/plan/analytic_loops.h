// The loops of a recorded program: how often they run, and what they are there for.
#pragma once

#include <unordered_map>

#include "hlo/compiled/analysis.h"
#include "hlo/graph.h"

namespace flambeau::plan {

// Of a loop that for_loop built, whose condition is index < constant. 1 for others.
double trips_of(const hlo::Node& loop);

// Told by the sites of a loop's nodes, as the reader of compiled programs tells it by their names (hlo/compiled/roles.h).
class LoopRoles {
 public:
  explicit LoopRoles(const hlo::Graph& graph) { visit(graph.body(), hlo::compiled::LoopRole::Other); }

  // Of a loop inside of the layers or the loss, theirs.
  hlo::compiled::LoopRole of(const hlo::Node& loop) const { return roles_.at(&loop); }

 private:
  void visit(const hlo::Block& block, hlo::compiled::LoopRole around);

  std::unordered_map<const hlo::Node*, hlo::compiled::LoopRole> roles_;
};

}  // namespace flambeau::plan
