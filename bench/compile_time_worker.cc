// Flambeau's contender in bench/compile_time.py: `compile_time_worker CASE scan|unrolled`, where CASE is a JSON text. Prints one line of
// JSON: how long the trainer's own step took to record and to compile, in seconds of the clock and of the processors.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "runtime/engine.h"
#include "train/param_groups.h"
#include "train/step.h"
#include "train/trainer.h"

namespace flambeau {
namespace {

using nlohmann::json;

struct Clock {
  std::chrono::steady_clock::time_point wall = std::chrono::steady_clock::now();
  std::clock_t processors = std::clock();  // of all threads
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count(); }
  double processor_seconds() const { return static_cast<double>(std::clock() - processors) / CLOCKS_PER_SEC; }
};

json measure(const json& c, bool scan) {
  const at::Device device = train::open_device({});
  const std::unique_ptr<models::Model> model = models::make_model(
      "llama3", "debug",
      {.vocab_size = c.at("vocab_size"), .n_layers = c.at("layers"), .dim = c.at("dim"), .n_heads = c.at("heads"),
       .n_kv_heads = c.at("kv_heads"), .ffn_dim = c.at("ffn_dim")});
  if (scan) model->run_layers_as_loop(device::CheckpointPolicy{.kind = device::CheckpointPolicy::Kind::Full});
  model->parameters().allocate(device);
  model->prepare(device, c.at("context"));
  train::Optimizer optimizer = train::make_optimizer({}, *model);
  train::TrainStep step(*model, optimizer, device, {});
  const at::Tensor tokens = at::zeros({1, c.at("batch").get<int64_t>(), c.at("context").get<int64_t>()}, at::kLong);
  // What the first op of a process pays (threads, the plugin's own start) is not the step's.
  at::ones({2}, at::TensorOptions().device(device)).add(1).cpu();

  const int64_t before = runtime::Engine::get().counters().compile_microseconds;
  const Clock clock;
  step.prepare({tokens, tokens, {}, {}});
  const double all = clock.seconds(), processors = clock.processor_seconds();
  const double compile = static_cast<double>(runtime::Engine::get().counters().compile_microseconds - before) * 1e-6;
  return {{"trace_s", all - compile}, {"compile_s", compile}, {"total_s", all}, {"processor_s", processors}};
}

}  // namespace
}  // namespace flambeau

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[2] : "";
  if (mode != "scan" && mode != "unrolled") {
    std::fprintf(stderr, "usage: compile_time_worker CASE scan|unrolled   (it is started by bench/compile_time.py)\n");
    return 2;
  }
  try {
    std::printf("%s\n", flambeau::measure(nlohmann::json::parse(argv[1]), mode == "scan").dump().c_str());
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "compile_time_worker: %s\n", e.what());
    return 1;
  }
}
