#include "hlo/compiled/roles.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "hlo/compiled/origin.h"

namespace flambeau::hlo::compiled {
namespace {

constexpr int kDeepestFusion = 20;

// ---- names --------------------------------------------------------------------------------------------------------------

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

LoopRole role_by_names(const Computation& body) {
  RoleVotes votes;
  for (const Instruction& i : body.instructions) votes.add(i.op_name);
  return votes.role();
}

// ---- structure ----------------------------------------------------------------------------------------------------------

// A value that `writer` stacks up as element `written` of its state and `reader` takes slices of as its element `read`.
struct Stack {
  int writer, reader;
  int64_t written, read;
  std::vector<Place> trail;  // from the reader's state back to the writer
};

class Structure {
 public:
  Structure(const Module& module, const std::vector<LoopSite>& sites) : module_(module), origins_(module), sites_(sites) {
    for (const LoopSite& site : sites) {
      outers_.push_back({*site.outer});
      bodies_.push_back({callee(module, *site.loop), nullptr, site.loop});
      parameters_.push_back(parameter_of(bodies_.back()));
    }
  }

  std::vector<Stack> stacks() {
    std::vector<Stack> found;
    for (int reader = 0; reader < static_cast<int>(sites_.size()); ++reader) {
      for (const int64_t element : sliced(reader)) {
        if (sites_[index(reader)].loop->operands.empty() || !is_invariant(reader, element)) continue;
        Stack stack{.writer = -1, .reader = reader, .written = 0, .read = element, .trail = {}};
        const Place state{&outers_[index(reader)], sites_[index(reader)].loop->operands[0], {element}};
        const auto made = origins_.follow(state, &stack.trail);
        if (!made || made->element.size() != 1) continue;
        const auto writer = std::find_if(sites_.begin(), sites_.end(), [&](const LoopSite& s) { return s.loop == &**made; });
        if (writer == sites_.end()) continue;
        stack.writer = static_cast<int>(writer - sites_.begin());
        stack.written = made->element[0];
        if (is_updated(stack.writer, stack.written)) found.push_back(std::move(stack));
      }
    }
    return found;
  }

  // All names of a stack's memory: of the loops' states, inside and outside, and of what leads from one to the other.
  void name(const Stack& stack, std::set<std::string>& names) const {
    auto add = [&](const Place& place) { names.insert(value_name((*place).name, place.element)); };
    for (const Place& place : stack.trail) add(place);
    add_state(stack.writer, stack.written, names);
    add_state(stack.reader, stack.read, names);
  }

 private:
  static size_t index(int loop) { return static_cast<size_t>(loop); }

  static int parameter_of(const Scope& scope) {
    const auto& instructions = scope.computation.instructions;
    const auto found = std::find_if(instructions.begin(), instructions.end(),
                                    [](const Instruction& i) { return i.opcode == "parameter"; });
    return found == instructions.end() ? -1 : static_cast<int>(found - instructions.begin());
  }

  Place state_in(int loop, int64_t element) const { return {&bodies_[index(loop)], parameters_[index(loop)], {element}}; }

  std::optional<Place> after_turn(int loop, int64_t element) {
    const Scope& body = bodies_[index(loop)];
    return parameters_[index(loop)] < 0 ? std::nullopt : origins_.follow({&body, body.computation.root, {element}});
  }

  bool is_invariant(int loop, int64_t element) {
    const auto after = after_turn(loop, element);
    return after && *after == state_in(loop, element);
  }

  // Whether a turn replaces a slice of the element and leaves the rest.
  bool is_updated(int loop, int64_t element) {
    const auto after = after_turn(loop, element);
    if (!after || (**after).opcode != "dynamic-update-slice" || (**after).operands.empty()) return false;
    const auto base = origins_.follow({after->scope, (**after).operands[0], {}});
    return base && *base == state_in(loop, element);
  }

  // Elements of the state that the body takes dynamic slices of.
  std::set<int64_t> sliced(int loop) {
    std::set<int64_t> elements;
    if (parameters_[index(loop)] >= 0) find_slices(loop, bodies_[index(loop)], 0, elements);
    return elements;
  }

  void find_slices(int loop, const Scope& scope, int depth, std::set<int64_t>& elements) {
    if (depth > kDeepestFusion) return;
    for (int at = 0; at < static_cast<int>(scope.computation.instructions.size()); ++at) {
      const Instruction& i = scope.at(at);
      if (++visits_ > kMostVisits) return;
      if (i.opcode == "dynamic-slice" && !i.operands.empty()) {
        const auto base = origins_.follow({&scope, i.operands[0], {}});
        if (base && &**base == &bodies_[index(loop)].at(parameters_[index(loop)]) && base->element.size() == 1)
          elements.insert(base->element[0]);
      } else if (runs_callees(i.opcode)) {
        for (size_t which = 0; which < i.called.size(); ++which)
          find_slices(loop, origins_.enter({&scope, at, {}}, which), depth + 1, elements);
      }
    }
  }

  void add_state(int loop, int64_t element, std::set<std::string>& names) const {
    const LoopSite& site = sites_[index(loop)];
    names.insert(value_name(site.loop->name, {element}));
    for (size_t which = 0; which < site.loop->called.size(); ++which) {
      const Scope scope{callee(module_, *site.loop, which)};
      if (const int parameter = parameter_of(scope); parameter >= 0)
        names.insert(value_name(scope.at(parameter).name, {element}));
    }
    const Instruction& root = bodies_[index(loop)].computation.root_instruction();
    if (root.opcode == "tuple" && static_cast<size_t>(element) < root.operands.size())
      names.insert(bodies_[index(loop)].at(root.operands[static_cast<size_t>(element)]).name);
  }

