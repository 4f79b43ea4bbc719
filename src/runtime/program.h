// A compiled trace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hlo/graph.h"
#include "ops/check.h"
#include "pjrt/pjrt.h"
#include "runtime/array.h"

namespace flambeau::runtime {

struct Program {
  const DeviceMesh* mesh = nullptr;              // that it runs on; null: one device
  std::unique_ptr<pjrt::Executable> executable;  // null: ahead of time
  std::unique_ptr<const hlo::Graph> graph;       // then: what would be compiled
  std::string text;                              // the same as StableHLO
  pjrt::CompileOptions options;                  // and how it is to be compiled
  std::vector<size_t> externals;                 // of the trace, by parameter
  std::vector<int64_t> aliased;                  // parameters that an output may take over
  std::vector<hlo::Type> outputs;                // of the wanted values; those without elements are not among the results
  std::vector<hlo::Sharding> shardings;          // of the outputs, with a mesh
  bool floats = false, integers = false, random = false;
  std::shared_ptr<const std::vector<ops::CheckError>> checks;  // null: none
};

}  // namespace flambeau::runtime
