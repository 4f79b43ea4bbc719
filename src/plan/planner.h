// What a configuration needs on a pod: the program that training would run there is recorded, compiled by TPU's compiler in a child
// process, read back and reported. Where that compiler is not installed, the recorded program is analysed instead (analytic/analytic.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "plan/pod/pod.h"
#include "plan/program.h"
#include "plan/report/report.h"
#include "train/config.h"

namespace flambeau::plan {

struct PlanOptions {
  bool full = false;      // the whole compilation, minutes, instead of its first phase, seconds
  bool analytic = false;  // without TPU's compiler, as if it were not installed
  std::string plugin = {};  // as pjrt::find_plugin takes it; empty: TPU's
  std::chrono::seconds time_limit{1800};  // of a compilation
  int64_t memory_limit = 0;               // bytes, of a compilation; 0: what the machine has
  std::optional<double> price_per_chip_hour = {};
  double training_tokens = 0;  // "days to N tokens"; 0: not asked
};

// A configuration's step as it is before anything is compiled, and what a report says of it already.
struct Draft {
  train::Config config;
  StepProgram step;
  Report report;
};

class Planner {
 public:
  // One pod a process: programs are recorded for its devices. InvalidArgument for options that contradict each other.
  Planner(Pod pod, PlanOptions options);

  const Pod& pod() const { return pod_; }
  // Whether there is a compiler; otherwise plans are analytic, and `why_analytic` says why where that was not asked for.
  bool compiles() const { return !plugin_.empty(); }
  const std::string& why_analytic() const { return why_analytic_; }

  // Of the pod and the compiler: programs with equal texts and options compile alike where it is equal.
  uint64_t fingerprint() const;

  // Records; on one thread at a time. InvalidArgument, led by the file, for what `train` would refuse.
  Draft record(const train::Config& config) const;
  // The report, without changes to propose. On any thread, several at a time. `goes_on` as pjrt::TopologyJob's. A program that does
  // not fit is no error. PluginError when the compiler refuses it, crashes, or runs out of time or memory.
  Report compile(const Draft& draft, const std::function<bool()>& goes_on = {}) const;
  // The same from the recorded program alone.
  Report analyse(const Draft& draft) const;

 private:
  Pod pod_;
  PlanOptions options_;
  std::filesystem::path plugin_;  // of the compiler; empty: none
  std::string why_analytic_;
};

}  // namespace flambeau::plan
