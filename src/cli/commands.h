// The subcommands of `flambeau`. Each writes its answer to standard output, messages for people to standard error, and
// raises an Error for main() to report.
#pragma once

#include <string>
#include <vector>

#include "plan/search/search.h"
#include "train/config.h"

namespace flambeau::cli {

// A configuration file with `--section.key value` (or `=value`) overrides applied in order; a bool key may stand alone. `options` are
// the command's own ("--topology"): what is mistyped may have been meant for one of them.
train::Config configure(const std::string& file, const std::vector<std::string>& overrides, const std::vector<std::string>& options = {});

// A line of the log for each. A plan's report has them itself.
void warn_of_keys_without_effect(const train::Config& config);

// Trains. The exit code: 0, or 128 + a signal that ended the run.
int train(const train::Config& config);

// Validates, and prints the resolved configuration, parameters and FLOPs a token.
void check(const train::Config& config);

struct PlanRequest {
  std::string topology;
  int64_t slices = 1;
  plan::PlanOptions options;
  bool no_changes = false;  // propose none where it does not fit
  std::string json, html, program;  // files to write; empty: none
  bool search = false;
  plan::SearchOptions searching;
  std::string best = "best.toml";  // the search's
};
// Plans. The exit code: 0 when the step fits the pod, or the search found one that does, 1 when not, 128 + a signal that ended it.
int plan(const train::Config& config, const PlanRequest& request);

// Prints versions, the plugin and its devices, and whether a matrix product comes out right. `plugin` as pjrt::find_plugin takes it.
void doctor(const std::string& plugin);

// Verifies a checkpoint's folder and lists its tensors with checksums.
void inspect(const std::string& step_folder);

}  // namespace flambeau::cli
