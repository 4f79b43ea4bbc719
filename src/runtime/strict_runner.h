// Strict eager mode: each op call is a program of its own, compiled once for each signature and launched at once, asynchronously. In a
// thread that records, the call is added to its trace instead.
//
// Threads: every function may be called from any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/counters.h"
#include "runtime/devices.h"
#include "runtime/launcher.h"
#include "runtime/program_cache.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

struct CallOutput {
  std::optional<Type> type;          // none: the op does not give this output
  std::shared_ptr<Storage> storage;  // null when it was written into a given tensor
};

class StrictRunner {
 public:
  StrictRunner(const Devices& devices, ProgramCache& programs, Launcher& launcher, Counters& counters)
      : devices_(devices), programs_(programs), launcher_(launcher), counters_(counters) {}

  // Runs or records one op. Output i is written into `into[i]` where there is one (its shape must be the result's; the dtype is
  // converted), else it gets a storage of its own. `random` is asked by random ops. It runs where its tensors lie, or without any on the
  // default mesh; InvalidArgument where they do not lie together.
  std::vector<CallOutput> call(const ops::Row& row, std::span<const CallArgument> arguments,
                               std::span<const std::optional<TensorRef>> into, RandomSource* random, std::string site);
  // The types that call() would give.
  std::vector<std::optional<Type>> infer(const ops::Row& row, std::span<const CallArgument> arguments) const;

 private:
  const DeviceMesh* mesh_of(std::span<const CallArgument> arguments, std::span<const std::optional<TensorRef>> into) const;
  void run(Trace& trace, RandomPosition position);

  const Devices& devices_;
  ProgramCache& programs_;
  Launcher& launcher_;
  Counters& counters_;
};

}  // namespace flambeau::runtime
