// The programs compiled in this process, found by what they compute.
//
// Threads: every function may be called from any thread. Compilation holds no lock; requests for one program compile it once, and all of
// them get it.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "runtime/counters.h"
#include "runtime/devices.h"
#include "runtime/program.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

class ProgramCache {
 public:
  ProgramCache(const Devices& devices, Counters& counters);

  // What makes `outputs` of a trace, compiled now unless it is here. `aliases`: (external, index into `outputs`) pairs that may share a
  // buffer. `shardings`: of the outputs, with a mesh. `name` becomes the module's.
  std::shared_ptr<const Program> get(const Trace& trace, std::span<const ValueId> outputs,
                                     std::span<const std::pair<size_t, size_t>> aliases, std::string_view name,
                                     std::span<const hlo::Sharding> shardings);

  // What the compiler is told of every program from then on, before what is preferred for the target (targets/compile_options.h).
  void set_compile_options(pjrt::CompileFlags options);
  // Lets go of all programs; those that are in use stay with their users. For who makes many and runs none: a planner.
  void forget();

 private:
  struct AskedOptions {
    pjrt::CompileFlags flags;
    uint64_t hash = 0;  // part of every program's key
  };
  using ProgramFuture = std::shared_future<std::shared_ptr<const Program>>;

  std::shared_ptr<const Program> compile(const Trace& trace, std::span<const ValueId> outputs,
                                         std::span<const std::pair<size_t, size_t>> aliases, std::string_view name,
                                         std::span<const hlo::Sharding> shardings, const pjrt::CompileFlags& asked) const;
  pjrt::CompileOptions compile_options(const DeviceMesh* mesh, const pjrt::CompileFlags& asked) const;

  const Devices& devices_;
  Counters& counters_;
  const pjrt::CompileFlags preferred_options_;
  std::mutex mutex_;
  std::shared_ptr<const AskedOptions> asked_;
  std::unordered_map<Key, ProgramFuture, KeyHash> programs_;
};

}  // namespace flambeau::runtime
