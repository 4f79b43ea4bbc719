// trip_count. XLA leaves no count on most loops, so it is derived: the numbers that a condition compares are followed
// through copies, tuples and fusions to constants and to elements of the loop's state.
#include <charconv>
#include <limits>

#include "compiled/scope.h"

namespace flambeau::compiled {
namespace {

// element + offset, where `element` is one of the loop's state at the start of an iteration; a constant when there is none.
struct Form {
  std::optional<int64_t> element;
  int64_t offset = 0;
};

using Path = std::vector<int64_t>;  // which element of which element of a tuple, outermost last

std::optional<Form> add(const Form& a, const Form& b, bool negate_b) {
  if (b.element && (negate_b || a.element)) return std::nullopt;
  Form sum{a.element ? a.element : b.element, 0};
  const bool overflow = negate_b ? __builtin_sub_overflow(a.offset, b.offset, &sum.offset)
                                 : __builtin_add_overflow(a.offset, b.offset, &sum.offset);
  if (overflow) return std::nullopt;
  return sum;
}

bool passes_on(std::string_view opcode) { return hands_on(opcode) || opcode == "copy-start" || opcode == "copy-done"; }

bool calls_one(const Instruction& i) { return (i.opcode == "fusion" || i.opcode == "call") && i.called.size() == 1; }

bool is_loop(const Instruction& i) { return i.opcode == "while" && i.called.size() == 2 && i.operands.size() == 1; }

// A program may be anything: how much is followed is limited, and what is beyond is not known.
struct Budget {
  int steps = 20'000;
  int depth = 0;
};

constexpr int kDeepest = 500;

class Follower {
 public:
  Follower(const Module& module, const Instruction& loop, Budget& budget) : module_(module), loop_(loop), budget_(budget) {}

  // What the element `path` of an instruction's value is.
  std::optional<Form> follow(const Scope& scope, const Instruction& i, Path path) {
    if (--budget_.steps < 0 || budget_.depth >= kDeepest) return std::nullopt;
    ++budget_.depth;
    auto form = follow_one(scope, i, std::move(path));
    --budget_.depth;
    return form;
  }

  // What the loop's state element is after an iteration.
  std::optional<Form> after_iteration(const Scope& outer, int64_t element) {
    const Scope body{callee(module_, loop_, 0), &outer, &loop_};
    return follow(body, body.computation.root_instruction(), {element});
  }

  bool is_invariant(const Scope& outer, int64_t element) {
    const auto form = after_iteration(outer, element);
    return form && form->element == element && form->offset == 0;
  }

 private:
  std::optional<Form> follow_one(const Scope& scope, const Instruction& i, Path path) {
    const size_t operands = i.operands.size();
    if (i.opcode == "get-tuple-element" && operands == 1) {
      path.push_back(i.tuple_index);
      return follow(scope, scope.at(i.operands[0]), std::move(path));
    }
    if (i.opcode == "tuple") {
      if (path.empty() || path.back() < 0 || static_cast<size_t>(path.back()) >= operands) return std::nullopt;
      const auto which = static_cast<size_t>(path.back());
      path.pop_back();
      return follow(scope, scope.at(i.operands[which]), std::move(path));
    }
    if (passes_on(i.opcode) && operands >= 1) return follow(scope, scope.at(i.operands[0]), std::move(path));
    if (i.opcode == "parameter") return follow_parameter(scope, i, std::move(path));
    if (calls_one(i)) {
      const Scope inner{callee(module_, i), &scope, &i};
      return follow(inner, inner.computation.root_instruction(), std::move(path));
    }
    if (is_loop(i)) return follow_state(scope, i, std::move(path));
    if (!path.empty()) return std::nullopt;
    if (i.opcode == "constant" && i.integer) return Form{std::nullopt, *i.integer};
    if ((i.opcode == "add" || i.opcode == "subtract") && operands == 2) {
      const auto a = follow(scope, scope.at(i.operands[0]), {}), b = follow(scope, scope.at(i.operands[1]), {});
      if (a && b) return add(*a, *b, i.opcode == "subtract");
    }
    return std::nullopt;
  }

  std::optional<Form> follow_parameter(const Scope& scope, const Instruction& parameter, Path path) {
    if (scope.call == nullptr) return std::nullopt;  // an input of the program
    if (scope.call == &loop_) return path.size() == 1 ? std::optional(Form{path.front(), 0}) : std::nullopt;
    if (is_loop(*scope.call)) return follow_state(*scope.caller, *scope.call, std::move(path));
    const auto number = static_cast<size_t>(parameter.parameter_number);
    if (!calls_one(*scope.call) || number >= scope.call->operands.size()) return std::nullopt;
    return follow(*scope.caller, scope.caller->at(scope.call->operands[number]), std::move(path));
  }

