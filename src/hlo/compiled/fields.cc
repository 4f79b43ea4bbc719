#include "hlo/compiled/fields.h"

#include <numeric>

namespace flambeau::hlo::compiled {
namespace {

constexpr int kDeepestShape = 16;
constexpr int kTuple = 13;

struct PrimitiveType {
  std::string_view name;
  int bits;  // of an element; 0: has none
};

// By the numbers of xla.PrimitiveType.
constexpr PrimitiveType kTypes[] = {
    {"invalid", 0},    {"pred", 8},       {"s8", 8},       {"s16", 16},      {"s32", 32},   {"s64", 64},
    {"u8", 8},         {"u16", 16},       {"u32", 32},     {"u64", 64},      {"f16", 16},   {"f32", 32},
    {"f64", 64},       {"tuple", 0},      {"opaque", 0},   {"c64", 64},      {"bf16", 16},  {"token", 0},
    {"c128", 128},     {"f8e5m2", 8},     {"f8e4m3fn", 8}, {"s4", 4},        {"u4", 4},     {"f8e4m3b11fnuz", 8},
    {"f8e5m2fnuz", 8}, {"f8e4m3fnuz", 8}, {"s2", 2},       {"u2", 2},        {"f8e4m3", 8}, {"f8e3m4", 8},
    {"s1", 1},         {"u1", 1},         {"f4e2m1fn", 4}, {"f8e8m0fnu", 8},
};

int bits_of(std::string_view type) {
  for (const PrimitiveType& known : kTypes) {
    if (known.name == type) return known.bits;
  }
  return 0;
}

Shape parse_shape_at(std::string_view message, int depth) {
  if (depth > kDeepestShape) raise<InvalidArgument>("[hlo.parse] expected tuples at most {} deep", kDeepestShape);
  Shape shape;
  uint64_t type = 0;
  for_each_field(message, "ShapeProto", [&](const ProtoReader& field) {
    if (field.field() == 2) type = field.integer();
    if (field.field() == 3) take_integers(field, shape.dims);
    if (field.field() == 4) shape.parts.push_back(parse_shape_at(field.bytes(), depth + 1));
  });
  shape.type = type < std::size(kTypes) ? kTypes[type].name : "unknown";
  if (type != kTuple) shape.parts.clear();
  int64_t elements = 1;
  for (const int64_t dim : shape.dims) {
    if (dim < 0) raise<InvalidArgument>("[hlo.parse] expected dimensions of at least 0, got {}", dim);
    elements = checked_product(elements, dim);
  }
  checked_product(elements, 16);  // bytes of the largest type
  return shape;
}

}  // namespace

int64_t checked_product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product >= int64_t{1} << 62)
    raise<InvalidArgument>("[hlo.parse] expected sizes that fit 62 bits, got {} x {}", a, b);
  return product;
}

