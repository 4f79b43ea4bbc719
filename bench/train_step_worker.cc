// Flambeau's contender in bench/train_step.py: `train_step_worker FOLDER`. It runs the trainer's own step on the default
// plugin.
//
// The conversation with the benchmark, line by line, is described in workers/protocol.py.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "models/model.h"
#include "train/param_groups.h"
#include "train/step.h"
#include "train/trainer.h"

namespace flambeau {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double norm(const std::vector<at::Tensor>& tensors) {
  double squares = 0;
  for (const at::Tensor& t : tensors) squares += t.detach().cpu().to(at::kDouble).square().sum().item<double>();
  return std::sqrt(squares);
}

class Contender {
 public:
  explicit Contender(const fs::path& folder)
      : case_(json::parse(read_file(folder / "case.json"))),
        weights_(checkpoint::SafetensorsReader(folder / "model.safetensors").read_all()),
        device_(train::open_device({})) {
    const checkpoint::SafetensorsReader data(folder / "data.safetensors");
    const at::Tensor tokens = data.read("tokens"), labels = data.read("labels");
    // One microbatch a step: [A = 1, B, S].
    for (int64_t i = 0; i < tokens.size(0); ++i) {
      batches_.push_back({tokens[i].unsqueeze(0), labels[i].unsqueeze(0), {}, {}});
    }
  }

  json build() {
    const auto begin = std::chrono::steady_clock::now();
    make_model();
    train::Config config;
    train::Config::Optimizer& o = config.optimizer;
    o.lr = case_.at("learning_rate");
    o.weight_decay = case_.at("weight_decay");
    o.beta1 = case_.at("beta1");
    o.beta2 = case_.at("beta2");
    o.eps = case_.at("epsilon");
    optimizer_.emplace(train::make_optimizer(config, *model_));
    step_.emplace(*model_, *optimizer_, device_, train::StepOptions{.max_norm = case_.at("max_norm")});
    const auto compile_begin = std::chrono::steady_clock::now();
    step_->prepare(batches_.front());
    const double compile_time = seconds_since(compile_begin);
    json answer = steps(1);
    answer["compile_time_s"] = compile_time;
    answer["first_step_s"] = seconds_since(begin);
    return answer;
  }

  json steps(int64_t count) {
    json answer = {{"seconds", json::array()}, {"losses", json::array()}, {"grad_norms", json::array()}};
    for (int64_t i = 0; i < count; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const auto& batch = batches_[static_cast<size_t>(done_) % batches_.size()];
      step_->start(batch, /*lr_factor=*/1, ++done_);
      const train::StepResult result = step_->finish();
      answer["seconds"].push_back(seconds_since(begin));
      answer["losses"].push_back(result.loss);
      answer["grad_norms"].push_back(result.grad_norm);
    }
    return answer;
  }

  json state() const {
    return {{"parameters", norm(model_->parameters().tensors())},
            {"exp_avg", norm(optimizer_->states()[0].tensors)},
            {"exp_avg_sq", norm(optimizer_->states()[1].tensors)}};
  }

 private:
  void make_model() {
    model_ = models::make_model("llama3", "debug",
                                {.vocab_size = case_.at("vocab_size"), .n_layers = case_.at("layers"),
                                 .dim = case_.at("dim"), .n_heads = case_.at("heads"),
                                 .n_kv_heads = case_.at("kv_heads"), .ffn_dim = case_.at("ffn_dim")});
    model_->parameters().allocate(device_);
    model_->prepare(device_, case_.at("context"));
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> values = model_->from_hugging_face(weights_);
    model_->parameters().assign(model_->parameters().tensors(), [&](size_t i) { return values[i]; });
  }

  json case_;
  models::NamedTensors weights_;
  at::Device device_;
  std::vector<train::TokenBatch> batches_;
  std::unique_ptr<models::Model> model_;
  std::optional<train::Optimizer> optimizer_;
  std::optional<train::TrainStep> step_;
  int64_t done_ = 0;
};

void serve(const fs::path& folder) {
  // Answers keep the standard output to themselves; whatever else is printed goes to standard error.
  std::FILE* answers = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const auto answer = [&](const json& value) {
    std::fprintf(answers, "%s\n", value.dump().c_str());
    std::fflush(answers);
  };

  Contender contender(folder);
  answer({{"ready", true}});
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    int64_t count = 0;
    words >> command >> count;
    if (command == "quit") return;
    if (command == "build") answer(contender.build());
    else if (command == "steps") answer(contender.steps(count));
    else if (command == "state") answer(contender.state());
    else raise<InvalidArgument>("[train_step_worker] expected build, steps N, state or quit, got \"{}\"", line);
  }
}

}  // namespace
}  // namespace flambeau

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_step_worker FOLDER   (it is started by bench/train_step.py)\n");
    return 2;
  }
  try {
    flambeau::serve(argv[1]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_step_worker: %s\n", e.what());
    return 1;
  }
}
