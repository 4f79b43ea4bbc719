#include "plan/planner.h"

#include "base/files.h"
#include "plan/program.h"

namespace flambeau::plan {

Report plan(const train::Config& config, const PlanOptions& options) {
  runtime::Target target{.platform = "tpu", .generation = "TPU v5 lite", .device_count = static_cast<int>(options.slices), .api_version = {0, 117}, .ffi = false, .host_memory = true};
  const StepProgram step = record_step(config, target);
  if (!options.write_program.empty()) write_file_atomically(options.write_program, step.text);
  for (size_t i = 0; i < step.arguments.size(); ++i) fmt::print("{} {} {}\n", i, name_of(step.arguments[i].kind), step.arguments[i].name);
  return {};
}

}  // namespace flambeau::plan
