// From a trace to a graph: runs the lowerings of the calls that the wanted outputs need.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/check.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

// The parameters of the graph are, in this order: the externals that have elements; the float numbers as one F64 vector; the
// integer numbers as one S64 vector; (seed, offset) as one U64 vector for random ops. Its results are the wanted values
// that have elements, then one Pred vector when there are checks: true where a check failed.
struct Lowered {
  std::unique_ptr<hlo::Graph> graph;
  std::vector<size_t> externals;  // of the trace, by parameter
  bool floats = false, integers = false, random = false;
  std::vector<ops::CheckError> checks;  // in the order of the flags
};

// `aliases`: (external of the trace, index into `outputs`) pairs that share a buffer. `shardings`: of each output, where the trace is for
// a mesh.
Lowered lower(const Trace& trace, std::span<const ValueId> outputs, std::span<const std::pair<size_t, size_t>> aliases,
              std::span<const hlo::Sharding> shardings = {});

}  // namespace flambeau::runtime
