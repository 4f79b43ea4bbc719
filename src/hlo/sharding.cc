#include "hlo/sharding.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/error.h"

namespace flambeau::hlo {
namespace {

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + quoted(name);
  return text;
}

size_t axis_index(const Mesh& mesh, std::string_view name) {
  auto at = std::find_if(mesh.axes.begin(), mesh.axes.end(), [&](const MeshAxis& a) { return a.name == name; });
  return static_cast<size_t>(at - mesh.axes.begin());
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7f || c == '"' || c == '\\')
      out += fmt::format("\\{:02X}", c);
    else
      out += static_cast<char>(c);
  }
  return out + '"';
}

int64_t Mesh::size() const {
  int64_t size = 1;
  for (const MeshAxis& axis : axes) size *= axis.size;
  return size;
}

std::string Sharding::to_string() const {
  std::string text = "<@mesh, [";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i ? ", {" : "{") + quoted_list(dims[i].axes);
    if (dims[i].open) text += dims[i].axes.empty() ? "?" : ", ?";
    text += '}';
  }
  text += ']';
  if (!replicated.empty()) text += ", replicated={" + quoted_list(replicated) + "}";
  return text + '>';
}

std::string sharding_fault(const Sharding& sharding, const std::optional<Mesh>& mesh, int64_t rank) {
  if (!mesh) return "expected a graph with a mesh, got one without; call set_mesh first";
  if (static_cast<int64_t>(sharding.dims.size()) != rank)
    return fmt::format("expected a sharding of {} dimensions, got {}", rank, sharding.to_string());
  std::set<std::string_view> seen;
  auto fault_of = [&](const std::vector<std::string>& axes) -> std::string {
    for (const std::string& axis : axes) {
      if (axis_index(*mesh, axis) == mesh->axes.size())
        return fmt::format("expected axes of the mesh, got {} in {}", quoted(axis), sharding.to_string());
      if (!seen.insert(axis).second)
        return fmt::format("expected each axis at most once, got {} twice in {}", quoted(axis), sharding.to_string());
    }
    return {};
  };
  for (const Sharding::Dim& dim : sharding.dims)
    if (std::string fault = fault_of(dim.axes); !fault.empty()) return fault;
  return fault_of(sharding.replicated);
}

std::vector<std::string> in_mesh_order(std::vector<std::string> axes, const Mesh& mesh) {
  std::sort(axes.begin(), axes.end(),
            [&](const std::string& a, const std::string& b) { return axis_index(mesh, a) < axis_index(mesh, b); });
  return axes;
}

Sharding in_mesh_order(Sharding sharding, const Mesh& mesh) {
  sharding.replicated = in_mesh_order(std::move(sharding.replicated), mesh);
  return sharding;
}

int64_t axis_size(const Mesh& mesh, std::string_view axis) {
  const size_t i = axis_index(mesh, axis);
  FLAMBEAU_CHECK(i < mesh.axes.size(), "shardings are checked against the mesh first");
  return mesh.axes[i].size;
}

int64_t axes_size(const Mesh& mesh, std::span<const std::string> axes) {
  int64_t size = 1;
  for (const std::string& axis : axes) size *= axis_size(mesh, axis);
  return size;
}

int64_t index_along(const Mesh& mesh, std::span<const std::string> axes, int64_t position) {
  int64_t index = 0;
  for (const std::string& axis : axes) {
    int64_t inner = 1;
    for (size_t i = axis_index(mesh, axis) + 1; i < mesh.axes.size(); ++i) inner *= mesh.axes[i].size;
    index = index * axis_size(mesh, axis) + position / inner % axis_size(mesh, axis);
  }
  return index;
}

}  // namespace flambeau::hlo
