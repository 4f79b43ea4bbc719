// Where a value of a compiled program was made. Internal to src/compiled.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "compiled/scope.h"

namespace flambeau::compiled {

// An element of an instruction's value: of a tuple the one that the indices lead to, outermost first.
struct Place {
  const Scope* scope = nullptr;
  int instruction = 0;
  std::vector<int64_t> element;

  const Instruction& operator*() const { return scope->at(instruction); }
  bool operator==(const Place& other) const {
    return &**this == &*other && element == other.element;  // one instruction in two calls is one here
  }
};

// Follows values back through what hands them on unchanged (tuples, copies, bitcasts, conversions, fusions' parameters and
// results) to the instruction that made them: a computation, a loop, or a parameter of the loop's body or of the entry.
class Origins {
 public:
  explicit Origins(const Module& module) : module_(module) {}

  // None where there are too many steps. `trail` gets the places on the way, the first and the last among them.
  std::optional<Place> follow(Place from, std::vector<Place>* trail = nullptr);
  // The computation that an instruction calls, as it runs there.
  const Scope& enter(const Place& call, size_t which = 0);

 private:
  std::optional<Place> step(const Place& from);

  const Module& module_;
  std::deque<Scope> scopes_;
  int64_t steps_ = 0;
};

}  // namespace flambeau::compiled
