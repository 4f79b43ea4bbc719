// Emitting, checking and constants: what the other builder_*.cc stand on.
#include "hlo/builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "hlo/elements.h"

namespace flambeau::hlo {

void Builder::fail(Op op, std::string_view text) const {
  raise<BuilderRefusal>("{}{}[{}] {}", site_, site_.empty() ? "" : ": ", op_name(op), text);
}

void Builder::check_operands(Op op, std::span<const Value> operands) const {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Value v = operands[i];
    if (!v) fail(op, fmt::format("expected a value as operand {}, got none", i));
    if (v.graph() != graph_)
      fail(op, fmt::format("expected values of one graph, got one of another graph as operand {}", i));
    const uint32_t block = graph_->block_of(graph_->resolve(v));
    if (std::none_of(scopes_.rbegin(), scopes_.rend(), [&](const Block* scope) { return scope->id == block; }))
      fail(op, fmt::format("expected values that are visible here, got operand {} ({}) from {}", i, v.type().to_string(),
                           block == Graph::kNoBlock ? "an operation that was removed" : "inside another region"));
  }
}

void Builder::check_operands(Op op, std::initializer_list<Value> operands) const {
  check_operands(op, std::span(operands.begin(), operands.size()));
}

void Builder::check_axis(Op op, std::string_view what, int64_t axis, int64_t rank) const {
  if (axis < 0 || axis >= rank) fail(op, fmt::format("expected {} in [0, {}), got {}", what, rank, axis));
}

void Builder::check_axes(Op op, std::string_view what, const Dims& axes, int64_t rank) const {
  std::vector<bool> seen(static_cast<size_t>(rank));
  for (int64_t axis : axes) {
    check_axis(op, what, axis, rank);
    if (seen[static_cast<size_t>(axis)])
      fail(op, fmt::format("expected {} that differ, got [{}]", what, fmt::join(axes, ", ")));
    seen[static_cast<size_t>(axis)] = true;
  }
}

std::vector<Value> Builder::emit(Op op, std::vector<Value> operands, std::vector<Type> results,
                                 std::vector<Attribute> attributes, std::vector<std::unique_ptr<Block>> regions) {
  Block& block = *scopes_.back();
  auto node = std::make_unique<Node>(Node{op, std::move(operands), {}, std::move(attributes), std::move(regions), site_});
  for (Value& operand : node->operands) operand = graph_->resolve(operand);
  node->results.reserve(results.size());
  for (Type& type : results) node->results.push_back(graph_->new_value(std::move(type), node.get(), block.id));
  block.nodes.push_back(std::move(node));
  return block.nodes.back()->results;
}

Value Builder::emit(Op op, std::vector<Value> operands, Type result, std::vector<Attribute> attributes) {
  std::vector<Type> results;
  results.push_back(std::move(result));
  return emit(op, std::move(operands), std::move(results), std::move(attributes)).front();
}

// -- constants ----------------------------------------------------------------------------------------------------------

Value Builder::emit_constant(Literal literal) {
  for (int64_t d : literal.type.dims)
    if (d < 0) fail(Op::Constant, fmt::format("expected dimensions of at least 0, got {}", literal.type.to_string()));
  Type type = literal.type;
  return emit(Op::Constant, {}, std::move(type), {{"value", std::move(literal)}});
}

Value Builder::constant(DType dtype, double value, Dims dims) {
  if (is_float(dtype)) return emit_constant(splat({dtype, std::move(dims)}, encode_float(dtype, value)));
  if (is_complex(dtype)) return emit_constant(splat({dtype, std::move(dims)}, encode_complex(dtype, value)));
  constexpr double kTwo63 = 9223372036854775808.0;
  const bool whole = value == std::trunc(value);
  if (dtype == DType::U64 && whole && value >= kTwo63 && value < 2 * kTwo63)
    return emit_constant(splat({dtype, std::move(dims)}, encode_integer(dtype, static_cast<uint64_t>(value))));
  if (!whole || value < -kTwo63 || value >= kTwo63 || !integer_fits(dtype, static_cast<int64_t>(value)))
    fail(Op::Constant, fmt::format("expected a value that {} holds, got {}", hlo_name(dtype), value));
  return constant(dtype, static_cast<int64_t>(value), std::move(dims));
}

Value Builder::constant(DType dtype, int64_t value, Dims dims) {
  if (dtype == DType::F64 || dtype == DType::C128) return constant(dtype, static_cast<double>(value), std::move(dims));
  if (is_float(dtype) || is_complex(dtype))  // rounded once
    return constant(dtype, static_cast<double>(static_cast<float>(value)), std::move(dims));
  if (!integer_fits(dtype, value))
    fail(Op::Constant, fmt::format("expected a value that {} holds, got {}", hlo_name(dtype), value));
  return emit_constant(splat({dtype, std::move(dims)}, encode_integer(dtype, static_cast<uint64_t>(value))));
}

Value Builder::constant(DType dtype, std::complex<double> value, Dims dims) {
  if (is_complex(dtype)) return emit_constant(splat({dtype, std::move(dims)}, encode_complex(dtype, value)));
  if (value.imag() != 0)
    fail(Op::Constant,
         fmt::format("expected a value that {} holds, got {}{:+}i", hlo_name(dtype), value.real(), value.imag()));
  return constant(dtype, value.real(), std::move(dims));
}

Value Builder::literal(Type type, const void* elements) {
  const auto size = static_cast<size_t>(type.bytes());
  const auto element = static_cast<size_t>(byte_size(type.dtype));
  std::string bytes(static_cast<const char*>(elements), size);
  if (type.dtype == DType::Pred)
    for (char& c : bytes) c = c != 0;
  // All elements alike: shifted by one element, the bytes are the same.
  if (size > element && std::memcmp(bytes.data(), bytes.data() + element, size - element) == 0) bytes.resize(element);
  return emit_constant({std::move(type), std::move(bytes)});
}

Value Builder::index_vector(std::span<const int64_t> values, DType dtype) {
  if (!is_integer(dtype)) fail(Op::Constant, fmt::format("expected an integer type for indices, got {}", hlo_name(dtype)));
  std::string bytes;
  for (int64_t value : values) {
    if (!integer_fits(dtype, value))
      fail(Op::Constant, fmt::format("expected a value that {} holds, got {}", hlo_name(dtype), value));
    bytes += encode_integer(dtype, static_cast<uint64_t>(value));
  }
  return literal({dtype, {static_cast<int64_t>(values.size())}}, bytes.data());
}

Value Builder::lowest(DType dtype, Dims dims) {
  if (is_complex(dtype)) fail(Op::Constant, fmt::format("expected a type with an order, got {}", hlo_name(dtype)));
  return emit_constant(splat({dtype, std::move(dims)}, lowest_element(dtype)));
}

Value Builder::highest(DType dtype, Dims dims) {
  if (is_complex(dtype)) fail(Op::Constant, fmt::format("expected a type with an order, got {}", hlo_name(dtype)));
  return emit_constant(splat({dtype, std::move(dims)}, highest_element(dtype)));
}

Value Builder::iota(Type type, int64_t dimension) {
  if (type.dtype == DType::Pred) fail(Op::Iota, "expected a number type, got i1");
  for (int64_t d : type.dims)
    if (d < 0) fail(Op::Iota, fmt::format("expected dimensions of at least 0, got {}", type.to_string()));
  check_axis(Op::Iota, "a dimension", dimension, type.rank());
  return emit(Op::Iota, {}, std::move(type), {{"iota_dimension", dimension}});
}

}  // namespace flambeau::hlo
