#include "hlo/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::hlo {
namespace {

// In the order of Op.
constexpr std::string_view kOpNames[] = {
    "stablehlo.abs",
    "stablehlo.cbrt",
    "stablehlo.ceil",
    "stablehlo.count_leading_zeros",
    "stablehlo.cosine",
    "stablehlo.exponential",
    "stablehlo.exponential_minus_one",
    "stablehlo.floor",
    "stablehlo.imag",
    "stablehlo.is_finite",
    "stablehlo.log",
    "stablehlo.log_plus_one",
    "stablehlo.logistic",
    "stablehlo.negate",
    "stablehlo.not",
    "stablehlo.popcnt",
    "stablehlo.real",
    "stablehlo.round_nearest_afz",
    "stablehlo.round_nearest_even",
    "stablehlo.rsqrt",
    "stablehlo.sign",
    "stablehlo.sine",
    "stablehlo.sqrt",
    "stablehlo.tan",
    "stablehlo.tanh",
    "stablehlo.convert",
    "stablehlo.bitcast_convert",
    "stablehlo.add",
    "stablehlo.and",
    "stablehlo.atan2",
    "stablehlo.complex",
    "stablehlo.divide",
    "stablehlo.maximum",
    "stablehlo.minimum",
    "stablehlo.multiply",
    "stablehlo.or",
    "stablehlo.power",
    "stablehlo.remainder",
    "stablehlo.shift_left",
    "stablehlo.shift_right_arithmetic",
    "stablehlo.shift_right_logical",
    "stablehlo.subtract",
    "stablehlo.xor",
    "stablehlo.compare",
    "stablehlo.select",
    "stablehlo.clamp",
    "stablehlo.constant",
    "stablehlo.iota",
    "stablehlo.broadcast_in_dim",
    "stablehlo.reshape",
    "stablehlo.transpose",
    "stablehlo.slice",
    "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice",
    "stablehlo.pad",
    "stablehlo.concatenate",
    "stablehlo.reverse",
    "stablehlo.gather",
    "stablehlo.scatter",
    "stablehlo.sort",
    "stablehlo.dot_general",
    "stablehlo.convolution",
    "stablehlo.reduce",
    "stablehlo.reduce_window",
    "stablehlo.select_and_scatter",
    "stablehlo.cholesky",
    "stablehlo.triangular_solve",
    "stablehlo.fft",
    "stablehlo.while",
    "stablehlo.case",
    "stablehlo.if",
    "stablehlo.custom_call",
    "stablehlo.optimization_barrier",
    "stablehlo.return",
    "sdy.sharding_constraint",
    "sdy.manual_computation",
    "stablehlo.all_reduce",
    "stablehlo.all_gather",
    "stablehlo.reduce_scatter",
    "stablehlo.all_to_all",
    "stablehlo.collective_permute",
    "stablehlo.partition_id",
};
static_assert(std::size(kOpNames) == static_cast<size_t>(Op::PartitionId) + 1);

size_t count_nodes(const Block& block) {
  size_t count = block.nodes.size();
  for (const auto& node : block.nodes)
    for (const auto& region : node->regions) count += count_nodes(*region);
  return count;
}

}  // namespace

std::string_view op_name(Op op) { return kOpNames[static_cast<size_t>(op)]; }

int64_t Type::elements() const {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  return count;
}

std::string Type::to_string() const {
  return fmt::format("tensor<{}{}{}>", fmt::join(dims, "x"), dims.empty() ? "" : "x", hlo_name(dtype));
}

const AttributeValue* Node::find(std::string_view name) const {
  for (const Attribute& a : attributes)
    if (a.name == name) return &a.value;
  return nullptr;
}

// Sizes that no memory has are PyTorch's errors, whichever operation asks for them.
static void check_sizes(const Type& type) {
  bool overflows = false, empty = false;
  int64_t bytes = byte_size(type.dtype);
  for (int64_t d : type.dims) {
    if (d < 0) raise<InvalidArgument>("Trying to create tensor with negative dimension {}: [{}]", d, fmt::join(type.dims, ", "));
    empty |= d == 0;
    overflows |= __builtin_mul_overflow(bytes, d, &bytes);
  }
  if (overflows && !empty) raise<InvalidArgument>("Storage size calculation overflowed with sizes=[{}]", fmt::join(type.dims, ", "));
}

Value Graph::new_value(Type type, Node* definition, uint32_t block) {
  check_sizes(type);
  const auto id = static_cast<uint32_t>(values_.size());
  values_.push_back({std::move(type), definition, block, id});
  return {this, id};
}

std::unique_ptr<Block> Graph::new_block() {
  auto block = std::make_unique<Block>();
  block->id = block_count_++;
  return block;
}

Value Graph::resolve(Value value) const {
  uint32_t id = value.id();
  while (values_[id].replacement != id) id = values_[id].replacement;
  return {value.graph(), id};
}

void Graph::retire(const Node& node) {
  for (Value v : node.results) {
    values_[v.id()].definition = nullptr;
    values_[v.id()].block = kNoBlock;
  }
  for (const auto& region : node.regions) retire(*region);
}

void Graph::retire(const Block& block) {
  for (Value v : block.parameters) values_[v.id()].block = kNoBlock;
  for (const auto& node : block.nodes) retire(*node);
}

Value Graph::add_parameter(Type type, Signature signature) {
  Value value = new_value(std::move(type), nullptr);
  body_.parameters.push_back(value);
  parameter_signatures_.push_back(std::move(signature));
  return value;
}

void Graph::set_results(std::vector<Value> results, std::vector<Signature> signatures) {
  if (!signatures.empty() && signatures.size() != results.size())
    raise<InvalidArgument>("[results] expected one signature a result or none, got {} for {}", signatures.size(),
                           results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].graph() != this)
      raise<InvalidArgument>("[results] expected values of this graph, got {} as result {}",
                             results[i] ? "a value of another graph" : "no value", i);
    results[i] = resolve(results[i]);
    if (block_of(results[i]) != 0)
      raise<InvalidArgument>(
          "[results] expected values of the graph's own body, got a value of a region or a removed one as result {}", i);
  }
  signatures.resize(results.size());
  body_.results = std::move(results);
  result_signatures_ = std::move(signatures);
}

size_t Graph::node_count() const { return count_nodes(body_); }

}  // namespace flambeau::hlo
