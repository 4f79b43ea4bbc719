#include "train/param_groups.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

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

std::string name_of_group(const Config& config, size_t group) {
  const auto& groups = config.optimizer.param_groups;
  return group < groups.size() ? groups[group].name.value_or(config.optimizer.name) : config.optimizer.name;
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

// ---- resuming ---------------------------------------------------------------------------------------------------------------

std::string describe_states(const Config& config, const models::Model& model) {
  const std::vector<size_t> groups = groups_of(config, model);
  const std::vector<Hyperparameters> hyperparameters = group_hyperparameters(config.optimizer);
  nlohmann::ordered_json described = {{"state_dtype", config.optimizer.state_dtype}, {"groups", nlohmann::ordered_json::array()}};
  for (size_t g = 0; g < hyperparameters.size(); ++g) {
    Hasher members;
    size_t count = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      const nn::Parameter& p = model.parameters().all()[i];
      if (groups[i] != g || !model.parameters().traits(p).trainable) continue;
      members.add(std::string_view(p.name));
      ++count;
    }
    if (count == 0) continue;
    described["groups"].push_back({{"pattern", g < config.optimizer.param_groups.size() ? config.optimizer.param_groups[g].pattern : ""},
                                   {"name", name_of_group(config, g)},
                                   {"states", state_names(hyperparameters[g])},
                                   {"parameters", count},
                                   {"members", fmt::format("{:016x}", members.value())}});
  }
  return described.dump();
}

void check_same_states(const Config& config, const models::Model& model, const std::string& saved, const std::string& where) {
  using Json = nlohmann::json;
  const Json before = Json::parse(saved), now = Json::parse(describe_states(config, model));
  const auto refuse = [&](std::string_view what, const std::string& expected, const std::string& got, const std::string& remedy) {
    raise<InvalidArgument>("{}: expected the {} that it was made with, {}, got {}; {}, or begin a new run from its weights "
                           "(checkpoint.initial_load_path = \"{}\", another dump_folder)", where, what, expected, got, remedy, where);
  };
  if (before.at("state_dtype") != now.at("state_dtype")) {
    const auto dtype = before.at("state_dtype").get<std::string>();
    refuse("optimizer.state_dtype", dtype, now.at("state_dtype").get<std::string>(), fmt::format("set it to \"{}\"", dtype));
  }
  const Json &groups_before = before.at("groups"), &groups_now = now.at("groups");
  if (groups_before.size() != groups_now.size()) {
    refuse("groups of parameters", fmt::format("{} of them", groups_before.size()), fmt::format("{}", groups_now.size()),
           "give optimizer.param_groups as they were");
  }
  for (size_t g = 0; g < groups_now.size(); ++g) {
    const Json &a = groups_before[g], &b = groups_now[g];
    const auto pattern = a.at("pattern").get<std::string>();
    const std::string of = pattern.empty() ? "optimizer" : fmt::format("optimizer of the group \"{}\"", pattern);
    if (a.at("name") != b.at("name"))
      refuse(of, a.at("name").get<std::string>(), b.at("name").get<std::string>(), fmt::format("set its name to \"{}\"", a.at("name").get<std::string>()));
    if (a.at("states") != b.at("states")) {
      const bool had = !a.at("states").empty();
      refuse(of, had ? "with momentum" : "without momentum", had ? "without" : "with it", "set its momentum as it was");
    }
    if (a.at("members") != b.at("members")) {
      refuse(pattern.empty() ? "parameters outside of optimizer.param_groups" : fmt::format("parameters of the group \"{}\"", pattern),
             fmt::format("{} of them", a.at("parameters").dump()), fmt::format("{} others", b.at("parameters").dump()),
             "give optimizer.param_groups and model.freeze as they were");
    }
  }
}

// ---- describing -------------------------------------------------------------------------------------------------------------

std::string describe_optimizer(const Config& config, const models::Model& model) {
  const Config::Optimizer& o = config.optimizer;
  const std::vector<size_t> groups = groups_of(config, model), of_model = trained(model).indices;
  if (o.param_groups.empty()) return o.name;
  std::vector<std::string> parts;
  for (size_t g = 0; g <= o.param_groups.size(); ++g) {
    const auto count = std::ranges::count_if(of_model, [&](size_t i) { return groups[i] == g; });
    if (count == 0) continue;
    const bool other = g < o.param_groups.size() && o.param_groups[g].name.value_or(o.name) != o.name;
    parts.push_back(fmt::format("{}{}: {}", g < o.param_groups.size() ? o.param_groups[g].pattern : "others",
                                other ? " by " + *o.param_groups[g].name : "", count));
  }
  return fmt::format("{}, parameters {}", o.name, fmt::join(parts, ", "));
}

}  // namespace flambeau::train
