#include "hlo/rewrite.h"

#include <algorithm>
#include <numeric>

#include "hlo/elements.h"
#include "hlo/fold.h"

namespace flambeau::hlo {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }
bool contains(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }

void become(Node& node, Op op, std::vector<Value> operands, std::vector<Attribute> attributes) {
  node.op = op;
  node.operands = std::move(operands);
  node.attributes = std::move(attributes);
}

void become_constant(Node& node, Literal literal) { become(node, Op::Constant, {}, {{"value", std::move(literal)}}); }

// The node that gives `value`, when it is one of `op`.
const Node* defined_by(const Graph& graph, Value value, Op op) {
  const Node* node = graph.definition(value);
  return node && node->op == op ? node : nullptr;
}

// ---- arithmetic
// -------------------------------------------------------------------------------------------------------------------

// The element that a constant operand repeats; null for everything else.
const char* repeated(Value value) {
  const Literal* literal = constant_literal(value);
  return literal ? uniform_element(*literal) : nullptr;
}

bool repeats(Value value, const std::string& element) {
  const char* bytes = repeated(value);
  return bytes && element == std::string_view(bytes, at(byte_size(value.dtype())));
}

bool repeats_integer(Value value, uint64_t bits) {
  return !is_float(value.dtype()) && !is_complex(value.dtype()) && repeats(value, encode_integer(value.dtype(), bits));
}
bool repeats_float(Value value, double number) {
  return is_float(value.dtype()) && repeats(value, encode_float(value.dtype(), number));
}
bool is_one(Value value) { return repeats_integer(value, 1) || repeats_float(value, 1); }

// x op y = x for every x, to the bit. For floats x + 0.0 is not: it turns -0.0 into 0.0.
bool is_right_neutral(Op op, Value y) {
  switch (op) {
    case Op::Add: return repeats_integer(y, 0) || repeats_float(y, -0.0);
    case Op::Subtract: return repeats_integer(y, 0) || repeats_float(y, 0.0);
    case Op::Multiply:
    case Op::Divide: return is_one(y);
    case Op::And: return repeats_integer(y, ~uint64_t{0});
    case Op::Or:
    case Op::Xor:
    case Op::ShiftLeft:
    case Op::ShiftRightArithmetic:
    case Op::ShiftRightLogical: return repeats_integer(y, 0);
    default: return false;
  }
}

bool is_commutative(Op op) { return op == Op::Add || op == Op::Multiply || op == Op::And || op == Op::Or || op == Op::Xor; }

// x op y = y for every x.
bool is_absorbing(Op op, Value y) {
  if (op == Op::Multiply || op == Op::And) return repeats_integer(y, 0);
  return op == Op::Or && repeats_integer(y, ~uint64_t{0});
}

Value rewrite_binary(const Node& node) {
  const Value x = node.operands[0], y = node.operands[1];
  if (is_right_neutral(node.op, y) || (is_commutative(node.op) && is_absorbing(node.op, x))) return x;
  if (is_absorbing(node.op, y) || (is_commutative(node.op) && is_right_neutral(node.op, x))) return y;
  const bool idempotent = node.op == Op::And || node.op == Op::Or || node.op == Op::Maximum || node.op == Op::Minimum;
  return idempotent && x == y ? x : Value();
}

// Operations that undo themselves, and parts of a complex number that was put together.
Value rewrite_unary(const Graph& graph, const Node& node) {
  const Value x = node.operands[0];
  if (node.op == Op::Not || node.op == Op::Negate) {
    const Node* inner = defined_by(graph, x, node.op);
    return inner ? inner->operands[0] : Value();
  }
  if (!is_complex(x.dtype())) return x;  // real; imag is handled by the caller
  const Node* made = defined_by(graph, x, Op::Complex);
  return made ? made->operands[node.op == Op::Real ? 0 : 1] : Value();
}

Value rewrite_compare(Node& node) {
  const Value x = node.operands[0];
  if (x != node.operands[1] || is_float(x.dtype()) || is_complex(x.dtype())) return {};
  const std::string_view text = attribute<RawAttribute>(node, "comparison_direction").text;
  const bool holds = text.ends_with(" EQ>") || text.ends_with(" GE>") || text.ends_with(" LE>");
  become_constant(node, splat(node.results[0].type(), encode_integer(DType::Pred, holds)));
  return {};
}

