// Which keys do nothing in the mode that others choose.
#include <algorithm>

#include <fmt/format.h>

#include "train/config.h"

namespace flambeau::train {
namespace {

template <class Condition>
bool any_group(const Config& config, Condition&& condition) {
  const Config::Optimizer& o = config.optimizer;
  // What no group takes goes to [optimizer] itself; whether anything is left over is not known before there is a model.
  return condition(o.name, o.momentum) || std::ranges::any_of(o.param_groups, [&](const ParamGroup& g) {
           return condition(g.name.value_or(o.name), g.momentum.value_or(o.momentum));
         });
}

bool no_adam(const Config& c) {
  return !any_group(c, [](const std::string& name, double) { return name != "SGD"; });
}
bool no_sgd(const Config& c) {
  return !any_group(c, [](const std::string& name, double) { return name == "SGD"; });
}
bool no_momentum(const Config& c) {
  return !any_group(c, [](const std::string& name, double momentum) { return name == "SGD" && momentum != 0; });
}
bool no_states(const Config& c) { return no_adam(c) && no_momentum(c); }

struct Rule {
  std::vector<std::string> keys;
  bool (*without_effect)(const Config&);
  const char* why;
  std::string off_switch = {};  // a key that turns the others off on purpose where it was given itself
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {{"optimizer.beta1", "optimizer.beta2", "optimizer.eps"}, &no_adam, "no parameter is updated by AdamW or Adam"},
      {{"optimizer.momentum"}, &no_sgd, "no parameter is updated by SGD; the like of AdamW and Adam is optimizer.beta1"},
      {{"optimizer.dampening"}, &no_momentum, "no parameter is updated by SGD with momentum"},
      {{"optimizer.nesterov"}, &no_sgd, "no parameter is updated by SGD"},
      {{"optimizer.state_dtype"}, &no_states, "SGD without momentum has no states"},
      {{"activation_checkpoint.memory_budget"}, [](const Config& c) { return c.activation_checkpoint.mode != "budget"; },
       "activation_checkpoint.mode is not \"budget\""},
      {{"activation_checkpoint.selective_ops"},
       [](const Config& c) { return c.activation_checkpoint.mode != "selective" && c.activation_checkpoint.mode != "offload"; },
       "activation_checkpoint.mode is neither \"selective\" nor \"offload\""},
      {{"model.attention"}, [](const Config& c) { return c.device == "cpu" && c.model.attention == "chunked"; },
       "attention is dense with device = \"cpu\""},
      {{"model.attention_block_q", "model.attention_block_kv"},
       [](const Config& c) { return c.model.attention == "dense" || c.device == "cpu"; }, "attention is dense"},
      {{"parallelism.enable_sequence_parallel"}, [](const Config& c) { return c.parallelism.tensor_parallel_degree == 1; },
       "parallelism.tensor_parallel_degree is 1"},
      {{"lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"}, [](const Config& c) { return c.lr_scheduler.decay_ratio == 0.0; },
       "lr_scheduler.decay_ratio is 0"},
      {{"plugin"}, [](const Config& c) { return c.device == "cpu"; }, "device = \"cpu\" is PyTorch itself"},
      {{"dataloader.seed"}, [](const Config& c) { return !c.dataloader.shuffle; }, "dataloader.shuffle is false"},
      {{"validator.freq", "validator.steps"}, [](const Config& c) { return !c.validator.enable; }, "validator.enable is false",
       "validator.enable"},
      {{"checkpoint.folder", "checkpoint.interval", "checkpoint.keep_latest_k", "checkpoint.enable_first_step_checkpoint"},
       [](const Config& c) { return !c.checkpoint.enable; }, "checkpoint.enable is false", "checkpoint.enable"},
      {{"sampling.prompt", "sampling.temperature", "sampling.seed"}, [](const Config& c) { return c.sampling.tokens == 0; },
       "sampling.tokens is 0", "sampling.tokens"},
  };
  return all;
}

}  // namespace

std::vector<std::string> keys_without_effect(const Config& config) {
  std::vector<std::string> lines;
  for (const Rule& rule : rules()) {
    if (config.given.contains(rule.off_switch) || !rule.without_effect(config)) continue;
    for (const std::string& key : rule.keys)
      if (config.given.contains(key)) lines.push_back(fmt::format("{} has no effect: {}", key, rule.why));
  }
  return lines;
}

}  // namespace flambeau::train
