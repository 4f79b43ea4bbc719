#include "train/same_optimizer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "train/param_groups.h"

namespace flambeau::train {
namespace {

using Json = nlohmann::ordered_json;

// What every refusal ends with.
std::string or_begin_anew(const std::string& where) {
  return fmt::format("or begin a new run from its weights (checkpoint.initial_load_path = \"{}\", another dump_folder)", where);
}

Json states_json(const Config& config, const models::Model& model) {
  const std::vector<size_t> groups = groups_of(config, model);
  const std::vector<Hyperparameters> hyperparameters = group_hyperparameters(config.optimizer);
  Json described = {{"state_dtype", config.optimizer.state_dtype}, {"groups", Json::array()}};
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
  return described;
}

class Comparison {
 public:
  Comparison(Json before, Json now, std::string where) : before_(std::move(before)), now_(std::move(now)), where_(std::move(where)) {}

  void check() const {
    if (before_.at("state_dtype") != now_.at("state_dtype")) {
      const std::string dtype = text(before_, "state_dtype");
      refuse("optimizer.state_dtype", dtype, text(now_, "state_dtype"), fmt::format("set it to \"{}\"", dtype));
    }
    const Json &before = before_.at("groups"), &now = now_.at("groups");
    if (before.size() != now.size()) {
      refuse("groups of parameters", fmt::format("{} of them", before.size()), fmt::format("{}", now.size()),
             "give optimizer.param_groups as they were");
    }
    for (size_t g = 0; g < now.size(); ++g) check_group(before[g], now[g]);
  }

 private:
  static std::string text(const Json& json, const char* key) { return json.at(key).get<std::string>(); }

  [[noreturn]] void refuse(std::string_view what, const std::string& expected, const std::string& got, const std::string& remedy) const {
    raise<InvalidArgument>("{}: expected the {} that it was made with, {}, got {}; {}, {}", where_, what, expected, got, remedy,
                           or_begin_anew(where_));
  }

  void check_group(const Json& before, const Json& now) const {
    const std::string pattern = text(before, "pattern");
    const std::string optimizer = pattern.empty() ? "optimizer" : fmt::format("optimizer of the group \"{}\"", pattern);
    if (before.at("name") != now.at("name"))
      refuse(optimizer, text(before, "name"), text(now, "name"), fmt::format("set its name to \"{}\"", text(before, "name")));
    if (before.at("states") != now.at("states")) {
      const bool had = !before.at("states").empty();
      refuse(optimizer, had ? "with momentum" : "without momentum", had ? "without" : "with it", "set its momentum as it was");
    }
    if (before.at("members") != now.at("members")) {
      refuse(pattern.empty() ? "parameters outside of optimizer.param_groups" : fmt::format("parameters of the group \"{}\"", pattern),
             fmt::format("{} of them", before.at("parameters").dump()), fmt::format("{} others", now.at("parameters").dump()),
             "give optimizer.param_groups and model.freeze as they were");
    }
  }

  Json before_, now_;
  std::string where_;
};

void check_by_tensors(const checkpoint::NamedTensors& tensors, const Config& config, const models::Model& model, const std::string& where) {
  struct Kind {
    const char *state, *optimizer;
  };
  constexpr Kind kKinds[] = {{"exp_avg", "AdamW or Adam"}, {"momentum_buffer", "SGD with momentum"}};
  const auto wanted = state_names_of(config, model);
  for (const auto& [state, kind] : kKinds) {
    const auto saved = std::ranges::find_if(tensors, [&](const auto& t) { return t.first.ends_with(fmt::format(".{}", state)); });
    const bool had = saved != tensors.end();
    const bool has = std::ranges::any_of(wanted, [&](const auto& names) { return std::ranges::count(names, state) > 0; });
    if (had != has) {
      raise<InvalidArgument>("{}: expected optimizer.name = \"{}\" to go on {} states of {}, got them {}; set optimizer.name as it was, {}",
                             where, config.optimizer.name, has ? "with" : "without", kind, had ? "there" : "missing", or_begin_anew(where));
    }
    if (had && saved->second.scalar_type() != optimizer_options(config.optimizer).state_dtype) {
      raise<InvalidArgument>("{}: expected optimizer states in {}, got others; set optimizer.state_dtype as it was, {}", where,
                             config.optimizer.state_dtype, or_begin_anew(where));
    }
  }
}

}  // namespace

std::string describe_states(const Config& config, const models::Model& model) { return states_json(config, model).dump(); }

void check_same_optimizer(const checkpoint::State& saved, const Config& config, const models::Model& model, const std::string& where) {
  if (saved.optimizer_kind.empty()) return check_by_tensors(saved.optimizer, config, model, where);
  Comparison(Json::parse(saved.optimizer_kind), states_json(config, model), where).check();
}

}  // namespace flambeau::train
