// Over which axes of a mesh a collective runs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "compiled/analysis.h"
#include "hlo/graph.h"

namespace flambeau::compiled {

using MeshAxes = std::vector<hlo::MeshAxis>;  // the major one first

// Indices of the axes, ascending, in which those who talk to each other differ. Empty where that is none, or where groups are
// not all devices along some axes of this mesh. Of a permutation: the axes along which something is sent.
std::vector<size_t> axes_of(const Collective& collective, const MeshAxes& mesh);

// "shard", "replicate x shard"; "?" for none.
std::string axes_name(const std::vector<size_t>& axes, const MeshAxes& mesh);

}  // namespace flambeau::compiled
