// What is asked of meshes and shardings: by the builder, the printer, and who lays values out.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/graph.h"

namespace flambeau::hlo {

std::string quoted(std::string_view text);  // as MLIR: "..." with \22 for a quote

// What is wrong with a sharding of `rank` dimensions over a mesh, as "expected X, got Y"; empty when nothing is.
std::string sharding_fault(const Sharding& sharding, const std::optional<Mesh>& mesh, int64_t rank);

// The same sharding with the replicated axes in the mesh's order, as Shardy asks for.
Sharding in_mesh_order(Sharding sharding, const Mesh& mesh);
std::vector<std::string> in_mesh_order(std::vector<std::string> axes, const Mesh& mesh);

// The size of a mesh axis, and of several together; they must exist.
int64_t axis_size(const Mesh& mesh, std::string_view axis);
int64_t axes_size(const Mesh& mesh, std::span<const std::string> axes);
// Where the device at `position` of the mesh (row-major over its axes) stands along `axes`, the first of which is the major one.
int64_t index_along(const Mesh& mesh, std::span<const std::string> axes, int64_t position);

}  // namespace flambeau::hlo
