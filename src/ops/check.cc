#include "ops/check.h"

#include <numeric>

namespace flambeau::ops {

namespace {
thread_local CheckScope* innermost = nullptr;
}  // namespace

CheckScope::CheckScope(bool listens) : listens_(listens), outer_(innermost) { innermost = this; }
CheckScope::~CheckScope() { innermost = outer_; }

bool checks_wanted() { return innermost && innermost->listens_; }

void check(hlo::Builder& b, hlo::Value all_ok, std::string message, Raises raises) {
  if (!checks_wanted()) return;
  hlo::Dims dims(all_ok.dims().size());
  std::iota(dims.begin(), dims.end(), 0);
  if (!dims.empty()) all_ok = b.reduce(all_ok, dims, hlo::Reduction::And);
  innermost->checks_.push_back({b.logical_not(all_ok), {std::move(message), raises}});
}

}  // namespace flambeau::ops
