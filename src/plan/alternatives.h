// Other configurations beside the one that is planned: changes that save memory, and compiling several at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plan/planner.h"

namespace flambeau::plan {

// Configuration keys and values, as the command line takes them.
using Keys = std::vector<std::pair<std::string, std::string>>;

// `config` with those keys set. InvalidArgument as the command line would raise.
train::Config with_keys(const train::Config& config, const Keys& keys);
std::string describe(const Keys& keys);  // "training.sequences_per_microbatch = 2, loss.chunks = 32"

// Keys that make a microbatch `rows` sequences a data-parallel rank and a step `rows_per_step` sequences in all, said the way
// (in tokens or in sequences) in which the configuration says it.
Keys batch_keys(const train::Config& config, int64_t rows, int64_t rows_per_step);

// How the compilations of a plan are run and followed.
struct Progress {
  std::function<bool()> goes_on;                        // asked often; false gives everything up (pjrt::Cancelled)
  std::function<void(size_t done, size_t all)> report;  // after each
};

struct Outcome {
  Report report;
  std::string failure;  // why there is no report; one line
};
// In the order of the drafts, several at a time: as many as cores and free memory allow. `done`, where there is one, is told of each as it
// ends, one at a time.
std::vector<Outcome> compile_all(const Planner& planner, const std::vector<Draft>& drafts, const Progress& progress,
                                 const std::function<void(size_t index, const Outcome& outcome)>& done = {});

// What would make a step that does not fit need less, each change alone and compiled, the one that saves most first; behind them, where no
// one of them is enough, the fewest together that are.
std::vector<Change> memory_changes(const Planner& planner, const Draft& draft, const Report& report, const Progress& progress);

}  // namespace flambeau::plan
