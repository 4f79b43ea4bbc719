// The programs that were launched and may not have run yet, and those that failed.
//
// A launch is remembered until it is known how it ended. Failures of launches and of their checks (launch_checks.h) are kept, each to be
// raised once. No launch raises another one's failure.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "pjrt/pjrt.h"
#include "runtime/launch_checks.h"

namespace flambeau::runtime {

struct InFlightLaunch {
  std::vector<pjrt::Event> ready;         // one a device of this process
  std::shared_ptr<LaunchChecks> checks;  // may be null
};

class InFlight {
 public:
  // Raises nothing. Waits where the host is thousands of launches ahead of the device.
  void add(InFlightLaunch launch);
  // Waits for everything that was added before, and raises the first failure, with the number of the others. Afterwards these are
  // forgotten.
  void wait_for_all();

 private:
  struct Failure {
    std::exception_ptr error;              // of an execution
    std::shared_ptr<LaunchChecks> checks;  // else: failed ones
  };
  void settle_ended();
  void settle(const InFlightLaunch& launch);
  void remember(Failure failure);

  std::mutex mutex_;
  std::deque<InFlightLaunch> launches_;  // in order
  size_t checked_ = 0;  // so many of them have checks
  std::vector<Failure> failures_;
  size_t more_failures_ = 0;  // that are counted only
};

}  // namespace flambeau::runtime
