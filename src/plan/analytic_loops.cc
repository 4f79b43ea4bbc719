#include "plan/analytic_loops.h"

#include <algorithm>

#include "hlo/compiled/roles.h"
#include "hlo/elements.h"

namespace flambeau::plan {
namespace {

using hlo::Block;
using hlo::Node;
using hlo::Op;
using hlo::compiled::LoopRole;
using hlo::compiled::RoleVotes;

bool is_layers(LoopRole role) { return role == LoopRole::LayersForward || role == LoopRole::LayersBackward; }

// Of the block and all blocks inside, or only of those that are no loop's.
void count(const Block& block, bool loops_too, RoleVotes& votes) {
  for (const auto& node : block.nodes) {
    if (node->op == Op::While && !loops_too) continue;
    votes.add(node->site);
    for (const auto& region : node->regions) count(*region, loops_too, votes);
  }
}

bool holds_layers(const Block& block) {
  return std::ranges::any_of(block.nodes, [](const auto& node) {
    if (node->op != Op::While) return std::ranges::any_of(node->regions, [](const auto& r) { return holds_layers(*r); });
    RoleVotes votes;
    count(*node->regions[1], /*loops_too=*/true, votes);
    return is_layers(votes.role());
  });
}

// What goes through layers and loss is a loop around them, whatever its own operations are called.
LoopRole role_of(const Node& loop) {
  RoleVotes own, all;
  count(*loop.regions[1], /*loops_too=*/false, own);
  count(*loop.regions[1], /*loops_too=*/true, all);
  if (all.speak_of(LoopRole::Loss) && holds_layers(*loop.regions[1])) return LoopRole::Accumulation;
  return own.role() == LoopRole::Other ? all.role() : own.role();
}

}  // namespace

double trips_of(const Node& loop) {
  const hlo::Value condition = loop.regions[0]->results[0];
  const Node* compare = condition.graph()->definition(condition);
  const hlo::Literal* limit = compare && compare->op == Op::Compare ? hlo::constant_literal(compare->operands[1]) : nullptr;
  if (!limit || limit->type.dtype != DType::S32 || !limit->type.dims.empty()) return 1;
  return double(hlo::decode_integer(DType::S32, limit->bytes.data()));
}

void LoopRoles::visit(const Block& block, LoopRole around) {
  for (const auto& node : block.nodes) {
    const bool is_loop = node->op == Op::While;
    LoopRole role = around;
    if (is_loop && around == LoopRole::Other) role = role_of(*node);
    if (is_loop) roles_[node.get()] = role;
    for (const auto& region : node->regions) visit(*region, role == LoopRole::Accumulation ? LoopRole::Other : role);
  }
}

std::string place_name(LoopRole role) {
  return role == LoopRole::Other ? "outside of the layers" : std::string(hlo::compiled::name_of(role));
}

}  // namespace flambeau::plan
