#include "plan/program.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "device/device.h"
#include "runtime/recording.h"
#include "train/param_groups.h"
#include "train/step.h"
#include "train/summary.h"
#include "train/trainer.h"

namespace flambeau::plan {
namespace {

// A batch of the step's shape that holds nothing.
train::TokenBatch empty_batch(const train::Batching& batching, bool documents) {
  const auto tensor = [&] {
    return spmd::zeros(device::tpu(), {batching.accumulation, batching.sequences, batching.context}, at::kLong,
                       {"", "batch", "sequence"});
  };
  train::TokenBatch batch{.tokens = tensor(), .labels = tensor(), .positions = {}, .documents = {}};
  if (documents) {
    batch.positions = tensor();
    batch.documents = tensor();
  }
  return batch;
}

std::vector<Argument> describe_arguments(const runtime::StepProgram& step, const models::Model& model,
                                         const train::Optimizer& optimizer, bool documents) {
  std::map<const runtime::Storage*, Argument> state;
  const auto& physical = model.parameters().physical();
  for (size_t i = 0; i < physical.size(); ++i) {
    const std::string name = model.parameters().spoken_name(physical[i]);
    state[&device::storage_of(physical[i].weight->value)] = {MemoryKind::Parameters, name};
    for (const auto& s : optimizer.states())
      if (s.tensors[i].defined()) state[&device::storage_of(s.tensors[i])] = {MemoryKind::OptimizerStates, fmt::format("{}, {}", name, s.name)};
  }
  std::vector<std::string> inputs = {"tokens", "labels"};
  if (documents) inputs.insert(inputs.end(), {"positions", "documents"});
  for (std::string& name : optimizer.input_names()) inputs.push_back(std::move(name));
  size_t next_input = 0;
  std::vector<Argument> by_external;
  for (const runtime::External& external : step.trace().externals()) {
    if (!external.storage) {
      by_external.push_back({MemoryKind::Batch, inputs.at(next_input++)});
    } else if (const auto found = state.find(external.storage.get()); found != state.end()) {
      by_external.push_back(found->second);
    } else {
      by_external.push_back({MemoryKind::Batch, "constant " + external.type.to_string()});
    }
  }
  std::vector<Argument> arguments;
  for (const size_t external : step.program()->externals) arguments.push_back(by_external[external]);
  for (const bool more : {step.program()->floats, step.program()->integers, step.program()->random})
    if (more) arguments.push_back({MemoryKind::Batch, "the step's numbers"});
  return arguments;
}

}  // namespace

StepProgram record_step(const train::Config& config, const targets::Target& target) {
  train::check_config(config);
  const auto model = train::make_configured_model(config);
  device::initialize({.target = target}, /*start=*/true);
  runtime::Engine::get().programs().set_compile_options(train::compile_options(config));
  StepProgram result;
  result.degrees = train::configured_degrees(config, *model, target.device_count);
  result.batching = train::batching(config, result.degrees.data_parallel());
  spmd::use_sharding_rules(spmd::ShardingRules(result.degrees, spmd::standard_rules(config.parallelism.enable_sequence_parallel)));
  if (const runtime::DeviceMesh* mesh = runtime::Engine::get().mesh()) result.mesh = mesh->mesh.axes;

  model->parameters().allocate(device::tpu());
  model->prepare(device::tpu(), result.batching.context);
  train::Optimizer optimizer = train::make_optimizer(config, *model);
  const train::StepOptions options = train::step_options(config);
  train::TrainStep step(*model, optimizer, device::tpu(), options);
  step.prepare(empty_batch(result.batching, options.documents));

  const runtime::StepProgram& recorded = *step.program();
  result.program = recorded.program();
  result.arguments = describe_arguments(recorded, *model, optimizer, options.documents);
  result.parameters = model->parameters().elements();
  result.parameters_per_device = train::parameters_per_device(model->parameters());
  result.flops_per_token = model->flops_per_token(result.batching.context);
  runtime::Engine::get().programs().forget();  // a search records hundreds
  return result;
}

}  // namespace flambeau::plan
