#include "compiled/axes.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>

namespace flambeau::compiled {
namespace {

class Grid {
 public:
  explicit Grid(const MeshAxes& mesh) : strides_(mesh.size(), 1), mesh_(mesh) {
    for (size_t i = mesh.size(); i-- > 0;) {
      strides_[i] = devices_;
      devices_ *= std::max<int64_t>(mesh[i].size, 1);
    }
  }

  int64_t devices() const { return devices_; }
  bool holds(int64_t device) const { return device >= 0 && device < devices_; }
  int64_t coordinate(int64_t device, size_t axis) const { return device / strides_[axis] % mesh_[axis].size; }

  // Adds the axes along which two devices differ.
  void add_differences(int64_t a, int64_t b, std::set<size_t>& axes) const {
    for (size_t axis = 0; axis < mesh_.size(); ++axis) {
      if (mesh_[axis].size > 1 && coordinate(a, axis) != coordinate(b, axis)) axes.insert(axis);
    }
  }

  // The device's place along all axes but these.
  int64_t without(int64_t device, const std::set<size_t>& axes) const {
    for (const size_t axis : axes) device -= coordinate(device, axis) * strides_[axis];
    return device;
  }

 private:
  std::vector<int64_t> strides_;
  const MeshAxes& mesh_;
  int64_t devices_ = 1;
};

std::set<size_t> axes_of_pairs(const Grid& grid, const SourceTargetPairs& pairs) {
  std::set<size_t> axes;
  for (const auto& [source, target] : pairs) {
    if (!grid.holds(source) || !grid.holds(target)) return {};
    grid.add_differences(source, target, axes);
  }
  return axes;
}

// Every group must be all devices along the axes in which its members differ, and these the same for all groups.
std::set<size_t> axes_of_groups(const Grid& grid, const std::vector<int64_t>& devices, size_t size, const MeshAxes& mesh) {
  std::set<size_t> axes;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!grid.holds(devices[i])) return {};
    grid.add_differences(devices[i / size * size], devices[i], axes);
  }
  size_t expected = 1;
  for (const size_t axis : axes) expected *= static_cast<size_t>(mesh[axis].size);
  if (expected != size) return {};
  for (size_t group = 0; group < devices.size(); group += size) {
    const std::set<int64_t> members(devices.begin() + static_cast<int64_t>(group),
                                    devices.begin() + static_cast<int64_t>(group + size));
    if (members.size() != size) return {};
    for (const int64_t member : members) {
      if (grid.without(member, axes) != grid.without(devices[group], axes)) return {};
    }
  }
  return axes;
}

}  // namespace

std::vector<size_t> axes_of(const Collective& collective, const MeshAxes& mesh) {
  const Grid grid(mesh);
  std::set<size_t> axes;
  if (!collective.source_target_pairs.empty()) {
    axes = axes_of_pairs(grid, collective.source_target_pairs);
  } else if (collective.groups.count == 0) {  // all devices
    if (collective.group_size == 0 || collective.group_size == grid.devices())
      grid.add_differences(0, grid.devices() - 1, axes);
  } else if (const auto devices = collective.groups.devices(); devices && collective.groups.size > 0) {
    axes = axes_of_groups(grid, *devices, static_cast<size_t>(collective.groups.size), mesh);
  }
  return {axes.begin(), axes.end()};
}

std::string axes_name(const std::vector<size_t>& axes, const MeshAxes& mesh) {
  std::vector<std::string> names;
  for (const size_t axis : axes) names.push_back(mesh[axis].name);
  return names.empty() ? "?" : fmt::format("{}", fmt::join(names, " x "));
}

}  // namespace flambeau::compiled
