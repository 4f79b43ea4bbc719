#include "train/param_groups.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/hash.h"

namespace flambeau::train {
namespace {

std::string nearest_name(std::string_view pattern, const std::vector<std::string>& names) {
  std::string plain(pattern);
  std::erase_if(plain, [](char c) { return std::string_view("\\^$*+?()[]{}|").find(c) != std::string_view::npos; });
  return *std::ranges::min_element(names, {}, [&](const std::string& name) { return edit_distance(plain, name, /*within=*/true); });
}

// Indices of the parameters that are trained, and their names.
struct Trained {
  std::vector<size_t> indices;
  std::vector<std::string> names;
};

Trained trained(const models::Model& model) {
  const nn::Parameters& parameters = model.parameters();
  Trained out;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters.traits(parameters.all()[i]).trainable) continue;
    out.indices.push_back(i);
    out.names.push_back(parameters.all()[i].name);
  }
  return out;
}

Algorithm algorithm_of(const std::string& name) {
  return name == "SGD" ? Algorithm::SGD : name == "Adam" ? Algorithm::Adam : Algorithm::AdamW;
}

}  // namespace

// ---- which parameters ---------------------------------------------------------------------------------------------------------

void freeze_parameters(const Config& config, models::Model& model) {
  const std::vector<std::string> patterns = frozen_patterns(config);
  if (patterns.empty()) return;
  const std::vector<std::string> names = trained(model).names;
  std::set<std::string> chosen;
  for (const std::string& pattern : patterns) {
    const std::regex regex(pattern);
    bool found = false;
    for (const std::string& name : names) {
      if (!std::regex_search(name, regex)) continue;
      chosen.insert(name);
      found = true;
    }
    if (found) continue;
    raise_in_config(config, fmt::format("model.freeze: expected pattern \"{}\" to match a parameter, got none; did you mean {}?", pattern,
                                        nearest_name(pattern, names)));
  }
  if (chosen.size() == names.size()) {
    raise_in_config(config, fmt::format("model.freeze: expected to leave a parameter that is trained, got patterns that match all {}; "
                                        "remove one", names.size()));
  }
  try {
    model.parameters().freeze([&](const std::string& name) { return chosen.contains(name); });
  } catch (const InvalidArgument& e) {
    raise_in_config(config, fmt::format("model.freeze: {}", e.what()));
  }
}

std::string name_of_group(const Config& config, size_t group) {
  const auto& groups = config.optimizer.param_groups;
  return group < groups.size() ? groups[group].name.value_or(config.optimizer.name) : config.optimizer.name;
}

std::vector<size_t> groups_of(const Config& config, const models::Model& model) {
  const Trained of_model = trained(model);
  std::vector<size_t> out(model.parameters().size(), config.optimizer.param_groups.size());
  try {
    const std::vector<size_t> groups = assign_groups(of_model.names, config.optimizer.param_groups);
    for (size_t k = 0; k < groups.size(); ++k) out[of_model.indices[k]] = groups[k];
  } catch (const InvalidArgument& e) {
    raise_in_config(config, e.what());
  }
  return out;
}

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
      raise<InvalidArgument>("optimizer.param_groups: expected pattern \"{}\" to match a parameter that is trained, got none; did you mean {}?",
                             groups[g].pattern, nearest_name(groups[g].pattern, names));
    }
    raise<InvalidArgument>("optimizer.param_groups: expected pattern \"{}\" to match a parameter that earlier groups leave, got none: "
                           "\"{}\" takes them all; put it first or remove it", groups[g].pattern,
                           groups[*std::ranges::min_element(taken)].pattern);
  }
  return out;
}

OptimizerOptions optimizer_options(const Config::Optimizer& o) {
  return {.nesterov = o.nesterov, .state_dtype = o.state_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat};
}

std::vector<Hyperparameters> group_hyperparameters(const Config::Optimizer& o) {
  const Hyperparameters usual{.algorithm = algorithm_of(o.name), .lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1,
                              .beta2 = o.beta2, .epsilon = o.eps, .momentum = o.momentum, .dampening = o.dampening};
  std::vector<Hyperparameters> out;
  for (const ParamGroup& g : o.param_groups) {
    out.push_back({.algorithm = g.name ? algorithm_of(*g.name) : usual.algorithm, .lr = g.lr.value_or(usual.lr),
                   .weight_decay = g.weight_decay.value_or(usual.weight_decay), .beta1 = g.beta1.value_or(usual.beta1),
                   .beta2 = g.beta2.value_or(usual.beta2), .epsilon = g.eps.value_or(usual.epsilon),
                   .momentum = g.momentum.value_or(usual.momentum), .dampening = g.dampening.value_or(usual.dampening)});
  }
  out.push_back(usual);
  return out;
}

