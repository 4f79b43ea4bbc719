#include "cli/commands.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/folder.h"
#include "device/device.h"
#include "flambeau_version.h"
#include "pjrt/pjrt.h"
#include "runtime/engine.h"
#include "train/interrupt.h"
#include "train/metrics.h"
#include "train/param_groups.h"
#include "train/state.h"
#include "train/trainer.h"

namespace flambeau::cli {
namespace {

std::string text_of(const pjrt::Attribute& attribute) {
  return std::visit(
      [](const auto& value) {
        if constexpr (requires { value.begin(); }) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) return value;
          else return fmt::format("{}", fmt::join(value, "."));
        } else {
          return fmt::format("{}", value);
        }
      },
      attribute);
}

// The largest difference between a matrix product on the device and on the CPU.
double matmul_error(at::Device device) {
  const at::Tensor a = at::arange(64 * 96, at::kFloat).view({64, 96}).sin(), b = at::arange(96 * 32, at::kFloat).view({96, 32}).cos();
  return (a.to(device).mm(b.to(device)).cpu() - a.mm(b)).abs().max().item<double>();
}

// Raises for what is no key but nearly one of the command's options; what is a key, or like none, is the configuration's to judge.
void refuse_mistyped_option(const std::string& name, const std::vector<std::string>& options) {
  const auto distance = [&](std::string_view known) { return train::edit_distance(name, known); };
  size_t nearest_key = name.size();
  for (const train::Key& key : train::keys()) nearest_key = std::min(nearest_key, distance(key.name));
  for (const std::string& option : options)
    if (const size_t d = distance(option.substr(2)); d > 0 && d <= std::max<size_t>(1, name.size() / 3) && d < nearest_key)
      raise<InvalidArgument>("command line: unknown option --{}; did you mean {}?", name, option);
}

}  // namespace

train::Config configure(const std::string& file, const std::vector<std::string>& overrides, const std::vector<std::string>& options) {
  train::Config config = train::load_config(file);
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string& argument = overrides[i];
    if (!argument.starts_with("--") || argument.size() == 2) {
      raise<InvalidArgument>("command line: expected --section.key, got \"{}\"; see flambeau train --help", argument);
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    refuse_mistyped_option(name, options);
    const bool alone = i + 1 == overrides.size() || overrides[i + 1].starts_with("--");
    if (equals != std::string::npos) {
      train::set_from_text(config, name, argument.substr(equals + 1));
    } else if (alone && train::is_bool_key(name)) {
      train::set_from_text(config, name, "true");
    } else if (i + 1 == overrides.size()) {
      raise<InvalidArgument>("command line: expected a value after {}; write {} VALUE", argument, argument);
    } else {
      train::set_from_text(config, name, overrides[++i]);
    }
  }
  train::check_config(config);
  return config;
}

void warn_of_keys_without_effect(const train::Config& config) {
  for (const std::string& line : train::keys_without_effect(config)) log_warning("{}", line);
}

int train(const train::Config& config) {
  warn_of_keys_without_effect(config);
  return train::exit_code(train::run(config));
}

void check(const train::Config& config) {
  warn_of_keys_without_effect(config);
  const auto model = train::make_configured_model(config);
  const train::Degrees degrees = train::configured_degrees(config, *model, train::assumed_devices(config));
  const train::Batching batching = train::batching(config, degrees.data_parallel());
  const int64_t parameters = model->parameters().elements();
  fmt::print("{}\n", train::to_toml(config));
  const models::Sizes s = model->sizes();
  fmt::print("# sizes: layers {}, dim {}, heads {}, kv_heads {}, ffn_dim {}, vocab_size {}\n", s.layers, s.dim, s.heads, s.kv_heads, s.ffn_dim,
             s.vocab_size);
  const int64_t frozen = parameters - model->parameters().trainable_elements();
  fmt::print("# parameters: {}{}\n", train::with_commas(parameters), frozen > 0 ? fmt::format(", {} of them frozen", train::with_commas(frozen)) : "");
  const models::TokenFlops flops = model->flops_per_token(batching.context);
  fmt::print("# FLOPs a token: {:.6g} (causal {:.6g})\n", flops.standard, flops.causal);
  fmt::print("# tokens a step: {} = {} microbatches x {} sequences x {}\n", train::with_commas(batching.tokens_per_step()),
             batching.accumulation, batching.sequences, batching.context);
  fmt::print("# parameters and optimizer states: {:.2f} GiB\n", static_cast<double>(train::state_bytes(config, *model)) / (1 << 30));
}

void doctor(const std::string& plugin) {
  fmt::print("flambeau  {}\n", FLAMBEAU_VERSION);
  fmt::print("torch     {}\n", TORCH_VERSION);
  device::initialize({.plugin = plugin}, /*start=*/true);
  const pjrt::Client& client = runtime::Engine::get().client();
  const auto [major, minor] = client.plugin().version();
  fmt::print("plugin    {}\n", client.plugin().path().string());
  fmt::print("          PJRT C API {}.{}", major, minor);
  for (const auto& [name, value] : client.plugin().attributes()) fmt::print(", {} {}", name, text_of(value));
  fmt::print("\nplatform  {} ({})\n", client.platform_name(), client.platform_version());
  fmt::print("devices   {}, {} of this process\n", client.devices().size(), client.addressable_devices().size());
  for (const pjrt::Device& d : client.addressable_devices()) fmt::print("          {}: {}\n", d.id, d.kind);

  const double error = matmul_error(device::tpu());
  // One rounding of a sum of 96 products, a few times over.
  const bool right = error < 1e-4;
  fmt::print("matmul    {} (largest difference to the CPU {:.2g})\n", right ? "right" : "WRONG", error);
  if (!right) raise<PluginError>("[doctor] the plugin computes a wrong matrix product; try another plugin");
}

void inspect(const std::string& step_folder) {
  const checkpoint::State state = checkpoint::load(step_folder);
  fmt::print("{}: {}, step {}, {} tokens seen\n", step_folder, state.model, state.step, train::with_commas(state.tokens_seen));
  for (const auto* tensors : {&state.parameters, &state.optimizer}) {
    for (const auto& [name, tensor] : *tensors) {
      fmt::print("{:016x}  {}  [{}]\n", checkpoint::tensor_checksum(tensor), name, fmt::join(tensor.sizes(), ", "));
    }
  }
  fmt::print("{}\n", train::state_checksums(state));
}

}  // namespace flambeau::cli