Value rewrite_select(const Node& node) {
  if (node.operands[1] == node.operands[2]) return node.operands[1];
  const char* condition = repeated(node.operands[0]);
  return condition ? node.operands[*condition ? 1 : 2] : Value();
}

// ---- conversions
// ------------------------------------------------------------------------------------------------------------------

// Whether A -> C gives the same as A -> B -> C, A -> B being lossless.
bool skips(DType a, DType b, DType c) {
  if (is_lossless(a, c) || c == DType::Pred) return true;
  auto whole = [](DType t) { return t == DType::Pred || is_integer(t); };
  return (is_float(a) && is_float(b) && is_float(c)) || (whole(a) && whole(b) && whole(c));
}

Value rewrite_convert(const Graph& graph, Node& node) {
  const Node* inner = defined_by(graph, node.operands[0], Op::Convert);
  if (!inner) return {};
  const Value x = inner->operands[0];
  const DType to = node.results[0].dtype();
  if (!is_lossless(x.dtype(), inner->results[0].dtype())) return {};
  if (x.dtype() == to) return x;
  if (skips(x.dtype(), inner->results[0].dtype(), to)) node.operands[0] = x;
  return {};
}

Value rewrite_bitcast(const Graph& graph, const Node& node) {
  const Node* inner = defined_by(graph, node.operands[0], Op::BitcastConvert);
  return inner && inner->operands[0].type() == node.results[0].type() ? inner->operands[0] : Value();
}

// ---- movement
// ---------------------------------------------------------------------------------------------------------------------

Value rewrite_reshape(const Graph& graph, Node& node) {
  if (const Node* inner = defined_by(graph, node.operands[0], Op::Reshape)) node.operands[0] = inner->operands[0];
  const Value x = node.operands[0];
  if (x.type() == node.results[0].type()) return x;
  const Node* broadcast = defined_by(graph, x, Op::BroadcastInDim);
  if (broadcast && broadcast->operands[0].rank() == 0) {
    const Value scalar = broadcast->operands[0];
    if (node.results[0].rank() == 0) return scalar;
    become(node, Op::BroadcastInDim, {scalar}, {{"broadcast_dimensions", Dims{}}});
  }
  return {};
}

Value rewrite_transpose(const Graph& graph, Node& node) {
  Dims permutation = attribute<Dims>(node, "permutation");
  if (const Node* inner = defined_by(graph, node.operands[0], Op::Transpose)) {
    const Dims& first = attribute<Dims>(*inner, "permutation");
    for (int64_t& p : permutation) p = first[at(p)];
    become(node, Op::Transpose, {inner->operands[0]}, {{"permutation", permutation}});
  }
  if (std::is_sorted(permutation.begin(), permutation.end())) return node.operands[0];
  if (const Node* inner = defined_by(graph, node.operands[0], Op::BroadcastInDim)) {
    Dims places = attribute<Dims>(*inner, "broadcast_dimensions");
    for (int64_t& place : places) place = std::find(permutation.begin(), permutation.end(), place) - permutation.begin();
    become(node, Op::BroadcastInDim, {inner->operands[0]}, {{"broadcast_dimensions", std::move(places)}});
  }
  return {};
}

// Where x's dimensions are in a reshape of x that only puts in dimensions of size 1; nothing for other reshapes.
std::optional<Dims> places_in_reshape(const Dims& from, const Dims& to) {
  Dims places;
  for (size_t i = 0; i < to.size(); ++i) {
    const bool matches = places.size() < from.size() && from[places.size()] == to[i];
    if (matches)
      places.push_back(static_cast<int64_t>(i));
    else if (to[i] != 1)
      return std::nullopt;
  }
  return places.size() == from.size() ? std::optional(places) : std::nullopt;
}

