// The checks on data that a program computed beside its results (ops/check.h): an index out of range, a negative probability.
//
// The values that a launch gives, and those computed from them, carry its checks until these are read: by who waits for the launch, or by
// who reads such a value on the host. A failure is raised once.
//
// Threads: every function may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/check.h"
#include "pjrt/pjrt.h"

namespace flambeau::runtime {

// The data-dependent checks of one launch.
class LaunchChecks {
 public:
  // `flags`: Pred, true where the check that raises this error failed.
  LaunchChecks(std::unique_ptr<pjrt::Buffer> flags, std::shared_ptr<const std::vector<ops::CheckError>> errors);

  // Whether nothing can come of them any more: they passed, or their failure has been raised.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Reads the flags, waiting for the launch, unless that is done. A launch that failed has no failed checks.
  void read();
  // The error of the first failed check, once; afterwards null.
  std::exception_ptr take_failure();
  bool before(const LaunchChecks& other) const { return number_ < other.number_; }

 private:
  std::mutex mutex_;
  std::unique_ptr<pjrt::Buffer> flags_;  // null: read
  std::shared_ptr<const std::vector<ops::CheckError>> errors_;
  std::exception_ptr failure_;
  std::atomic<bool> settled_{false};
  const uint64_t number_;  // by launch
};

// The checks of all launches that a value comes from, in their order.
using CheckList = std::vector<std::shared_ptr<LaunchChecks>>;
// Waits for them, and raises those that failed: OutOfRange for indices, else InvalidArgument.
void raise_failed(const CheckList& checks);

// Raises `error` as what it is, and says how many failures there are beside it.
[[noreturn]] void raise_with_count(const std::exception_ptr& error, size_t more);

}  // namespace flambeau::runtime
