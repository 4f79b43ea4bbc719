// Parameter groups: an ordered list of patterns over parameter names, each with numbers that replace those of [optimizer].
//
// A pattern is a regular expression in ECMAScript's syntax, searched for in the name ("norm" matches "layers.0.ffn_norm.weight";
// "^output" and "bias$" are anchored). The first pattern that matches counts. A group must have parameters: one that matches none,
// or none that earlier groups left, is a mistake and is refused.
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

OptimizerOptions optimizer_options(const Config::Optimizer& options);
// What each group is updated with, and last what the parameters of none are.
std::vector<Hyperparameters> group_hyperparameters(const Config::Optimizer& options);

// The configuration's optimizer over the model's parameters. InvalidArgument, led by the file.
Optimizer make_optimizer(const Config& config, models::Model& model);

// "AdamW", with the parameters of each group where there are groups.
std::string describe_optimizer(const Config& config, const models::Model& model);

}  // namespace flambeau::train
