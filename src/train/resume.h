// Where a run begins: at the newest checkpoint of its folder, unless it is told to go back.
//
// checkpoint.load_step in a file says where a run begins that has gone no further by itself: a run that is started again continues
// its newest step, whatever the file says. On the command line it also sends a run back, and sets the checkpoints after that step
// aside. The checkpoints that follow remember it, also where that step was the newest: the same command line, given again by whatever
// restarts the run, continues them and goes back no second time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "checkpoint/folder.h"
#include "train/config.h"

namespace flambeau::train {

struct Beginning {
  std::unique_ptr<checkpoint::Folder> folder;  // locked; null with checkpoint.enable = false
  std::optional<int64_t> step;                 // the checkpoint to load; none: the run begins anew
  int64_t went_back_to = -1;                   // what checkpoints of this run say of it
};

// Opens the folder and says in the log what was chosen, and why where that is not the newest step or not what load_step says.
// InvalidArgument, led by the file, for a load_step that there is not.
Beginning choose_beginning(const Config& config);

}  // namespace flambeau::train
