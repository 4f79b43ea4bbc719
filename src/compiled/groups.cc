// Who talks to whom in a collective: the forms in which a module says its groups.
#include <algorithm>
#include <utility>

#include "compiled/fields.h"

namespace flambeau::compiled {
namespace {

constexpr int64_t kMostDevices = int64_t{1} << 22;

// MeshProto {1 axis {1 name, 2 size}, 2 device ids}
struct Mesh {
  std::vector<int64_t> sizes, ids;
};

Mesh parse_mesh(std::string_view message) {
  Mesh mesh;
  for_each_field(message, "MeshProto", [&](const ProtoReader& field) {
    if (field.field() == 2) take_integers(field, mesh.ids);
    if (field.field() != 1) return;
    int64_t size = 0;
    for_each_field(field.bytes(), "MeshAxis", [&](const ProtoReader& axis) {
      if (axis.field() == 2) size = static_cast<int64_t>(axis.integer());
    });
    if (size < 1) raise<InvalidArgument>("[compiled.parse] expected axes of at least one device, got {}", size);
    mesh.sizes.push_back(size);
  });
  return mesh;
}

// AxisRefProto {1 index into the mesh, 2 part {1 size before it, 2 size}}: an axis, or a part of it, which lies between what
// comes before and after it.
struct AxisRef {
  uint64_t index = 0;
  int64_t before = 1, size = 0;  // size 0: all of it
};

AxisRef parse_axis_ref(std::string_view message) {
  AxisRef axis;
  for_each_field(message, "AxisRefProto", [&](const ProtoReader& field) {
    if (field.field() == 1) axis.index = field.integer();
    if (field.field() != 2) return;
    for_each_field(field.bytes(), "SubAxis", [&](const ProtoReader& sub) {
      if (sub.field() == 1) axis.before = static_cast<int64_t>(sub.integer());
      if (sub.field() == 2) axis.size = static_cast<int64_t>(sub.integer());
    });
  });
  return axis;
}

// The mesh's axes, each cut into up to three pieces so that every reference is one piece; those that are referred to.
struct Pieces {
  std::vector<int64_t> dims;
  std::vector<int64_t> group;  // indices of dims
};

Pieces cut(const Mesh& mesh, const std::vector<AxisRef>& axes) {
  Pieces pieces;
  for (size_t index = 0; index < mesh.sizes.size(); ++index) {
    std::vector<AxisRef> here;
    for (const AxisRef& axis : axes) {
      if (axis.index == index) here.push_back(axis);
    }
    std::sort(here.begin(), here.end(), [](const AxisRef& a, const AxisRef& b) { return a.before < b.before; });
    int64_t done = 1;  // the product of the pieces so far
    for (AxisRef& axis : here) {
      if (axis.size == 0) axis.size = mesh.sizes[index];
      if (axis.size < 1 || axis.before < done || axis.before % done != 0)
        raise<InvalidArgument>("[compiled.parse] expected parts of an axis of {}, got {} after {}", mesh.sizes[index], axis.size,
                               axis.before);
      pieces.dims.push_back(axis.before / done);
      pieces.group.push_back(static_cast<int64_t>(pieces.dims.size()));
      pieces.dims.push_back(axis.size);
      done = checked_product(axis.before, axis.size);
    }
    if (mesh.sizes[index] % done != 0)
      raise<InvalidArgument>("[compiled.parse] expected parts of an axis of {}, got {}", mesh.sizes[index], done);
    pieces.dims.push_back(mesh.sizes[index] / done);
  }
  return pieces;
}

}  // namespace

void add_replica_group(std::string_view message, ReplicaGroups& groups) {
  const size_t before = groups.ids.size();
  for_each_field(message, "ReplicaGroup", [&](const ProtoReader& field) {
    if (field.field() == 1) take_integers(field, groups.ids);
  });
  ++groups.count;
  groups.size = std::max(groups.size, static_cast<int64_t>(groups.ids.size() - before));
}

// {1 groups, 2 devices a group, 3 dimensions, 4 their order}
ReplicaGroups parse_iota_replica_groups(std::string_view message) {
  ReplicaGroups groups;
  for_each_field(message, "IotaReplicaGroupListProto", [&](const ProtoReader& field) {
    if (field.field() == 1) groups.count = static_cast<int64_t>(field.integer());
    if (field.field() == 2) groups.size = static_cast<int64_t>(field.integer());
    if (field.field() == 3) take_integers(field, groups.dims);
    if (field.field() == 4) take_integers(field, groups.order);
  });
  return groups;
}

ReplicaGroups parse_collective_device_list(std::string_view message) {
  ReplicaGroups groups;
  for_each_field(message, "CollectiveDeviceListProto", [&](const ProtoReader& field) {
    if (field.field() == 1) add_replica_group(field.bytes(), groups);
    if (field.field() == 2) groups = parse_iota_replica_groups(field.bytes());
  });
  return groups;
}

// {1 mesh, 2 axis}: the devices that differ in these axes alone are a group.
ReplicaGroups parse_mesh_axes_replica_groups(std::string_view message) {
  const Mesh mesh = parse_mesh(proto_field(message, 1));
  std::vector<AxisRef> axes;
  for_each_field(message, "MeshAxesReplicaGroupListProto", [&](const ProtoReader& field) {
    if (field.field() != 2) return;
    axes.push_back(parse_axis_ref(field.bytes()));
    if (axes.back().index >= mesh.sizes.size() || axes.back().size < 0)
      raise<InvalidArgument>("[compiled.parse] expected an axis of the mesh, got {}", axes.back().index);
  });
  const Pieces pieces = cut(mesh, axes);
  ReplicaGroups groups{.count = 1, .size = 1, .dims = pieces.dims, .order = {}, .ids = mesh.ids};
  auto in_group = [&](int64_t piece) {
    return std::find(pieces.group.begin(), pieces.group.end(), piece) != pieces.group.end();
  };
  for (int64_t piece = 0; piece < static_cast<int64_t>(pieces.dims.size()); ++piece) {
    int64_t& product = in_group(piece) ? groups.size : groups.count;
    product = checked_product(product, pieces.dims[static_cast<size_t>(piece)]);
    if (!in_group(piece)) groups.order.push_back(piece);
  }
  checked_product(groups.count, groups.size);
  groups.order.insert(groups.order.end(), pieces.group.begin(), pieces.group.end());
  return groups;
}

std::optional<std::vector<int64_t>> ReplicaGroups::devices() const {
  if (count > kMostDevices || size > kMostDevices) return std::nullopt;
  const int64_t total = count * size;
  if (dims.empty()) return total == static_cast<int64_t>(ids.size()) ? std::optional(ids) : std::nullopt;
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.size() != dims.size() || (!ids.empty() && static_cast<int64_t>(ids.size()) != total)) return std::nullopt;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<int64_t>(i)) return std::nullopt;
  }
  std::vector<int64_t> strides(dims.size());
  int64_t product = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = product;
    if (dims[i] < 1 || dims[i] > kMostDevices / product) return std::nullopt;
    product *= dims[i];
  }
  if (product != total) return std::nullopt;

  std::vector<int64_t> devices = {0};
  for (const int64_t dim : order) {
    const auto [length, stride] = std::pair(dims[static_cast<size_t>(dim)], strides[static_cast<size_t>(dim)]);
    std::vector<int64_t> next;
    for (const int64_t device : devices) {
      for (int64_t i = 0; i < length; ++i) next.push_back(device + i * stride);
    }
    devices = std::move(next);
  }
  if (!ids.empty()) {
    for (int64_t& device : devices) device = ids[static_cast<size_t>(device)];
  }
  return devices;
}

}  // namespace flambeau::compiled
