#include "train/param_groups.h"

#include <algorithm>
#include <regex>
#include <string_view>

#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::train {
namespace {

std::string nearest_name(std::string_view pattern, const std::vector<std::string>& names) {
  std::string plain(pattern);
  std::erase_if(plain, [](char c) { return std::string_view("\\^$*+?()[]{}|").find(c) != std::string_view::npos; });
  return *std::ranges::min_element(names, {}, [&](const std::string& name) { return edit_distance(plain, name, /*within=*/true); });
}

std::vector<std::string> names_of(const models::Model& model) {
  std::vector<std::string> names;
  for (const nn::Parameter& p : model.parameters()) names.push_back(p.name);
  return names;
}

std::vector<size_t> groups_of(const Config& config, const models::Model& model) {
  try {
    return assign_groups(names_of(model), config.optimizer.param_groups);
  } catch (const InvalidArgument& e) {
    raise_in_config(config, e.what());
  }
}

}  // namespace

std::vector<size_t> assign_groups(const std::vector<std::string>& names, const std::vector<ParamGroup>& groups) {
  std::vector<size_t> out(names.size(), groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::regex pattern(groups[g].pattern);
    std::vector<size_t> taken;  // groups that names went to before
    bool has_own = false;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!std::regex_search(names[i], pattern)) continue;
      if (out[i] < groups.size()) {
        taken.push_back(out[i]);
      } else {
        out[i] = g;
        has_own = true;
      }
    }
    if (has_own) continue;
    if (taken.empty()) {
      raise<InvalidArgument>("optimizer.param_groups: expected pattern \"{}\" to match a parameter, got none; did you mean {}?",
                             groups[g].pattern, nearest_name(groups[g].pattern, names));
    }
    raise<InvalidArgument>("optimizer.param_groups: expected pattern \"{}\" to match a parameter that earlier groups leave, got none: "
                           "\"{}\" takes them all; put it first or remove it", groups[g].pattern,
                           groups[*std::ranges::min_element(taken)].pattern);
  }
  return out;
}

OptimizerOptions optimizer_options(const Config::Optimizer& o) {
  return {.algorithm = o.name == "SGD" ? Algorithm::SGD : o.name == "Adam" ? Algorithm::Adam : Algorithm::AdamW,
          .nesterov = o.nesterov,
          .state_dtype = o.state_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat};
}

std::vector<Hyperparameters> group_hyperparameters(const Config::Optimizer& o) {
  const Hyperparameters usual{.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.eps,
                              .momentum = o.momentum, .dampening = o.dampening};
  std::vector<Hyperparameters> out;
  for (const ParamGroup& g : o.param_groups) {
    out.push_back({.lr = g.lr.value_or(usual.lr), .weight_decay = g.weight_decay.value_or(usual.weight_decay),
                   .beta1 = g.beta1.value_or(usual.beta1), .beta2 = g.beta2.value_or(usual.beta2),
                   .epsilon = g.eps.value_or(usual.epsilon), .momentum = g.momentum.value_or(usual.momentum),
                   .dampening = g.dampening.value_or(usual.dampening)});
  }
  out.push_back(usual);
  return out;
}

Optimizer make_optimizer(const Config& config, models::Model& model) {
  const std::vector<size_t> groups = groups_of(config, model);
  std::vector<OptimizerTarget> targets;
  for (const nn::Physical& p : model.parameters().physical()) {
    OptimizerTarget& target = targets.emplace_back(OptimizerTarget{p.weight->value, {}});
    for (const size_t i : p.rows) target.groups.push_back(groups[i]);
  }
  return Optimizer(optimizer_options(config.optimizer), group_hyperparameters(config.optimizer), std::move(targets));
}

std::string describe_optimizer(const Config& config, const models::Model& model) {
  const Config::Optimizer& o = config.optimizer;
  const std::vector<size_t> groups = groups_of(config, model);
  if (o.param_groups.empty()) return o.name;
  std::vector<std::string> parts;
  for (size_t g = 0; g <= o.param_groups.size(); ++g) {
    const auto count = std::ranges::count(groups, g);
    if (count > 0) parts.push_back(fmt::format("{}: {}", g < o.param_groups.size() ? o.param_groups[g].pattern : "others", count));
  }
  return fmt::format("{}, parameters {}", o.name, fmt::join(parts, ", "));
}

}  // namespace flambeau::train