int64_t Shape::elements() const {
  if (bits_of(type) == 0) return 0;
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

int64_t Shape::bytes() const {
  // Sums of parts wrap rather than overflow: 2^30 parts of the largest size are no program.
  uint64_t total = 0;
  for (const Shape& part : parts) total += static_cast<uint64_t>(part.bytes());
  const int bits = bits_of(type);
  if (bits >= 8) total += static_cast<uint64_t>(elements()) * static_cast<uint64_t>(bits / 8);
  if (bits > 0 && bits < 8) total += (static_cast<uint64_t>(elements()) * static_cast<uint64_t>(bits) + 7) / 8;
  return static_cast<int64_t>(total & ~(uint64_t{1} << 63));
}

void take_integers(const ProtoReader& field, std::vector<int64_t>& integers) {
  if (!field.is_bytes()) {
    integers.push_back(static_cast<int64_t>(field.integer()));
    return;
  }
  for (std::string_view packed = field.bytes(); !packed.empty();) {
    uint64_t value = 0;
    if (!ProtoReader::take_varint(packed, value))
      raise<InvalidArgument>("[hlo.parse] expected packed integers, got bytes that end in the middle of one");
    integers.push_back(static_cast<int64_t>(value));
  }
}

Shape parse_shape(std::string_view message) { return parse_shape_at(message, 0); }

std::optional<int64_t> parse_integer_literal(std::string_view message) {
  Shape shape;
  std::vector<int64_t> integers;
  for_each_field(message, "LiteralProto", [&](const ProtoReader& field) {
    if (field.field() == 1) shape = parse_shape(field.bytes());
    // s32s, s64s, u32s, u64s. Arrays are not read: they may be large.
    if (field.field() >= 4 && field.field() <= 7 && field.bytes().size() <= 10) take_integers(field, integers);
  });
  if (!shape.dims.empty() || integers.size() != 1) return std::nullopt;
  // Negative numbers of 32 bits are kept as ten bytes, sign-extended.
  return integers.front();
}

DotDims parse_dot_dims(std::string_view message) {
  DotDims dims;
  for_each_field(message, "DotDimensionNumbers", [&](const ProtoReader& field) {
    switch (field.field()) {
      case 1: take_integers(field, dims.lhs_contracting); break;
      case 2: take_integers(field, dims.rhs_contracting); break;
      case 3: take_integers(field, dims.lhs_batch); break;
      case 4: take_integers(field, dims.rhs_batch); break;
      default: break;
    }
  });
  return dims;
}

void parse_convolution_dims(std::string_view message, ConvolutionDims& dims) {
  for_each_field(message, "ConvolutionDimensionNumbers", [&](const ProtoReader& field) {
    const auto integer = static_cast<int64_t>(field.integer());
    switch (field.field()) {
      case 3: dims.kernel_input_feature = integer; break;
      case 4: dims.kernel_output_feature = integer; break;
      case 6: take_integers(field, dims.kernel_spatial); break;
      case 7: dims.input_batch = integer; break;
      case 8: dims.input_feature = integer; break;
      case 9: dims.output_batch = integer; break;
      case 10: dims.output_feature = integer; break;
      case 11: take_integers(field, dims.input_spatial); break;
      case 12: take_integers(field, dims.output_spatial); break;
      default: break;
    }
  });
}

std::vector<WindowDim> parse_window(std::string_view message) {
  std::vector<WindowDim> window;
  for_each_field(message, "Window", [&](const ProtoReader& dimension) {
    if (dimension.field() != 1) return;
    // Proto3 leaves zeros out, and only the paddings may be zero.
    WindowDim dim{.size = 0, .stride = 0, .window_dilation = 0, .base_dilation = 0};
    for_each_field(dimension.bytes(), "WindowDimension", [&](const ProtoReader& field) {
      int64_t* const kFields[] = {&dim.size,         &dim.stride,          &dim.padding_low,
                                  &dim.padding_high, &dim.window_dilation, &dim.base_dilation};
      if (field.field() >= 1 && field.field() <= 6) *kFields[field.field() - 1] = static_cast<int64_t>(field.integer());
    });
    window.push_back(dim);
  });
  return window;
}

void add_replica_group(std::string_view message, ReplicaGroups& groups) {
  std::vector<int64_t> ids;
  for_each_field(message, "ReplicaGroup", [&](const ProtoReader& field) {
    if (field.field() == 1) take_integers(field, ids);
  });
  ++groups.count;
  groups.size = std::max(groups.size, static_cast<int64_t>(ids.size()));
}

ReplicaGroups parse_iota_replica_groups(std::string_view message) {
  ReplicaGroups groups;
  for_each_field(message, "IotaReplicaGroupListProto", [&](const ProtoReader& field) {
    if (field.field() == 1) groups.count = static_cast<int64_t>(field.integer());
    if (field.field() == 2) groups.size = static_cast<int64_t>(field.integer());
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

// {1 mesh {1 axis {1 name, 2 size}, 2 device ids}, 2 axis {1 index into the mesh, 2 part {1 size before it, 2 size}}}:
// the devices that differ in these axes alone are a group.
ReplicaGroups parse_mesh_axes_replica_groups(std::string_view message) {
  std::vector<int64_t> sizes;
  int64_t devices = 1, size = 1;
  for_each_field(proto_field(message, 1), "MeshProto", [&](const ProtoReader& axis) {
    if (axis.field() != 1) return;
    int64_t axis_size = 0;
    for_each_field(axis.bytes(), "MeshAxis", [&](const ProtoReader& field) {
      if (field.field() == 2) axis_size = static_cast<int64_t>(field.integer());
    });
    if (axis_size < 1) raise<InvalidArgument>("[hlo.parse] expected axes of at least one device, got {}", axis_size);
    sizes.push_back(axis_size);
    devices = checked_product(devices, axis_size);
  });
  for_each_field(message, "MeshAxesReplicaGroupListProto", [&](const ProtoReader& axis) {
    if (axis.field() != 2) return;
    uint64_t index = 0;
    int64_t part = 0;
    for_each_field(axis.bytes(), "AxisRefProto", [&](const ProtoReader& field) {
      if (field.field() == 1) index = field.integer();
      if (field.field() != 2) return;
      for_each_field(field.bytes(), "SubAxis", [&](const ProtoReader& sub) {
        if (sub.field() == 2) part = static_cast<int64_t>(sub.integer());
      });
    });
    if (index >= sizes.size() || part < 0) raise<InvalidArgument>("[hlo.parse] expected an axis of the mesh, got {}", index);
    size = checked_product(size, part > 0 ? part : sizes[index]);
  });
  return {devices / size, size};
}

}  // namespace flambeau::hlo::compiled
