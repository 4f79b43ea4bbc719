// From the degrees of [parallelism] to a mesh that fits the devices and the model, or one line that says why not and what would.
//
// Pure arithmetic: no device is opened. The axes are those of the mesh, in its order. Data are split over replicate x shard;
// parameters, gradients and optimizer states over shard (their model dimension) and tensor (heads, feed-forward width, vocabulary).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "spmd/sharding_rules.h"
#include "train/config.h"

namespace flambeau::train {

using spmd::Degrees;

// What a mesh must divide. `context` is the number of tokens of a row.
struct ParallelProblem {
  int64_t devices = 1;
  int64_t context = 1;
  models::Sizes sizes = {};
};

// The degrees with -1 filled in. InvalidArgument names the key, both numbers and the nearest legal choice; NotImplemented for
// degrees that are not built.
Degrees resolve_parallelism(const Config::Parallelism& asked, const ParallelProblem& problem);

// For what runs without devices (`flambeau check`): debug.virtual_devices, or as many as the given degrees make.
int64_t assumed_devices(const Config& config);

// Of n, ascending.
std::vector<int64_t> divisors(int64_t n);

// "replicate 2 x shard 4", "1 device": the axes longer than 1.
std::string describe(const Degrees& degrees);

}  // namespace flambeau::train
