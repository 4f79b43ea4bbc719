// Parameter groups: an ordered list of patterns over parameter names, each with an optimizer and numbers that replace those of
// [optimizer].
//
// A pattern is a regular expression in ECMAScript's syntax, searched for in the name ("norm" matches "layers.0.ffn_norm.weight";
// "^lm_head" and "bias$" are anchored). The first pattern that matches counts. A group must have parameters that are trained: one that
// matches none, or none that earlier groups left, is a mistake and is refused. model.freeze has patterns of the same kind.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/model.h"
#include "train/config.h"
#include "train/optimizer.h"

namespace flambeau::train {

// For each name the index of its group, or groups.size() where no pattern matches. InvalidArgument names the group and, for a
// pattern that matches nothing, the nearest name.
std::vector<size_t> assign_groups(const std::vector<std::string>& names, const std::vector<ParamGroup>& groups);

// Freezes what model.freeze chooses, before layers are stacked. InvalidArgument, led by the file, for a pattern that matches no
// parameter, with the nearest name, and for patterns that leave none to train.
void freeze_parameters(const Config& config, models::Model& model);

// The optimizer of a group, "AdamW".
std::string name_of_group(const Config& config, size_t group);
// The index of each parameter's group, as assign_groups gives it to those that are trained. InvalidArgument, led by the file.
std::vector<size_t> groups_of(const Config& config, const models::Model& model);

OptimizerOptions optimizer_options(const Config::Optimizer& options);
// What each group is updated with, and last what the parameters of none are.
std::vector<Hyperparameters> group_hyperparameters(const Config::Optimizer& options);

// The configuration's optimizer over the model's parameters, one target a physical tensor. InvalidArgument, led by the file.
Optimizer make_optimizer(const Config& config, models::Model& model);

// The names of each parameter's optimizer states; none for what is not trained.
std::vector<std::vector<std::string>> state_names_of(const Config& config, const models::Model& model);

// Bytes of the parameters and their optimizer states, as they lie in memory: a state that one part of a fused or stacked tensor needs
// is there for the whole of it.
int64_t state_bytes(const Config& config, const models::Model& model);

// "AdamW", with the parameters of each group where there are groups.
std::string describe_optimizer(const Config& config, const models::Model& model);

}  // namespace flambeau::train
