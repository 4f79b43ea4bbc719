// What a configuration needs on a pod: the program that training would run there is recorded, compiled by TPU's compiler in a child
// process, read back and reported.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "plan/report.h"
#include "train/config.h"

namespace flambeau::plan {

struct PlanOptions {
  std::string topology;                 // as users name pods: "v5e:4x4", "v5p-2048"
  int64_t slices = 1;
  bool full = false;                    // the whole compilation instead of its first phase
  std::chrono::seconds time_limit{600};
  std::filesystem::path write_program;  // the StableHLO text goes there; empty: nowhere
};

Report plan(const train::Config& config, const PlanOptions& options);

}  // namespace flambeau::plan
