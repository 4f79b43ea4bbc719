#include "plan/loop_roles.h"

#include <algorithm>
#include <utility>

#include "compiled/stacks.h"

namespace flambeau::plan {
namespace {

using compiled::Analysis;
using compiled::Loop;
using compiled::Module;
using compiled::Stack;

// What "a/backward/layers/b" says of itself.
LoopRole role_of_name(std::string_view op_name) {
  bool backward = false;
  while (!op_name.empty()) {
    const size_t slash = std::min(op_name.find('/'), op_name.size());
    const std::string_view part = op_name.substr(0, slash);
    if (part == "loss") return LoopRole::Loss;
    if (part == "layers") return backward ? LoopRole::LayersBackward : LoopRole::LayersForward;
    if (part == "backward") backward = true;
    op_name.remove_prefix(std::min(slash + 1, op_name.size()));
  }
  return LoopRole::Other;
}

const compiled::Computation& body_of(const Module& module, const Loop& loop) {
  return module.computations[static_cast<size_t>(compiled::site_of(module, loop).called[0])];
}

LoopRole role_by_names(const compiled::Computation& body) {
  RoleVotes votes;
  for (const compiled::Instruction& i : body.instructions) votes.add(i.op_name);
  return votes.role();
}

using Roles = std::vector<LoopRole>;  // of each loop

// What goes through layers and loss, iteration by iteration, is a loop around them, whatever most of its own operations are called. (A
// few may be called after anything: the compiler moves constants into loops.)
Roles roles_by_names(const Module& module, const std::vector<Loop>& loops) {
  Roles roles(loops.size());
  std::vector<bool> holds_layers(loops.size()), holds_loss(loops.size());
  for (size_t i = loops.size(); i-- > 0;) {  // inner before outer
    const LoopRole own = role_by_names(body_of(module, loops[i]));
    holds_loss[i] = holds_loss[i] || own == LoopRole::Loss;
    roles[i] = holds_layers[i] && holds_loss[i] ? LoopRole::Accumulation : own;
    if (loops[i].parent < 0) continue;
    const auto around = static_cast<size_t>(loops[i].parent);
    holds_layers[around] = holds_layers[around] || holds_layers[i] || is_layers(roles[i]);
    holds_loss[around] = holds_loss[around] || holds_loss[i];
  }
  return roles;
}

// Of the innermost loop around with a role, `loop` itself among them.
LoopRole innermost_role(const Roles& roles, const std::vector<Loop>& loops, int loop) {
  for (; loop >= 0; loop = loops[static_cast<size_t>(loop)].parent)
    if (roles[static_cast<size_t>(loop)] != LoopRole::Other) return roles[static_cast<size_t>(loop)];
  return LoopRole::Other;
}

// Stacks between loops that stand side by side and in no layer themselves tell forward from backward. Names, where there are any, say
// which loops are layers, but a forward loop that keeps everything does much of the backward's work ahead under its names.
void tell_by_structure(const std::vector<Stack>& stacks, const Analysis& analysis, Roles& roles) {
  const auto& loops = analysis.loops;
  const bool named = std::ranges::any_of(roles, is_layers);
  auto role = [&](int loop) -> LoopRole& { return roles[static_cast<size_t>(loop)]; };
  std::vector<const Stack*> outer_first;
  for (const Stack& stack : stacks) outer_first.push_back(&stack);
  std::sort(outer_first.begin(), outer_first.end(), [&](const Stack* a, const Stack* b) {
    return std::pair(analysis.nest(a->writer).size(), a) < std::pair(analysis.nest(b->writer).size(), b);
  });
  for (const Stack* stack : outer_first) {
    const int parent = loops[static_cast<size_t>(stack->writer)].parent;
    if (parent != loops[static_cast<size_t>(stack->reader)].parent || is_layers(innermost_role(roles, loops, parent))) continue;
    if (named && !(is_layers(role(stack->writer)) && is_layers(role(stack->reader)))) continue;
    role(stack->writer) = LoopRole::LayersForward;
    role(stack->reader) = LoopRole::LayersBackward;
  }
  if (named) return;
  // What stands between them is the loss.
  for (size_t i = 0; i < loops.size(); ++i) {
    if (roles[i] != LoopRole::Other) continue;
    bool forward_before = false, backward_after = false;
    for (size_t other = 0; other < loops.size(); ++other) {
      if (loops[other].parent != loops[i].parent) continue;
      forward_before |= other < i && roles[other] == LoopRole::LayersForward;
      backward_after |= other > i && roles[other] == LoopRole::LayersBackward;
    }
    if (forward_before && backward_after) roles[i] = LoopRole::Loss;
  }
}

}  // namespace

std::string_view place_of(LoopRole role) {
  switch (role) {
    case LoopRole::Other: return "outside of the layers";
    case LoopRole::LayersForward: return "layers, forward";
    case LoopRole::LayersBackward: return "layers, backward";
    case LoopRole::Loss: return "loss";
    case LoopRole::Accumulation: return "accumulation";
  }
  return "";
}

void RoleVotes::add(std::string_view op_name) { ++votes_[static_cast<size_t>(role_of_name(op_name))]; }

LoopRole RoleVotes::role() const {
  const size_t forward = votes_[static_cast<size_t>(LoopRole::LayersForward)],
               backward = votes_[static_cast<size_t>(LoopRole::LayersBackward)],
               loss = votes_[static_cast<size_t>(LoopRole::Loss)];
  if (loss > forward + backward) return LoopRole::Loss;
  if (forward + backward == 0) return LoopRole::Other;
  return 4 * backward >= forward ? LoopRole::LayersBackward : LoopRole::LayersForward;
}

LoopRoles loop_roles(const Module& module, const Analysis& analysis) {
  const auto& loops = analysis.loops;
  const std::vector<Stack> stacks = compiled::find_stacks(module, analysis);
  LoopRoles result;
  Roles roles = roles_by_names(module, loops);
  tell_by_structure(stacks, analysis, roles);
  for (size_t i = 0; i < loops.size(); ++i) {
    if (loops[i].parent < 0 || !is_layers(roles[i])) continue;
    LoopRole& around = roles[static_cast<size_t>(loops[i].parent)];
    if (around == LoopRole::Other) around = LoopRole::Accumulation;
  }
  for (size_t i = 0; i < loops.size(); ++i) result.innermost.push_back(innermost_role(roles, loops, static_cast<int>(i)));
  for (const Stack& stack : stacks) {
    const bool saved = roles[static_cast<size_t>(stack.writer)] == LoopRole::LayersForward &&
                       roles[static_cast<size_t>(stack.reader)] == LoopRole::LayersBackward;
    if (saved) result.saved_activations.insert(stack.names.begin(), stack.names.end());
  }
  return result;
}

}  // namespace flambeau::plan
