// From a trace to a graph: runs the lowerings of the calls that the wanted outputs need.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/trace.h"

namespace flambeau::runtime {

// The parameters of the graph are, in this order: the externals that have elements; the float numbers as one F64 vector; the
// integer numbers as one S64 vector; (seed, offset) as one U64 vector for random ops. Its results are the wanted values
// that have elements, then one Pred vector when there are checks: true where a check failed.
struct Lowered {
  std::unique_ptr<hlo::Graph> graph;
  std::vector<size_t> externals;  // of the trace, by parameter
  bool floats = false, integers = false, random = false;
  std::vector<std::string> checks;  // messages, in the order of the flags
};

// How the values of a program lie on a mesh; without one, nowhere but on its device.
struct Layout {
  const hlo::Mesh* mesh = nullptr;
  std::span<const hlo::Sharding> outputs = {};  // with a mesh: of each output
};

// `aliases`: (external of the trace, index into `outputs`) pairs that share a buffer.
Lowered lower(const Trace& trace, std::span<const ValueId> outputs, std::span<const std::pair<size_t, size_t>> aliases,
              const Layout& layout = {});

// The result types of one call, by running its lowering in a graph that is thrown away.
std::vector<std::optional<Type>> lower_for_types(const ops::Row& row, std::span<const Recorded> arguments,
                                                 const hlo::Mesh* mesh = nullptr);

}  // namespace flambeau::runtime
