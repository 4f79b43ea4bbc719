// A small model with its optimizer and a batch, on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "models/model.h"
#include "train/param_groups.h"
#include "train/state.h"
#include "train/step.h"

namespace flambeau::train {

inline const models::Overrides kTiny{.vocab_size = 64, .n_layers = 2, .dim = 32, .n_heads = 4, .n_kv_heads = 2, .ffn_dim = 48};

struct TinyRun {
  explicit TinyRun(std::unique_ptr<models::Model> given, const std::string& frozen = {}, bool stacked = false, at::ScalarType dtype = at::kFloat)
      : model(std::move(given)) {
    config.optimizer.lr = 1e-2;
    if (!frozen.empty()) model->parameters().freeze([&](const std::string& name) { return name.find(frozen) != std::string::npos; }, dtype);
    if (stacked) model->run_layers_as_loop(device::CheckpointPolicy{});
    model->parameters().initialize(5, at::kCPU);
    model->prepare(at::kCPU, 16);
    optimizer.emplace(make_optimizer(config, *model));
    at::manual_seed(3);
    batch.tokens = at::randint(0, 64, {2, 2, 16}, at::kLong);
    batch.labels = at::randint(0, 64, {2, 2, 16}, at::kLong);
  }
  StepResult step(int64_t n = 1) {
    TrainStep train(*model, *optimizer, at::kCPU, {.max_norm = 1e9});  // not clipped: the norm is of what is trained
    train.start(batch, 1, n);
    return train.finish();
  }
  std::vector<at::Tensor> values() const { return model->parameters().rows_of(model->parameters().tensors()); }
  std::vector<at::Tensor> copies() const {
    std::vector<at::Tensor> out;
    for (const at::Tensor& t : values()) out.push_back(t.clone());
    return out;
  }
  checkpoint::State state() const { return collect_state(config, *model, *optimizer, at::kCPU); }

  Config config;
  std::unique_ptr<models::Model> model;
  std::optional<Optimizer> optimizer;
  TokenBatch batch;
};

}  // namespace flambeau::train
