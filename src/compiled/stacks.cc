#include "compiled/stacks.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "compiled/origin.h"

namespace flambeau::compiled {
namespace {

constexpr int kDeepestFusion = 20;

class Finder {
 public:
  Finder(const Module& module, const std::vector<Loop>& loops) : module_(module), origins_(module) {
    for (const Loop& loop : loops) {
      const Computation& outer = module.computations[loop.computation];
      loops_.push_back(&site_of(module, loop));
      outers_.push_back({outer});
      bodies_.push_back({callee(module, *loops_.back()), nullptr, loops_.back()});
      parameters_.push_back(parameter_of(bodies_.back()));
    }
  }

  std::vector<Stack> find() {
    std::vector<Stack> found;
    for (int reader = 0; reader < static_cast<int>(loops_.size()); ++reader) {
      for (const int64_t read : sliced(reader)) {
        if (loops_[index(reader)]->operands.empty() || !is_invariant(reader, read)) continue;
        std::vector<Place> trail;  // from the reader's state back to the writer
        const auto made = origins_.follow({&outers_[index(reader)], loops_[index(reader)]->operands[0], {read}}, &trail);
        if (!made || made->element.size() != 1) continue;
        const auto writer = std::find(loops_.begin(), loops_.end(), &**made);
        if (writer == loops_.end()) continue;
        Stack stack{.writer = static_cast<int>(writer - loops_.begin()), .reader = reader, .names = {}};
        const int64_t written = made->element[0];
        if (!is_updated(stack.writer, written)) continue;
        for (const Place& place : trail) stack.names.insert(value_name((*place).name, place.element));
        add_state(stack.writer, written, stack.names);
        add_state(reader, read, stack.names);
        found.push_back(std::move(stack));
      }
    }
    return found;
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

  std::optional<Place> after_iteration(int loop, int64_t element) {
    const Scope& body = bodies_[index(loop)];
    return parameters_[index(loop)] < 0 ? std::nullopt : origins_.follow({&body, body.computation.root, {element}});
  }

  bool is_invariant(int loop, int64_t element) {
    const auto after = after_iteration(loop, element);
    return after && *after == state_in(loop, element);
  }

  // Whether an iteration replaces a slice of the element and leaves the rest.
  bool is_updated(int loop, int64_t element) {
    const auto after = after_iteration(loop, element);
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
    const Instruction& site = *loops_[index(loop)];
    names.insert(value_name(site.name, {element}));
    for (size_t which = 0; which < site.called.size(); ++which) {
      const Scope scope{callee(module_, site, which)};
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
  std::vector<const Instruction*> loops_;
  std::deque<Scope> outers_, bodies_;  // of each loop
  std::vector<int> parameters_;        // of each body: its state; -1: none
  int64_t visits_ = 0;
};

}  // namespace

std::vector<Stack> find_stacks(const Module& module, const Analysis& analysis) { return Finder(module, analysis.loops).find(); }

}  // namespace flambeau::compiled
