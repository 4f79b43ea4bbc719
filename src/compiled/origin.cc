#include "compiled/origin.h"

namespace flambeau::compiled {
namespace {

constexpr int64_t kMostSteps = 2'000'000;  // for all that is asked; programs need a few thousand

// A tuple of what an asynchronous operation works on, or its end.
bool hands_on_alone(std::string_view opcode) {
  return is_one_of(opcode, {"copy-start", "copy-done", "async-done"});
}

bool is_inlined(const Instruction& i) {
  return i.called.size() == 1 && (i.opcode == "fusion" || i.opcode == "call" || i.opcode == "async-start");
}

}  // namespace

const Scope& Origins::enter(const Place& call, size_t which) {
  scopes_.push_back({callee(module_, *call, which), call.scope, &*call});
  return scopes_.back();
}

std::optional<Place> Origins::step(const Place& from) {
  const Instruction& i = *from;
  const Scope& scope = *from.scope;
  std::vector<int64_t> element = from.element;
  if (i.opcode == "get-tuple-element" && i.operands.size() == 1) {
    element.insert(element.begin(), i.tuple_index);
    return Place{&scope, i.operands[0], std::move(element)};
  }
  if (i.opcode == "tuple") {
    if (element.empty() || element[0] < 0 || static_cast<size_t>(element[0]) >= i.operands.size()) return std::nullopt;
    const int operand = i.operands[static_cast<size_t>(element[0])];
    element.erase(element.begin());
    return Place{&scope, operand, std::move(element)};
  }
  if (hands_on(i.opcode) && !i.operands.empty()) return Place{&scope, i.operands[0], std::move(element)};
  if (hands_on_alone(i.opcode) && !i.operands.empty()) return Place{&scope, i.operands[0], {}};
  if (is_inlined(i)) {
    const Scope& inner = enter(from);
    return Place{&inner, inner.computation.root, std::move(element)};
  }
  if (i.opcode == "parameter" && scope.call != nullptr && is_inlined(*scope.call)) {
    const auto number = static_cast<size_t>(i.parameter_number);
    if (number < scope.call->operands.size()) return Place{scope.caller, scope.call->operands[number], std::move(element)};
  }
  return std::nullopt;
}

std::optional<Place> Origins::follow(Place from, std::vector<Place>* trail) {
  while (++steps_ <= kMostSteps) {
    if (trail != nullptr) trail->push_back(from);
    auto next = step(from);
    if (!next) return from;
    from = std::move(*next);
  }
  return std::nullopt;
}

}  // namespace flambeau::compiled