Value rewrite_broadcast(const Graph& graph, Node& node) {
  const Dims& places = attribute<Dims>(node, "broadcast_dimensions");
  const Node* inner = graph.definition(node.operands[0]);
  std::optional<Dims> inner_places;
  if (inner && inner->op == Op::BroadcastInDim) inner_places = attribute<Dims>(*inner, "broadcast_dimensions");
  if (inner && inner->op == Op::Reshape)
    inner_places = places_in_reshape(inner->operands[0].dims(), inner->results[0].dims());
  if (inner_places) {
    for (int64_t& place : *inner_places) place = places[at(place)];
    become(node, Op::BroadcastInDim, {inner->operands[0]}, {{"broadcast_dimensions", std::move(*inner_places)}});
  }
  const Dims& now = attribute<Dims>(node, "broadcast_dimensions");
  const Value x = node.operands[0];
  return x.type() == node.results[0].type() && std::is_sorted(now.begin(), now.end()) ? x : Value();
}

void become_slice(Node& node, Value x, Dims start, Dims limit, Dims strides) {
  become(node, Op::Slice, {x},
         {{"start_indices", std::move(start)}, {"limit_indices", std::move(limit)}, {"strides", std::move(strides)}});
}

// A slice that lies in one piece of a concatenation is a slice of the piece.
void slice_piece(const Node& pieces, Node& node) {
  const auto dimension = attribute<int64_t>(pieces, "dimension");
  Dims start = attribute<Dims>(node, "start_indices"), limit = attribute<Dims>(node, "limit_indices");
  int64_t offset = 0;
  for (Value piece : pieces.operands) {
    const int64_t end = offset + piece.dim(dimension);
    if (start[at(dimension)] >= offset && limit[at(dimension)] <= end && offset < end) {
      start[at(dimension)] -= offset;
      limit[at(dimension)] -= offset;
      return become_slice(node, piece, std::move(start), std::move(limit), Dims(attribute<Dims>(node, "strides")));
    }
    offset = end;
  }
}

Value rewrite_slice(const Graph& graph, Node& node) {
  if (const Node* pieces = defined_by(graph, node.operands[0], Op::Concatenate)) slice_piece(*pieces, node);
  if (const Node* inner = defined_by(graph, node.operands[0], Op::Slice)) {
    Dims start = attribute<Dims>(node, "start_indices"), limit = attribute<Dims>(node, "limit_indices"),
         strides = attribute<Dims>(node, "strides");
    const Dims &first = attribute<Dims>(*inner, "start_indices"), &step = attribute<Dims>(*inner, "strides");
    for (size_t d = 0; d < start.size(); ++d) {
      const int64_t count = node.results[0].dims()[d];
      start[d] = count == 0 ? 0 : first[d] + start[d] * step[d];
      strides[d] = count == 0 ? 1 : strides[d] * step[d];
      limit[d] = count == 0 ? 0 : start[d] + (count - 1) * strides[d] + 1;
    }
    become_slice(node, inner->operands[0], std::move(start), std::move(limit), std::move(strides));
  }
  return node.operands[0].type() == node.results[0].type() ? node.operands[0] : Value();
}

Value rewrite_dynamic_slice(Node& node) {
  const Value x = node.operands[0];
  const Dims& sizes = node.results[0].dims();
  if (sizes == x.dims()) return x;
  Dims start, limit;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const Value index = node.operands[d + 1];
    const char* bytes = repeated(index);
    if (!bytes && sizes[d] != x.dims()[d]) return {};
    int64_t place = bytes ? decode_integer(index.dtype(), bytes) : 0;
    if (index.dtype() == DType::U64 && place < 0) place = x.dims()[d];  // above every dimension
    start.push_back(std::clamp<int64_t>(place, 0, x.dims()[d] - sizes[d]));
    limit.push_back(start.back() + sizes[d]);
  }
  become_slice(node, x, std::move(start), std::move(limit), Dims(sizes.size(), 1));
  return {};
}

Value rewrite_update(const Node& node) {
  const Value x = node.operands[0], update = node.operands[1];
  if (update.type() == x.type()) return update;
  return update.elements() == 0 ? x : Value();
}

