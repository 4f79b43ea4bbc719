// Whether a checkpoint's optimizer states are those of this run's optimizer.
#pragma once

#include <string>

#include "checkpoint/folder.h"
#include "models/model.h"
#include "train/config.h"

namespace flambeau::train {

// What a resumed run must have in common with the one that wrote a checkpoint (its State::optimizer_kind), as JSON: the states' dtype; of
// each group its pattern, optimizer, states, and which parameters it has.
std::string describe_states(const Config& config, const models::Model& model);

// InvalidArgument that names the difference and a remedy where the states of `saved`, the checkpoint in `where`, are of another
// optimizer. Checkpoints of format 1 do not say what theirs was: their tensors tell.
void check_same_optimizer(const checkpoint::State& saved, const Config& config, const models::Model& model, const std::string& where);

}  // namespace flambeau::train