  // An element of another loop's state: what it was before that loop, if the loop leaves it alone.
  std::optional<Form> follow_state(const Scope& outer, const Instruction& other, Path path) {
    if (path.size() != 1 || !Follower(module_, other, budget_).is_invariant(outer, path.front())) return std::nullopt;
    return follow(outer, outer.at(other.operands[0]), std::move(path));
  }

  const Module& module_;
  const Instruction& loop_;
  Budget& budget_;
};

struct Comparison {
  Form left, right;
  std::string direction;
};

std::optional<Comparison> find_comparison(const Module& module, const Scope& scope, const Instruction& i, Follower& follower,
                                          int depth = 0) {
  if (depth > kDeepest) return std::nullopt;
  if (i.opcode == "compare" && i.operands.size() == 2) {
    const auto left = follower.follow(scope, scope.at(i.operands[0]), {}),
               right = follower.follow(scope, scope.at(i.operands[1]), {});
    if (!left || !right) return std::nullopt;
    return Comparison{*left, *right, i.comparison};
  }
  if (passes_on(i.opcode) && !i.operands.empty())
    return find_comparison(module, scope, scope.at(i.operands[0]), follower, depth + 1);
  if (calls_one(i)) {
    const Scope inner{callee(module, i), &scope, &i};
    return find_comparison(module, inner, inner.computation.root_instruction(), follower, depth + 1);
  }
  return std::nullopt;
}

std::string mirrored(const std::string& direction) {
  if (direction == "LT") return "GT";
  if (direction == "LE") return "GE";
  if (direction == "GT") return "LT";
  if (direction == "GE") return "LE";
  return direction;
}

std::optional<int64_t> as_count(__int128 count) {
  if (count > std::numeric_limits<int64_t>::max()) return std::nullopt;
  return static_cast<int64_t>(count);
}

// Iterations while `value direction bound` holds and value grows by `step`.
std::optional<int64_t> count_iterations(__int128 value, __int128 step, __int128 bound, std::string_view direction) {
  if (direction == "GT" || direction == "GE") {  // the same, seen in a mirror
    value = -value;
    step = -step;
    bound = -bound;
  }
  if (direction == "LE" || direction == "GE") ++bound;
  const __int128 way = bound - value;
  if (direction == "NE") {
    if (way == 0) return 0;
    if (step == 0 || way % step != 0 || way / step < 0) return std::nullopt;
    return as_count(way / step);
  }
  if (direction == "EQ" || direction.empty()) return std::nullopt;
  if (way <= 0) return 0;
  if (step <= 0) return std::nullopt;
  return as_count((way + step - 1) / step);
}

// What some compilers leave on a loop: {"known_trip_count":{"n":"6"},...}.
std::optional<int64_t> noted_count(const std::string& backend_config) {
  constexpr std::string_view kNote = "\"known_trip_count\":{\"n\":\"";
  const size_t at = backend_config.find(kNote);
  if (at == std::string::npos) return std::nullopt;
  int64_t count = 0;
  const char* start = backend_config.data() + at + kNote.size();
  const auto [end, error] = std::from_chars(start, backend_config.data() + backend_config.size(), count);
  if (error != std::errc() || end == start || count < 0) return std::nullopt;
  return count;
}

}  // namespace

std::optional<int64_t> trip_count(const Module& module, const Scope& outer, const Instruction& loop) {
  if (!is_loop(loop)) return std::nullopt;
  if (const auto count = noted_count(loop.backend_config)) return count;
  Budget budget;
  Follower follower(module, loop, budget);
  const Scope condition{callee(module, loop, 1), &outer, &loop};
  const auto comparison = find_comparison(module, condition, condition.computation.root_instruction(), follower);
  if (!comparison) return std::nullopt;

  struct Side {
    int64_t start = 0, step = 0;
  };
  auto side = [&](const Form& form) -> std::optional<Side> {
    if (!form.element) return Side{form.offset, 0};
    const auto before = follower.follow(outer, outer.at(loop.operands[0]), {*form.element});
    const auto after = follower.after_iteration(outer, *form.element);
    if (!before || before->element || !after || after->element != form.element) return std::nullopt;
    int64_t start = 0;
    if (__builtin_add_overflow(before->offset, form.offset, &start)) return std::nullopt;
    return Side{start, after->offset};
  };
  const auto left = side(comparison->left), right = side(comparison->right);
  if (!left || !right) return std::nullopt;
  if (right->step == 0) return count_iterations(left->start, left->step, right->start, comparison->direction);
  if (left->step == 0) return count_iterations(right->start, right->step, left->start, mirrored(comparison->direction));
  return std::nullopt;
}

}  // namespace flambeau::compiled
