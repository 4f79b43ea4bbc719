// Values that one loop of a program stacks up, a row an iteration, and another takes rows of: how a backward loop gets at what a
// forward loop saved for it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compiled/analysis.h"

namespace flambeau::compiled {

struct Stack {
  int writer = -1, reader = -1;  // indices into Analysis::loops
  std::set<std::string> names;   // all that its memory goes by (value_name), in the loops' states and between them
};

// By reader, in the order of the analysis's loops.
std::vector<Stack> find_stacks(const Module& module, const Analysis& analysis);

}  // namespace flambeau::compiled
