#include "op_case.h"

namespace flambeau::op_test {

namespace {

std::vector<OpCase>& registry() {
  static std::vector<OpCase> cases;
  return cases;
}

}  // namespace

bool add_cases(std::vector<OpCase> cases) {
  registry().insert(registry().end(), cases.begin(), cases.end());
  return true;
}

const std::vector<OpCase>& all_cases() { return registry(); }

}  // namespace flambeau::op_test
