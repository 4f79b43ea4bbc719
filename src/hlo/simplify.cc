// One walk forwards that rewrites nodes and merges equal ones, one backwards that removes what is not used. Both are linear.
#include <algorithm>
#include <unordered_map>

#include "hlo/elements.h"
#include "hlo/hash.h"
#include "hlo/regions.h"
#include "hlo/rewrite.h"

namespace flambeau::hlo {
namespace {

// ---- forwards
// -----------------------------------------------------------------------------------------------------------------

// Barriers exist to keep equal computations apart; calls and communication may do more than give a value.
bool may_merge(const Node& node) {
  if (node.results.empty() || node.op == Op::OptimizationBarrier || node.op == Op::CustomCall ||
      node.op == Op::ManualComputation)
    return false;
  if (node.op > Op::ShardingConstraint) return false;
  return node.regions.empty() || has_closed_regions(node.op);
}

uint64_t hash_of(const Node& node) {
  Hasher hasher;
  hasher.add(node.op).add(node.operands.size());
  for (Value operand : node.operands) hasher.add(operand.id());
  for (Value result : node.results) add_type(hasher, result.type());
  add_attributes(hasher, node);
  for (const auto& region : node.regions) StructureHasher(hasher).add(*region);
  return hasher.value();
}

bool equal(const Node& a, const Node& b) {
  if (a.op != b.op || a.operands != b.operands || a.attributes != b.attributes || a.results.size() != b.results.size())
    return false;
  for (size_t i = 0; i < a.results.size(); ++i)
    if (a.results[i].type() != b.results[i].type()) return false;
  for (size_t i = 0; i < a.regions.size(); ++i)
    if (!equal_regions(*a.regions[i], *b.regions[i])) return false;
  return true;
}

class Forward {
 public:
  explicit Forward(Graph& graph) : graph_(graph) {}

  // `outer` holds the nodes of the blocks around that this one may use.
  struct Scope {
    const Scope* outer = nullptr;
    std::unordered_multimap<uint64_t, Node*> seen = {};
  };

  void run(Block& block, const Scope* outer) {
    Scope scope{outer};
    scope.seen.reserve(block.nodes.size());
    std::vector<std::unique_ptr<Node>> kept;
    kept.reserve(block.nodes.size());
    for (auto& node : block.nodes)
      if (visit(*node, scope))
        kept.push_back(std::move(node));
      else
        graph_.retire(*node);
    block.nodes = std::move(kept);
    for (Value& result : block.results) result = graph_.resolve(result);
  }

 private:
  // False when the node's results have been replaced.
  bool visit(Node& node, Scope& scope) {
    for (Value& operand : node.operands) operand = graph_.resolve(operand);
    for (const auto& region : node.regions) run(*region, has_closed_regions(node.op) ? nullptr : &scope);
    if (Value value = rewrite(graph_, node)) {
      graph_.replace(node.results[0], value);
      return false;
    }
    if (!may_merge(node)) return true;
    const uint64_t hash = hash_of(node);
    if (const Node* twin = find(node, hash, scope)) {
      for (size_t i = 0; i < node.results.size(); ++i) graph_.replace(node.results[i], twin->results[i]);
      return false;
    }
    scope.seen.emplace(hash, &node);
    return true;
  }

  // Constants stay where they are used: from outside, a loop would carry them as data.
  const Node* find(const Node& node, uint64_t hash, const Scope& innermost) const {
    const bool local = node.operands.empty();
    for (const Scope* scope = &innermost; scope; scope = local ? nullptr : scope->outer) {
      auto [first, last] = scope->seen.equal_range(hash);
      for (; first != last; ++first)
        if (equal(node, *first->second)) return first->second;
    }
    return nullptr;
  }

  Graph& graph_;
};

// ---- backwards
// ----------------------------------------------------------------------------------------------------------------

class Backward {
 public:
  explicit Backward(Graph& graph) : graph_(graph), used_(graph.value_count()) {}

  void run(Block& block) {
    use(block.results);
    for (auto node = block.nodes.rbegin(); node != block.nodes.rend(); ++node) {
      if (!is_needed(**node)) {
        graph_.retire(**node);
        node->reset();
        continue;
      }
      use((*node)->operands);
      for (const auto& region : (*node)->regions) run(*region);
    }
    std::erase_if(block.nodes, [](const auto& node) { return !node; });
  }

 private:
  bool is_needed(const Node& node) const {
    return std::any_of(node.results.begin(), node.results.end(), [&](Value v) { return used_[v.id()]; }) || has_effect(node);
  }
  static bool has_effect(const Node& node) {
    if (node.op == Op::CustomCall) return attribute<bool>(node, "has_side_effect");
    for (const auto& region : node.regions)
      for (const auto& inner : region->nodes)
        if (has_effect(*inner)) return true;
    return false;
  }
  void use(const std::vector<Value>& values) {
    for (Value v : values) used_[v.id()] = true;
  }

  Graph& graph_;
  std::vector<bool> used_;  // by value
};

}  // namespace

void simplify(Graph& graph) {
  Forward(graph).run(graph.body(), nullptr);
  Backward(graph).run(graph.body());
}

}  // namespace flambeau::hlo
