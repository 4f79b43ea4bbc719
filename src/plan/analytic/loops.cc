#include "plan/analytic/loops.h"

#include <algorithm>
#include <vector>

#include "hlo/elements.h"

namespace flambeau::plan {
namespace {

using hlo::Block;
using hlo::Node;
using hlo::Op;

// Of the block but for its loops, or with them.
void count(const Block& block, bool loops_too, RoleVotes& votes) {
  for (const auto& node : block.nodes) {
    if (node->op == Op::While && !loops_too) continue;
    votes.add(node->site);
    for (const auto& region : node->regions) count(*region, loops_too, votes);
  }
}

LoopRole role_by_sites(const Block& body) {
  RoleVotes own, all;
  count(body, /*loops_too=*/false, own);
  if (own.role() != LoopRole::Other) return own.role();
  count(body, /*loops_too=*/true, all);
  return all.role();
}

void find_loops(const Block& block, std::vector<LoopRole>& roles) {
  for (const auto& node : block.nodes) {
    if (node->op == Op::While) roles.push_back(role_by_sites(*node->regions[1]));
    else
      for (const auto& region : node->regions) find_loops(*region, roles);
  }
}

// What goes through layers and loss is a loop around them, whatever most of its own operations are called.
LoopRole role_of(const Node& loop) {
  const LoopRole own = role_by_sites(*loop.regions[1]);
  std::vector<LoopRole> inside;
  find_loops(*loop.regions[1], inside);
  const auto holds = [&](LoopRole role) { return std::ranges::find(inside, role) != inside.end(); };
  const bool layers = holds(LoopRole::LayersForward) || holds(LoopRole::LayersBackward);
  return layers && (own == LoopRole::Loss || holds(LoopRole::Loss)) ? LoopRole::Accumulation : own;
}

}  // namespace

double trips_of(const Node& loop) {
  const hlo::Value condition = loop.regions[0]->results[0];
  const Node* compare = condition.graph()->definition(condition);
  const hlo::Literal* limit = compare && compare->op == Op::Compare ? hlo::constant_literal(compare->operands[1]) : nullptr;
  if (!limit || limit->type.dtype != DType::S32 || !limit->type.dims.empty()) return 1;
  return double(hlo::decode_integer(DType::S32, limit->bytes.data()));
}

void RecordedRoles::visit(const Block& block, LoopRole around) {
  for (const auto& node : block.nodes) {
    const bool is_loop = node->op == Op::While;
    LoopRole role = around;
    if (is_loop && around == LoopRole::Other) role = role_of(*node);
    if (is_loop) roles_[node.get()] = role;
    for (const auto& region : node->regions) visit(*region, role == LoopRole::Accumulation ? LoopRole::Other : role);
  }
}

}  // namespace flambeau::plan
