#include "compiled/fields.h"

#include <algorithm>
#include <numeric>

namespace flambeau::compiled {
namespace {

constexpr int kDeepestShape = 16;
constexpr size_t kMostTiledDims = 64;
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

// Elements that an array of `dims` (major dimension first) takes when each tile's last dimensions are filled up to whole
// tiles: [5, 100] in tiles of 8 x 128 takes 8 x 128. A further tile divides what the one before it made.
int64_t fill_tiles(std::vector<int64_t> dims, const std::vector<std::vector<int64_t>>& tiles) {
  for (const auto& tile : tiles) {
    if (std::max(dims.size(), tile.size()) + tile.size() > kMostTiledDims)
      raise<InvalidArgument>("[compiled.parse] expected a layout with few tiles");
    if (dims.size() < tile.size()) dims.insert(dims.begin(), tile.size() - dims.size(), 1);
    const size_t first = dims.size() - tile.size();
    for (size_t i = 0; i < tile.size(); ++i) {
      int64_t& dim = dims[first + i];
      dim = dim / tile[i] + (dim % tile[i] != 0);
    }
    dims.insert(dims.end(), tile.begin(), tile.end());
  }
  int64_t elements = 1;
  for (const int64_t dim : dims) elements = checked_product(elements, dim);
  return elements;
}

// LayoutProto {1 minor to major, 6 tile {1 dimensions}, 8 memory space}, of a shape whose dimensions are known.
void parse_layout(std::string_view message, Shape& shape) {
  std::vector<int64_t> minor_to_major;
  std::vector<std::vector<int64_t>> tiles;
  bool plain = true;  // tiles that only divide dimensions: negative sizes combine them, which no compiler here uses
  for_each_field(message, "LayoutProto", [&](const ProtoReader& field) {
    if (field.field() == 1) take_integers(field, minor_to_major);
    if (field.field() == 8) shape.memory_space = static_cast<int64_t>(field.integer());
    if (field.field() != 6) return;
    tiles.emplace_back();
    for_each_field(field.bytes(), "TileProto", [&](const ProtoReader& dimension) {
      if (dimension.field() == 1) take_integers(dimension, tiles.back());
    });
    for (const int64_t size : tiles.back()) plain = plain && size >= 1;
  });
  if (tiles.empty() || !plain) return;
  std::vector<int64_t> major_first;
  for (auto dim = minor_to_major.rbegin(); dim != minor_to_major.rend(); ++dim) {
    if (*dim < 0 || static_cast<size_t>(*dim) >= shape.dims.size())
      raise<InvalidArgument>("[compiled.parse] expected a layout of {} dimensions, got {}", shape.dims.size(), *dim);
    major_first.push_back(shape.dims[static_cast<size_t>(*dim)]);
  }
  if (major_first.size() == shape.dims.size()) shape.laid_out = fill_tiles(std::move(major_first), tiles);
}

Shape parse_shape_at(std::string_view message, int depth) {
  if (depth > kDeepestShape) raise<InvalidArgument>("[compiled.parse] expected tuples at most {} deep", kDeepestShape);
  Shape shape;
  uint64_t type = 0;
  std::string_view layout;
  for_each_field(message, "ShapeProto", [&](const ProtoReader& field) {
    if (field.field() == 2) type = field.integer();
    if (field.field() == 3) take_integers(field, shape.dims);
    if (field.field() == 4) shape.parts.push_back(parse_shape_at(field.bytes(), depth + 1));
    if (field.field() == 5) layout = field.bytes();
  });
  shape.type = type < std::size(kTypes) ? kTypes[type].name : "unknown";
  if (type != kTuple) shape.parts.clear();
  int64_t elements = 1;
  for (const int64_t dim : shape.dims) {
    if (dim < 0) raise<InvalidArgument>("[compiled.parse] expected dimensions of at least 0, got {}", dim);
    elements = checked_product(elements, dim);
  }
  shape.laid_out = elements;
  parse_layout(layout, shape);
  checked_product(std::max(elements, shape.laid_out), 16);  // bytes of the largest type
  return shape;
}

// Sums of parts wrap rather than overflow: 2^30 parts of the largest size are no program.
int64_t sum_of_parts(const Shape& shape, int64_t own, int64_t (Shape::*of_part)() const) {
  auto total = static_cast<uint64_t>(own);
  for (const Shape& part : shape.parts) total += static_cast<uint64_t>((part.*of_part)());
  return static_cast<int64_t>(total & ~(uint64_t{1} << 63));
}

int64_t bytes_of(std::string_view type, int64_t elements) {
  const int bits = bits_of(type);
  return bits >= 8 ? elements * (bits / 8) : (elements / 8) * bits + (elements % 8 * bits + 7) / 8;
}

}  // namespace

int64_t checked_product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product >= int64_t{1} << 62)
    raise<InvalidArgument>("[compiled.parse] expected sizes that fit 62 bits, got {} x {}", a, b);
  return product;
}

int64_t checked_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum >= int64_t{1} << 62)
    raise<InvalidArgument>("[compiled.parse] expected sizes that fit 62 bits, got {} + {}", a, b);
  return sum;
}

int64_t Shape::elements() const {
  if (bits_of(type) == 0) return 0;
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

int64_t Shape::bytes() const { return sum_of_parts(*this, bytes_of(type, elements()), &Shape::bytes); }

int64_t Shape::laid_out_bytes() const { return sum_of_parts(*this, bytes_of(type, laid_out), &Shape::laid_out_bytes); }

int64_t Shape::hbm_bytes() const {
  return sum_of_parts(*this, memory_space == 0 ? bytes_of(type, laid_out) : 0, &Shape::hbm_bytes);
}

void take_integers(const ProtoReader& field, std::vector<int64_t>& integers) {
  if (!field.is_bytes()) {
    integers.push_back(static_cast<int64_t>(field.integer()));
    return;
  }
  for (std::string_view packed = field.bytes(); !packed.empty();) {
    uint64_t value = 0;
    if (!ProtoReader::take_varint(packed, value))
      raise<InvalidArgument>("[compiled.parse] expected packed integers, got bytes that end in the middle of one");
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

std::vector<int64_t> parse_dot_contracting(std::string_view message) {
  std::vector<int64_t> dims;
  for_each_field(message, "DotDimensionNumbers", [&](const ProtoReader& field) {
    if (field.field() == 1) take_integers(field, dims);
  });
  return dims;
}

void parse_convolution_dims(std::string_view message, ConvolutionDims& dims) {
  for_each_field(message, "ConvolutionDimensionNumbers", [&](const ProtoReader& field) {
    const auto integer = static_cast<int64_t>(field.integer());
    switch (field.field()) {
      case 3: dims.kernel_input_feature = integer; break;
      case 7: dims.input_batch = integer; break;
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

}  // namespace flambeau::compiled
