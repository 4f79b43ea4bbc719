// Conditions on data that PyTorch raises for and that a program can only compute: an index out of range, a negative
// probability.
//
// A lowering says check(b, all_ok, message). It costs nothing unless someone who builds a program listens:
//
//   CheckScope scope;                 // collects what the lowerings below say
//   ... lower ops into one graph ...
//   for (auto& [failed, error] : scope.checks()) ...   // failed: rank-0 Pred in that graph; make a flag word of them
//
// Without a listener an index out of range is clamped or its update dropped, as XLA does it. Bodies of loops are graphs of
// their own whose values cannot leave them: wrap their construction in a NoChecks. Scopes nest as blocks do, on one thread;
// the innermost one alone listens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hlo/builder.h"

namespace flambeau::ops {

// The class of PyTorch's error.
enum class Raises : uint8_t { RuntimeError, IndexError };

struct CheckError {
  std::string message;
  Raises raises = Raises::RuntimeError;
};

struct Check {
  hlo::Value failed;  // rank-0 Pred
  CheckError error;
};

class CheckScope {
 public:
  CheckScope() : CheckScope(true) {}
  ~CheckScope();
  CheckScope(const CheckScope&) = delete;
  CheckScope& operator=(const CheckScope&) = delete;
  const std::vector<Check>& checks() const { return checks_; }

 protected:
  explicit CheckScope(bool listens);

 private:
  friend void check(hlo::Builder& b, hlo::Value all_ok, std::string message, Raises raises);
  friend bool checks_wanted();
  bool listens_;
  CheckScope* outer_;
  std::vector<Check> checks_;
};

class NoChecks : CheckScope {
 public:
  NoChecks() : CheckScope(false) {}
};

// Whether anyone listens: skip building an expensive condition otherwise.
bool checks_wanted();

// `all_ok`: a Pred of any shape, every element of which must hold. PyTorch's own words for `message`.
void check(hlo::Builder& b, hlo::Value all_ok, std::string message, Raises raises = Raises::RuntimeError);

}  // namespace flambeau::ops