  static constexpr int64_t kMostVisits = 1'000'000;

  const Module& module_;
  Origins origins_;
  const std::vector<LoopSite>& sites_;
  std::deque<Scope> outers_, bodies_;  // of each loop
  std::vector<int> parameters_;        // of each body: its state; -1: none
  int64_t visits_ = 0;
};

bool is_layers(LoopRole role) { return role == LoopRole::LayersForward || role == LoopRole::LayersBackward; }

// What goes through layers and loss, turn by turn, is a loop around them, whatever most of its own operations are called. (A
// few may be called after anything: the compiler moves constants into loops.)
void assign_by_names(const Module& module, const std::vector<LoopSite>& sites, Analysis& analysis) {
  auto& loops = analysis.loops;
  std::vector<bool> holds_layers(loops.size()), holds_loss(loops.size());
  for (size_t i = loops.size(); i-- > 0;) {  // inner before outer
    const LoopRole own = role_by_names(callee(module, *sites[i].loop));
    holds_loss[i] = holds_loss[i] || own == LoopRole::Loss;
    loops[i].role = holds_layers[i] && holds_loss[i] ? LoopRole::Accumulation : own;
    if (loops[i].parent < 0) continue;
    const auto around = static_cast<size_t>(loops[i].parent);
    holds_layers[around] = holds_layers[around] || holds_layers[i] || is_layers(loops[i].role);
    holds_loss[around] = holds_loss[around] || holds_loss[i];
  }
}

// Stacks between loops that stand side by side and in no layer themselves tell forward from backward. Names, where there are any, say
// which loops are layers, but a forward loop that keeps everything does much of the backward's work ahead under its names.
void assign_by_structure(const std::vector<Stack>& stacks, Analysis& analysis) {
  auto& loops = analysis.loops;
  const bool named = std::any_of(loops.begin(), loops.end(), [](const Loop& loop) { return is_layers(loop.role); });
  auto role = [&](int loop) -> LoopRole& { return loops[static_cast<size_t>(loop)].role; };
  std::vector<const Stack*> outer_first;
  for (const Stack& stack : stacks) outer_first.push_back(&stack);
  std::sort(outer_first.begin(), outer_first.end(), [&](const Stack* a, const Stack* b) {
    return std::pair(analysis.nest(a->writer).size(), a) < std::pair(analysis.nest(b->writer).size(), b);
  });
  for (const Stack* stack : outer_first) {
    const int parent = loops[static_cast<size_t>(stack->writer)].parent;
    if (parent != loops[static_cast<size_t>(stack->reader)].parent || is_layers(analysis.role(parent))) continue;
    if (named && !(is_layers(role(stack->writer)) && is_layers(role(stack->reader)))) continue;
    role(stack->writer) = LoopRole::LayersForward;
    role(stack->reader) = LoopRole::LayersBackward;
  }
  if (named) return;
  // What stands between them is the loss.
  for (size_t i = 0; i < loops.size(); ++i) {
    if (loops[i].role != LoopRole::Other) continue;
    bool forward_before = false, backward_after = false;
    for (size_t other = 0; other < loops.size(); ++other) {
      if (loops[other].parent != loops[i].parent) continue;
      forward_before |= other < i && loops[other].role == LoopRole::LayersForward;
      backward_after |= other > i && loops[other].role == LoopRole::LayersBackward;
    }
    if (forward_before && backward_after) loops[i].role = LoopRole::Loss;
  }
}

}  // namespace

void RoleVotes::add(std::string_view op_name) { ++votes_[static_cast<size_t>(role_of_name(op_name))]; }

LoopRole RoleVotes::role() const {
  const size_t forward = votes_[static_cast<size_t>(LoopRole::LayersForward)],
               backward = votes_[static_cast<size_t>(LoopRole::LayersBackward)],
               loss = votes_[static_cast<size_t>(LoopRole::Loss)];
  if (loss > forward + backward) return LoopRole::Loss;
  if (forward + backward == 0) return LoopRole::Other;
  return 4 * backward >= forward ? LoopRole::LayersBackward : LoopRole::LayersForward;
}

void assign_roles(const Module& module, const std::vector<LoopSite>& sites, Analysis& analysis) {
  assign_by_names(module, sites, analysis);
  auto& loops = analysis.loops;
  Structure structure(module, sites);
  const std::vector<Stack> stacks = structure.stacks();
  assign_by_structure(stacks, analysis);
  for (const Loop& loop : loops) {
    if (loop.parent < 0 || !is_layers(loop.role)) continue;
    LoopRole& around = loops[static_cast<size_t>(loop.parent)].role;
    if (around == LoopRole::Other) around = LoopRole::Accumulation;
  }
  for (const Stack& stack : stacks) {
    const bool saved = loops[static_cast<size_t>(stack.writer)].role == LoopRole::LayersForward &&
                       loops[static_cast<size_t>(stack.reader)].role == LoopRole::LayersBackward;
    if (saved) structure.name(stack, analysis.saved_activations);
  }
}

}  // namespace flambeau::hlo::compiled
