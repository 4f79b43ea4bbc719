// What a search tries, and how it is said in a configuration. Internal to src/plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/program.h"
#include "plan/report/report.h"
#include "train/config.h"

namespace flambeau::plan {

struct Mesh {
  int64_t tensor = 1, replicate = 1, shard = 1;
  bool operator==(const Mesh&) const = default;
};

struct Choice {
  Mesh mesh;
  int64_t rows = 1;              // sequences of a microbatch, a data-parallel rank
  std::string checkpoint;        // activation_checkpoint.mode
  double budget = 0;             // with mode budget: activation_checkpoint.memory_budget
  int64_t block_q = 0, block_kv = 0;  // of attention; 0: chosen
  bool operator==(const Choice&) const = default;
};

// What `config` itself says, as its step was recorded.
Choice choice_of(const train::Config& config, const StepProgram& step);

// Every mesh of so many devices, in slices, whose data-parallel ranks divide a step of `rows_per_step` sequences, with every microbatch
// and policy; of attention's blocks those that `config` says. Not all are legal: the model has a word in it too.
std::vector<Choice> choices(const train::Config& config, int64_t devices, int64_t slices, int64_t rows_per_step);

// The keys that say it, with a step of `rows_per_step` sequences.
Keys keys_of(const train::Config& config, const Choice& choice, int64_t rows_per_step);

std::string checkpoint_text(const Choice& choice);  // "selective", "budget 0.2"
std::string blocks_text(const Choice& choice);      // "512 x 1024"; empty: chosen

}  // namespace flambeau::plan
