#include "hlo/regions.h"

#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

namespace flambeau::hlo {
namespace {

void collect_blocks(const Block& block, std::unordered_set<uint32_t>& ids) {
  ids.insert(block.id);
  for (const auto& node : block.nodes)
    for (const auto& region : node->regions) collect_blocks(*region, ids);
}

template <class F>
void for_each_use(Block& block, const F& visit) {
  for (const auto& node : block.nodes) {
    for (Value& operand : node->operands) visit(operand);
    for (const auto& region : node->regions) for_each_use(*region, visit);
  }
  for (Value& result : block.results) visit(result);
}

// Copies what constants alone determine into a region.
class ConstantCopier {
 public:
  ConstantCopier(Graph& graph, uint32_t block) : graph_(graph), block_(block) {}

  // False when `value` depends on more than constants.
  bool can_copy(Value value) {
    auto [at, fresh] = copyable_.try_emplace(value.id(), false);
    if (!fresh) return at->second;
    const Node* node = graph_.definition(value);
    bool yes = node && node->regions.empty() && node->op != Op::CustomCall && node->op < Op::ShardingConstraint;
    if (yes)
      for (Value operand : node->operands) yes = yes && can_copy(operand);
    return copyable_[value.id()] = yes;
  }

  Value copy(Value value) {
    if (auto at = copies_.find(value.id()); at != copies_.end()) return at->second;
    const Node& original = *graph_.definition(value);
    auto node = std::make_unique<Node>(Node{original.op, {}, {}, original.attributes, {}, original.site});
    for (Value operand : original.operands) node->operands.push_back(copy(operand));
    for (Value result : original.results) {
      node->results.push_back(graph_.new_value(result.type(), node.get(), block_));
      copies_[result.id()] = node->results.back();
    }
    nodes_.push_back(std::move(node));
    return copies_.at(value.id());
  }

  std::vector<std::unique_ptr<Node>> take() { return std::move(nodes_); }

 private:
  Graph& graph_;
  uint32_t block_;
  std::unordered_map<uint32_t, bool> copyable_;
  std::unordered_map<uint32_t, Value> copies_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace

bool has_closed_regions(Op op) { return op != Op::While && op != Op::Case && op != Op::If; }

std::vector<Type> types_of(std::span<const Value> values) {
  std::vector<Type> types;
  types.reserve(values.size());
  for (Value v : values) types.push_back(v.type());
  return types;
}

std::string type_list(std::span<const Type> types) {
  std::string text = "(";
  for (size_t i = 0; i < types.size(); ++i) text += (i ? ", " : "") + types[i].to_string();
  return text + ')';
}

Builder::Regions::~Regions() {
  for (const auto& block : blocks_) builder_.graph_->retire(*block);
}

const Block& Builder::Regions::add(Op op, std::span<const Type> parameters, const Body& body) {
  Graph& graph = *builder_.graph_;
  Block& region = *blocks_.emplace_back(graph.new_block());
  for (const Type& type : parameters) region.parameters.push_back(graph.new_value(type, nullptr, region.id));

  struct Scope {  // left also when the body raises
    std::vector<Block*>& scopes;
    size_t depth = scopes.size();
    ~Scope() { scopes.resize(depth); }
  } scope{builder_.scopes_};
  builder_.scopes_.push_back(&region);
  const std::vector<Value> arguments = region.parameters;
  std::vector<Value> results = body(builder_, arguments);
  builder_.check_operands(op, results);
  for (Value& result : results) result = graph.resolve(result);
  region.results = std::move(results);
  if (has_closed_regions(op)) close(op, region);
  return region;
}

void Builder::Regions::close(Op op, Block& region) {
  Graph& graph = *builder_.graph_;
  std::unordered_set<uint32_t> inside;
  collect_blocks(region, inside);
  ConstantCopier copier(graph, region.id);
  for_each_use(region, [&](Value& use) {
    if (inside.contains(graph.block_of(use))) return;
    if (!copier.can_copy(use))
      builder_.fail(op,
                    fmt::format("expected a body that uses its parameters and constants only, got one that uses a {} from "
                                "outside; pass it as an operand",
                                use.type().to_string()));
    use = copier.copy(use);
  });
  auto copies = copier.take();
  region.nodes.insert(region.nodes.begin(), std::make_move_iterator(copies.begin()), std::make_move_iterator(copies.end()));
}

void Builder::Regions::expect(Op op, std::string_view what, const Block& region, std::span<const Type> types) const {
  const std::vector<Type> got = types_of(region.results);
  if (!std::equal(got.begin(), got.end(), types.begin(), types.end()))
    builder_.fail(op, fmt::format("expected {} to give {}, got {}", what, type_list(types), type_list(got)));
}

}  // namespace flambeau::hlo
