// The local rules of simplify().
#pragma once

#include <string_view>

#include "hlo/graph.h"

namespace flambeau::hlo {

// Simplifies one node whose operands are simplified already. It may change the node in place (never its results' types), to
// use values that its operands are made of. A value means: the node's only result is this one, the node is not needed.
Value rewrite(Graph& graph, Node& node);

// An attribute that the builder always gives.
template <class T>
const T& attribute(const Node& node, std::string_view name) {
  return std::get<T>(*node.find(name));
}

}  // namespace flambeau::hlo
