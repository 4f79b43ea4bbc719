#include "plan/search/space.h"

#include <utility>

#include <fmt/format.h>

#include "plan/search/alternatives.h"
#include "train/parallelism.h"

namespace flambeau::plan {
namespace {

// More sequences a microbatch than this make no step faster: matrix products are large enough long before.
constexpr int64_t kMostRows = 16;
constexpr int64_t kWidestTensor = 16;  // chips: beyond, a layer's products are too thin for its collectives
// Shares of the activation memory: between `full`, which is 0, and `none`, which is 1, where memory is left.
constexpr double kBudgets[] = {0.05, 0.1, 0.15, 0.2, 0.3, 0.45};

std::vector<Mesh> meshes(int64_t devices, int64_t slices) {
  std::vector<Mesh> all;
  for (const int64_t tensor : train::divisors(devices)) {
    if (tensor > kWidestTensor) break;
    // Slices are joined by a slow network: only copies of the model may be spread over them.
    for (const int64_t replicate : train::divisors(devices / tensor))
      if (replicate % slices == 0) all.push_back({.tensor = tensor, .replicate = replicate, .shard = devices / tensor / replicate});
  }
  return all;
}

}  // namespace

Choice choice_of(const train::Config& config, const StepProgram& step) {
  const bool has_budget = config.activation_checkpoint.mode == "budget";
  return {.mesh = {.tensor = step.degrees.tensor, .replicate = step.degrees.replicate, .shard = step.degrees.shard},
          .rows = step.batching.sequences / step.degrees.data_parallel(),
          .checkpoint = config.activation_checkpoint.mode,
          .budget = has_budget ? config.activation_checkpoint.memory_budget : 0,
          .block_q = config.model.attention_block_q,
          .block_kv = config.model.attention_block_kv};
}

std::vector<Choice> choices(const train::Config& config, int64_t devices, int64_t slices, int64_t rows_per_step) {
  std::vector<Choice> all;
  Choice choice;
  choice.block_q = config.model.attention_block_q;
  choice.block_kv = config.model.attention_block_kv;
  for (const Mesh& mesh : meshes(devices, slices)) {
    const int64_t ranks = mesh.replicate * mesh.shard;
    if (rows_per_step % ranks != 0) continue;
    choice.mesh = mesh;
    for (const int64_t rows : train::divisors(rows_per_step / ranks)) {
      if (rows > kMostRows) break;
      choice.rows = rows;
      choice.budget = 0;
      for (const char* policy : {"none", "selective", "offload", "full"}) {
        choice.checkpoint = policy;
        all.push_back(choice);
      }
      choice.checkpoint = "budget";
      for (const double budget : kBudgets) {
        choice.budget = budget;
        all.push_back(choice);
      }
    }
  }
  return all;
}

Keys keys_of(const train::Config& config, const Choice& choice, int64_t rows_per_step) {
  Keys keys = {{"parallelism.tensor_parallel_degree", std::to_string(choice.mesh.tensor)},
               {"parallelism.data_parallel_replicate_degree", std::to_string(choice.mesh.replicate)},
               {"parallelism.data_parallel_shard_degree", std::to_string(choice.mesh.shard)}};
  for (auto& key : batch_keys(config, choice.rows, rows_per_step)) keys.push_back(std::move(key));
  keys.insert(keys.end(), {{"model.scan", "true"}, {"activation_checkpoint.mode", choice.checkpoint}});
  if (choice.checkpoint == "budget") keys.emplace_back("activation_checkpoint.memory_budget", fmt::format("{}", choice.budget));
  if (choice.block_q > 0) keys.emplace_back("model.attention_block_q", std::to_string(choice.block_q));
  if (choice.block_kv > 0) keys.emplace_back("model.attention_block_kv", std::to_string(choice.block_kv));
  return keys;
}

std::string checkpoint_text(const Choice& choice) {
  return choice.checkpoint == "budget" ? fmt::format("budget {}", choice.budget) : choice.checkpoint;
}

std::string blocks_text(const Choice& choice) {
  if (choice.block_q == 0 && choice.block_kv == 0) return "";
  const auto text = [](int64_t length) { return length > 0 ? std::to_string(length) : std::string("chosen"); };
  return fmt::format("{} x {}", text(choice.block_q), text(choice.block_kv));
}

}  // namespace flambeau::plan
