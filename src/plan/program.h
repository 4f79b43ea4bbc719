// The training step of a configuration, recorded ahead of time: the very program that `train` would run on them.
//
// No parameter is allocated and nothing is compiled: recording takes the same fraction of a second for a model of any size.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hlo/graph.h"
#include "models/model.h"
#include "plan/memory/memory.h"
#include "runtime/engine.h"
#include "spmd/sharding_rules.h"
#include "targets/target.h"
#include "train/config.h"

namespace flambeau::plan {

struct StepProgram {
  std::shared_ptr<const runtime::Program> program;  // StableHLO text, the same as a graph, and how it is to be compiled
  std::vector<Argument> arguments;   // by parameter number
  std::vector<hlo::MeshAxis> mesh;   // axes longer than 1, major first
  spmd::Degrees degrees;
  train::Batching batching;
  int64_t parameters = 0;            // elements
  int64_t parameters_per_device = 0;
  models::TokenFlops flops_per_token;
};

// `target` must be the same in all calls of a process. InvalidArgument, led by the configuration's file, for what `train` would refuse.
StepProgram record_step(const train::Config& config, const targets::Target& target);

}  // namespace flambeau::plan