Value rewrite_concatenate(Node& node) {
  const auto dimension = attribute<int64_t>(node, "dimension");
  if (node.results[0].elements() != 0) std::erase_if(node.operands, [&](Value v) { return v.dim(dimension) == 0; });
  return node.operands.size() == 1 ? node.operands[0] : Value();
}

Value rewrite_pad(const Node& node) {
  auto is_zero = [](int64_t d) { return d == 0; };
  for (std::string_view name : {"edge_padding_low", "edge_padding_high", "interior_padding"}) {
    const Dims& amounts = attribute<Dims>(node, name);
    if (!std::all_of(amounts.begin(), amounts.end(), is_zero)) return {};
  }
  return node.operands[0];
}

Value rewrite_reverse(const Graph& graph, const Node& node) {
  const Dims& dimensions = attribute<Dims>(node, "dimensions");
  const Value x = node.operands[0];
  if (std::all_of(dimensions.begin(), dimensions.end(), [&](int64_t d) { return x.dim(d) <= 1; })) return x;
  const Node* inner = defined_by(graph, x, Op::Reverse);
  return inner && attribute<Dims>(*inner, "dimensions") == dimensions ? inner->operands[0] : Value();
}

// ---- dot_general
// ------------------------------------------------------------------------------------------------------------------

// Reads one side through its transpose, when the free dimensions keep their order: the result stays as it is.
void look_through_transpose(const Graph& graph, Node& node, size_t side) {
  const Node* transpose = defined_by(graph, node.operands[side], Op::Transpose);
  if (!transpose) return;
  const Dims& permutation = attribute<Dims>(*transpose, "permutation");
  Dims* batch = std::get_if<Dims>(&node.attributes[side].value);            // lhs, rhs batching
  Dims* contracting = std::get_if<Dims>(&node.attributes[2 + side].value);  // lhs, rhs contracting
  Dims free;
  for (size_t d = 0; d < permutation.size(); ++d)
    if (!contains(*batch, static_cast<int64_t>(d)) && !contains(*contracting, static_cast<int64_t>(d)))
      free.push_back(permutation[d]);
  if (!std::is_sorted(free.begin(), free.end())) return;
  for (Dims* dims : {batch, contracting})
    for (int64_t& d : *dims) d = permutation[at(d)];
  node.operands[side] = transpose->operands[0];
}

}  // namespace

Value rewrite(Graph& graph, Node& node) {
  if (auto literal = fold(node)) {
    become_constant(node, std::move(*literal));
    return {};
  }
  switch (node.op) {
    case Op::Imag:
      if (!is_complex(node.operands[0].dtype())) return {};
      [[fallthrough]];
    case Op::Real:
    case Op::Not:
    case Op::Negate: return rewrite_unary(graph, node);
    case Op::Add:
    case Op::Subtract:
    case Op::Multiply:
    case Op::Divide:
    case Op::Maximum:
    case Op::Minimum:
    case Op::And:
    case Op::Or:
    case Op::Xor:
    case Op::ShiftLeft:
    case Op::ShiftRightArithmetic:
    case Op::ShiftRightLogical: return rewrite_binary(node);
    case Op::Compare: return rewrite_compare(node);
    case Op::Select: return rewrite_select(node);
    case Op::Convert: return rewrite_convert(graph, node);
    case Op::BitcastConvert: return rewrite_bitcast(graph, node);
    case Op::Reshape: return rewrite_reshape(graph, node);
    case Op::Transpose: return rewrite_transpose(graph, node);
    case Op::BroadcastInDim: return rewrite_broadcast(graph, node);
    case Op::Slice: return rewrite_slice(graph, node);
    case Op::DynamicSlice: return rewrite_dynamic_slice(node);
    case Op::DynamicUpdateSlice: return rewrite_update(node);
    case Op::Concatenate: return rewrite_concatenate(node);
    case Op::Pad: return rewrite_pad(node);
    case Op::Reverse: return rewrite_reverse(graph, node);
    case Op::DotGeneral:
      look_through_transpose(graph, node, 0);
      look_through_transpose(graph, node, 1);
      return {};
    default: return {};
  }
}

}  // namespace flambeau::hlo
