// Runs pieces of the trainer on numbers from a file, for tests that compare them with other implementations.
//
//   train_reference model cpu|tpu IN OUT    IN: weights under Hugging Face's names, tokens and labels [B, S]; family, sizes, dtype
//                                           of activations and form of attention (empty: chosen) in the metadata.
//                                           OUT: logits, loss (sum / valid tokens), gradients under the same names
//   train_reference optimizer cpu|tpu IN OUT    IN: parameter.NAME, gradient.STEP.NAME; in the metadata a configuration file, and
//                                               whether the parameters, of one shape, are updated stacked.
//                                               OUT: parameter.NAME after all steps, norm.STEP and factor.STEP of the clipping
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "device/capture.h"
#include "device/device.h"
#include "models/model.h"
#include "nn/loss.h"
#include "train/optimizer.h"
#include "train/param_groups.h"

namespace {

using namespace flambeau;
using checkpoint::NamedTensors;
using checkpoint::SafetensorsReader;
using Tensors = std::vector<at::Tensor>;

NamedTensors model_step(at::Device device, const SafetensorsReader& in) {
  const auto size = [&](const char* key) { return std::stoll(in.metadata().at(key)); };
  const auto model = models::make_model(in.metadata().at("family"), "debug",
                                        {.vocab_size = size("vocab_size"), .n_layers = size("n_layers"), .dim = size("dim"),
                                         .n_heads = size("n_heads"), .n_kv_heads = size("n_kv_heads"), .ffn_dim = size("ffn_dim")});
  models::NamedTensors weights;
  for (const auto& [name, tensor] : in.read_all()) {
    if (name != "tokens" && name != "labels") weights.emplace_back(name, tensor);
  }
  const Tensors values = model->from_hugging_face(weights);
  const nn::Parameters& parameters = model->parameters();
  model->parameters().allocate(device);
  parameters.assign(parameters.tensors(), [&](size_t i) { return values[i]; });
  const at::Tensor tokens = in.read("tokens").to(device), labels = in.read("labels").to(device);
  model->prepare(device, tokens.size(1));
  const at::ScalarType compute = in.metadata().at("dtype") == "bfloat16" ? at::kBFloat16 : at::kFloat;
  if (const std::string& kind = in.metadata().at("attention"); !kind.empty())
    model->set_attention({.kind = kind == "dense" ? nn::AttentionKind::Dense : nn::AttentionKind::Chunked});

  device::Capture step("reference", [&](const Tensors& inputs) {
    const at::AutoGradMode grad(true);
    const at::Tensor logits = model->forward({inputs[0], {}, {}}, compute);
    const at::Tensor loss = nn::linear_cross_entropy(model->hidden({inputs[0], {}, {}}, compute), model->head(), inputs[1],
                                                     nn::valid_tokens(inputs[1]), {}).total;
    Tensors out = torch::autograd::grad({loss}, parameters.tensors());
    out.insert(out.begin(), {logits.detach(), loss.detach()});
    return out;
  });
  Tensors results;
  for (const at::Tensor& t : step({tokens, labels})) results.push_back(t.cpu());
  NamedTensors out{{"logits", results[0]}, {"loss", results[1]}};
  for (auto& gradient : model->to_hugging_face(parameters.rows_of({results.begin() + 2, results.end()}))) out.push_back(std::move(gradient));
  return out;
}

NamedTensors optimizer_steps(at::Device device, const SafetensorsReader& in) {
  const train::Config config = train::load_config(in.metadata().at("config"));
  const bool stacked = in.metadata().at("stacked") == "1";
  std::vector<std::string> names;
  for (const auto& [name, info] : in.tensors()) {
    if (name.starts_with("parameter.")) names.push_back(name.substr(10));
  }
  // What is read as PREFIX.NAME, one tensor a target.
  const auto read = [&](const std::string& prefix) {
    Tensors out;
    for (const std::string& name : names) out.push_back(in.read(prefix + "." + name));
    if (stacked) out = {at::stack(out)};
    for (at::Tensor& t : out) t = t.to(device);
    return out;
  };
  const Tensors parameters = read("parameter");
  const std::vector<size_t> groups = train::assign_groups(names, config.optimizer.param_groups);
  std::vector<train::OptimizerTarget> targets;
  for (size_t i = 0; i < parameters.size(); ++i) targets.push_back({parameters[i], stacked ? groups : std::vector{groups[i]}});
  train::Optimizer optimizer(train::optimizer_options(config.optimizer), train::group_hyperparameters(config.optimizer), targets);

  device::Capture update("reference", [&](const Tensors& inputs) -> Tensors {
    const auto count = std::ssize(targets);
    Tensors gradients(inputs.begin(), inputs.begin() + count);
    Tensors squares;
    for (const at::Tensor& g : gradients) squares.push_back((g * g).sum());
    const train::Clip clip = train::clip_factor(at::stack(squares), config.training.max_norm);
    for (at::Tensor& g : gradients) g = g * clip.factor;
    optimizer.update(gradients, {inputs.begin() + count, inputs.end()}, at::isfinite(clip.norm));
    return {clip.norm, clip.factor};
  });
  NamedTensors out;
  for (int64_t step = 1; in.tensors().contains(fmt::format("gradient.{}.{}", step, names.at(0))); ++step) {
    Tensors inputs = read(fmt::format("gradient.{}", step));
    for (const at::Tensor& t : optimizer.inputs(/*lr_factor=*/1.0 / static_cast<double>(step), step)) inputs.push_back(t.to(device));
    const Tensors results = update(inputs);
    out.emplace_back(fmt::format("norm.{}", step), results[0].cpu());
    out.emplace_back(fmt::format("factor.{}", step), results[1].cpu());
  }
  for (size_t i = 0; i < names.size(); ++i) {
    out.emplace_back("parameter." + names[i], stacked ? parameters[0].cpu()[static_cast<int64_t>(i)].clone() : parameters[i].cpu());
  }
  return out;
}

int run(const std::vector<std::string>& words) {
  if (words.size() != 4) raise<InvalidArgument>("train_reference: expected model|optimizer cpu|tpu IN OUT");
  at::Device device = at::kCPU;
  if (words[1] == "tpu") {
    device::initialize();
    device = device::tpu();
  }
  const SafetensorsReader in(words[2]);
  checkpoint::write_safetensors(words[3], words[0] == "model" ? model_step(device, in) : optimizer_steps(device, in));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  }
}
