#include "train/resume.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"

namespace flambeau::train {
namespace {

void expect_step(const Config& config, const std::vector<int64_t>& steps, int64_t step) {
  if (std::ranges::count(steps, step) > 0) return;
  raise_in_config(config, fmt::format("checkpoint.load_step: expected one of the saved steps [{}], got {}; choose one of them or -1, with "
                                      "checkpoint.enable = true", fmt::join(steps, ", "), step));
}

}  // namespace

Beginning choose_beginning(const Config& config) {
  Beginning beginning;
  std::vector<int64_t> steps;
  if (config.checkpoint.enable) {
    beginning.folder = std::make_unique<checkpoint::Folder>(std::filesystem::path(config.dump_folder) / config.checkpoint.folder);
    steps = beginning.folder->steps();
  }
  const int64_t asked = config.checkpoint.load_step;
  if (asked >= 0 && (steps.empty() || asked > steps.back())) expect_step(config, steps, asked);
  if (steps.empty()) return beginning;

  const int64_t newest = steps.back();
  beginning.step = newest;
  beginning.went_back_to = checkpoint::went_back_to(beginning.folder->step_path(newest));
  const bool on_command_line = config.from_command_line.contains("checkpoint.load_step");
  // The same command line may come again when the run has gone further.
  if (asked == newest && on_command_line) beginning.went_back_to = asked;
  if (asked < 0 || asked == newest) return beginning;
  if (!on_command_line) {
    log_warning("continuing from step {}, the newest: checkpoint.load_step = {} in {} says where a run begins that has gone no further; to "
                "go back, give --checkpoint.load_step {} on the command line", newest, asked, config.path.string(), asked);
    return beginning;
  }
  if (beginning.went_back_to == asked) {
    log_warning("continuing from step {}, the newest: this run has gone back to step {} before; to go back once more, remove the "
                "checkpoints after that step from {}", newest, asked, beginning.folder->path().string());
    return beginning;
  }
  expect_step(config, steps, asked);
  beginning.step = asked;
  beginning.went_back_to = asked;
  return beginning;
}

}  // namespace flambeau::train
