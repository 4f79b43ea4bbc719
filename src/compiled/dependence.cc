#include "compiled/dependence.h"

#include <utility>

#include "base/error.h"
#include "compiled/analysis.h"
#include "compiled/scope.h"

namespace flambeau::compiled {
namespace {

constexpr int64_t kMostVisits = 5'000'000;  // of values and their elements
constexpr int kDeepest = 200;

// A value: of a tuple whose elements are known apart, these.
struct Value {
  Dependence all;
  std::vector<Value> parts;
  int64_t size = 1;  // with all elements of elements
};

// Makes `to` depend on `from` too; whether that is news.
bool add(Dependence& to, const Dependence& from) {
  const Dependence before = to;
  to.bits |= from.bits;
  if (to.parameter == Dependence::kNone) to.parameter = from.parameter;
  else if (from.parameter != Dependence::kNone && from.parameter != to.parameter) to.parameter = Dependence::kSeveral;
  return to.bits != before.bits || to.parameter != before.parameter;
}

bool add(Value& to, const Value& from) {
  bool news = add(to.all, from.all);
  if (from.parts.size() != to.parts.size()) {  // seen as a whole from here on
    for (Value& part : to.parts) news |= add(part.all, from.all);
    return news;
  }
  for (size_t i = 0; i < to.parts.size(); ++i) news |= add(to.parts[i], from.parts[i]);
  return news;
}

class Evaluator {
 public:
  explicit Evaluator(const Module& module) : module_(module) {}

  Value run(const Computation& computation, const std::vector<Value>& arguments, int depth) {
    if (depth > kDeepest) raise<InvalidArgument>("[compiled.dependence] expected calls at most {} deep", kDeepest);
    std::vector<Value> values(computation.instructions.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = evaluate(computation.instructions[i], values, arguments, depth);
      std::vector<int64_t> element;
      record(computation.instructions[i].name, values[i], element);
    }
    return values[static_cast<size_t>(computation.root)];
  }

  std::unordered_map<std::string, Dependence> take() { return std::move(known_); }

 private:
  Value evaluate(const Instruction& i, const std::vector<Value>& values, const std::vector<Value>& arguments, int depth) {
    auto operand = [&](size_t which) -> const Value& { return values[static_cast<size_t>(i.operands[which])]; };
    const size_t operands = i.operands.size();
    if (i.opcode == "parameter") {
      const auto number = static_cast<size_t>(i.parameter_number);
      return number < arguments.size() ? arguments[number] : Value{};
    }
    if (i.opcode == "get-tuple-element" && operands == 1) {
      const auto which = static_cast<size_t>(i.tuple_index);
      return which < operand(0).parts.size() ? operand(0).parts[which] : Value{.all = operand(0).all, .parts = {}};
    }
    if (i.opcode == "while" && i.called.size() == 2 && operands == 1) return run_loop(i, operand(0), depth);
    Value value;
    for (size_t which = 0; which < operands; ++which) add(value.all, operand(which).all);
    if (i.opcode == "tuple") {
      for (size_t which = 0; which < operands; ++which) value.size += operand(which).size;
      count(value.size);
      for (size_t which = 0; which < operands; ++which) value.parts.push_back(operand(which));
    } else if ((i.opcode == "copy" || i.opcode == "bitcast" || i.opcode == "optimization-barrier") && operands == 1) {
      return operand(0);
    } else if (i.opcode == "call" && i.called.size() == 1) {
      std::vector<Value> inner;
      for (size_t which = 0; which < operands; ++which) inner.push_back(operand(which));
      return run(callee(module_, i), inner, depth + 1);
    }
    return value;
  }

  // Until an iteration brings no news: it only ever adds.
  Value run_loop(const Instruction& loop, Value state, int depth) {
    while (add(state, run(callee(module_, loop, 0), {state}, depth + 1))) {
    }
    return state;
  }

  // A tuple of tuples of one value is small as text and large when written out.
  void count(int64_t values) {
    visits_ += values;
    if (visits_ > kMostVisits) raise<InvalidArgument>("[compiled.dependence] expected at most {} values in tuples and iterations", kMostVisits);
  }

  // `element`: the way to it, unchanged when this returns.
  void record(const std::string& name, const Value& value, std::vector<int64_t>& element) {
    count(1);
    add(known_[value_name(name, element)], value.all);
    for (size_t i = 0; i < value.parts.size(); ++i) {
      element.push_back(static_cast<int64_t>(i));
      record(name, value.parts[i], element);
      element.pop_back();
    }
  }

  const Module& module_;
  int64_t visits_ = 0;
  std::unordered_map<std::string, Dependence> known_;
};

}  // namespace

std::unordered_map<std::string, Dependence> dependence(const Module& module, const std::vector<uint32_t>& bits) {
  std::vector<Value> arguments;
  for (size_t number = 0; number < bits.size(); ++number)
    arguments.push_back({.all = {bits[number], static_cast<int64_t>(number)}, .parts = {}});
  Evaluator evaluator(module);
  evaluator.run(module.entry_computation(), arguments, 0);
  return evaluator.take();
}

}  // namespace flambeau::compiled