Optimizer make_optimizer(const Config& config, models::Model& model) {
  const std::vector<size_t> groups = groups_of(config, model);
  const nn::Parameters& parameters = model.parameters();
  std::vector<OptimizerTarget> targets;
  for (const nn::Physical& p : parameters.physical()) {
    OptimizerTarget& target = targets.emplace_back(OptimizerTarget{p.weight->value, {}});
    if (!parameters.traits(p).trainable) continue;
    target.keys.clear();
    // A cell for each index of the fused dimension, in each row.
    const nn::Stored& first = parameters.stored()[p.rows.front()];
    target.cells.assign(first.shape.size() + (p.stacked ? 1 : 0), 1);
    if (p.stacked) target.cells.front() = std::ssize(p.rows);
    if (first.parameters.size() > 1) {
      const auto fused = static_cast<size_t>(first.fused_dim);
      target.cells[fused + (p.stacked ? 1 : 0)] = first.shape[fused];
    }
    for (const size_t row : p.rows) {
      const nn::Stored& stored = parameters.stored()[row];
      target.keys.push_back(hash_string(stored.draw_key() + ", optimizer", static_cast<uint64_t>(config.debug.seed)));
      for (const size_t i : stored.parameters)
        target.groups.insert(target.groups.end(), static_cast<size_t>(std::max<int64_t>(1, parameters.all()[i].length)), groups[i]);
    }
  }
  return Optimizer(optimizer_options(config.optimizer), group_hyperparameters(config.optimizer), std::move(targets));
}

std::vector<std::vector<std::string>> state_names_of(const Config& config, const models::Model& model) {
  const std::vector<size_t> groups = groups_of(config, model);
  const std::vector<Hyperparameters> hyperparameters = group_hyperparameters(config.optimizer);
  std::vector<std::vector<std::string>> names;
  for (size_t i = 0; i < groups.size(); ++i) {
    const bool trained = model.parameters().traits(model.parameters().all()[i]).trainable;
    names.push_back(trained ? state_names(hyperparameters[groups[i]]) : std::vector<std::string>{});
  }
  return names;
}

int64_t state_bytes(const Config& config, const models::Model& model) {
  const std::vector<std::vector<std::string>> names = state_names_of(config, model);
  const nn::Parameters& parameters = model.parameters();
  const size_t state = c10::elementSize(optimizer_options(config.optimizer).state_dtype);
  int64_t bytes = 0;
  for (const nn::Physical& p : parameters.physical()) {
    std::set<std::string> states;  // each is as large as the tensor, whichever of its parameters needs it
    for (const size_t row : p.rows)
      for (const size_t i : parameters.stored()[row].parameters) states.insert(names[i].begin(), names[i].end());
    const int64_t elements = std::ssize(p.rows) * parameters.stored()[p.rows.front()].elements();
    bytes += elements * static_cast<int64_t>(c10::elementSize(parameters.traits(p).dtype) + states.size() * state);
  }
  return bytes;
}

std::string describe_optimizer(const Config& config, const models::Model& model) {
  const Config::Optimizer& o = config.optimizer;
  const std::vector<size_t> groups = groups_of(config, model), of_model = trained(model).indices;
  if (o.param_groups.empty()) return o.name;
  std::vector<std::string> parts;
  for (size_t g = 0; g <= o.param_groups.size(); ++g) {
    const auto count = std::ranges::count_if(of_model, [&](size_t i) { return groups[i] == g; });
    if (count == 0) continue;
    const std::string name = name_of_group(config, g);
    parts.push_back(fmt::format("{}{}: {}", g < o.param_groups.size() ? o.param_groups[g].pattern : "others",
                                name != o.name ? " by " + name : "", count));
  }
  return fmt::format("{}, parameters {}", o.name, fmt::join(parts, ", "));
}

}  // namespace flambeau::train
