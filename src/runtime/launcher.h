// Running programs: arguments in, results out, and what launched programs may still have to say (in_flight.h).
//
// Threads: every function may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/counters.h"
#include "runtime/devices.h"
#include "runtime/in_flight.h"
#include "runtime/program.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

struct Launch {
  std::span<const std::shared_ptr<const Array>> externals;  // by external of the trace; null where it has no elements
  std::span<const RecordedNumber> numbers = {};
  RandomPosition random = {};
};

// A storage that gets an output of a program.
struct OutputStorage {
  std::shared_ptr<Storage> storage;
  size_t output;
};

class Launcher {
 public:
  Launcher(const Devices& devices, Counters& counters) : devices_(devices), counters_(counters) {}

  // Launches `program` and gives its outputs to `targets`. Aliased parameters may take over the arrays of `sources`: the storages behind
  // the externals (null: none), whose arrays `launch` holds once. A launch that fails changes nothing; a storage whose array it took
  // all the same raises `failure` and the reason.
  void run(const Program& program, const Launch& launch, std::span<const std::shared_ptr<Storage>> sources,
           std::span<const OutputStorage> targets, std::string_view failure = {});
  // The outputs alone; null where there are no elements. Who asks for them waits for them.
  std::vector<std::shared_ptr<const Array>> outputs(const Program& program, const Launch& launch);

  // Waits for everything that was launched, and raises the first failure with the number of the others.
  void synchronize() { in_flight_.wait_for_all(); }
  // Debug mode: every launch is awaited, and its failed checks are raised by the call itself.
  void set_debug(bool on) { debug_ = on; }
  bool debug() const { return debug_; }

 private:
  struct Launched {
    std::vector<std::shared_ptr<const Array>> outputs;
    InFlightLaunch launch;
  };
  Launched launch(const Program& program, const Launch& launch, std::span<const int64_t> kept);
  std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> execute(const Program& program, const Launch& launch,
                                                                  std::span<const int64_t> kept);
  std::vector<int64_t> offer(Handover& handover, const Program& program, std::span<const std::shared_ptr<Storage>> sources,
                             std::span<const std::shared_ptr<const Array>> externals);
  void finish(InFlightLaunch launch);

  const Devices& devices_;
  Counters& counters_;
  std::atomic<bool> debug_{false};
  InFlight in_flight_;
  std::mutex mesh_launch_mutex_;
  std::vector<pjrt::Event> mesh_in_flight_;  // of the last program on virtual devices
};

}  // namespace flambeau::runtime
