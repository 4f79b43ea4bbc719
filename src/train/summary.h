// The table that a run begins with: what is trained, on what, and what a step is.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "train/config.h"
#include "train/parallelism.h"

namespace flambeau::train {

struct SummaryFacts {
  Degrees degrees;
  Batching batching;
  int64_t warmup_steps = 0;
  int64_t parameters_per_device = 0;
  std::string attention = {};  // as nn::describe says it
  int64_t argument_bytes = 0, temporary_bytes = 0;  // of the training step, as compiled, a device; 0 where not known
};

using TableRows = std::vector<std::pair<std::string, std::string>>;

// How many elements of all parameters one device stores, by the plan that is in use.
int64_t parameters_per_device(const nn::Parameters& parameters);

TableRows summary_rows(const Config& config, const models::Model& model, const SummaryFacts& facts);

// Two aligned columns, at most 100 wide: a longer value goes on in the next line. With `colour`, names are bold.
std::string format_table(const TableRows& rows, bool colour);

}  // namespace flambeau::train
