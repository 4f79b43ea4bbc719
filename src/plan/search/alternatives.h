// Other configurations beside the one that is planned: changes that save memory, and compiling several at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace flambeau::plan {

// `config` with those keys set. InvalidArgument as the command line would raise.
train::Config with_keys(const train::Config& config, const Keys& keys);

// Keys that make a microbatch `rows` sequences a data-parallel rank and a step `rows_per_step` sequences in all, said the way
// (in tokens or in sequences) in which the configuration says it.
Keys batch_keys(const train::Config& config, int64_t rows, int64_t rows_per_step);

// How the compilations of a plan are run and followed. Both are called from several threads.
struct Progress {
  std::function<bool()> goes_on;                 // asked often; false gives everything up (pjrt::Cancelled)
  std::function<void(std::string text)> report;  // how far it is: "5 of 16 compiled"
};

struct Outcome {
  Report report;
  std::string failure;  // why there is no report; one line
};
// In the order of the drafts, several at a time: as many as cores and free memory allow. `done`, where there is one, is told of each as it
// ends, one at a time; what it raises ends the compilations and is raised here.
std::vector<Outcome> compile_all(const Planner& planner, const std::vector<Draft>& drafts, const Progress& progress,
                                 const std::function<void(size_t index, const Outcome& outcome)>& done = {});
size_t compilations_at_once();

// What would make a step that does not fit need less, each change alone and compiled, the one that saves most first; behind them, where no
// one of them is enough, the fewest together that are.
std::vector<Change> memory_changes(const Planner& planner, const Draft& draft, const Report& report, const Progress& progress);

}  // namespace flambeau::plan
