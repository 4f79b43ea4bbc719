// Manual computations over some axes of a mesh, and inside one another, in programs that are compiled ahead of time for TPUs. Nothing of them runs.
#include "spmd/manual.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compiled/analysis.h"
#include "device/capture.h"
#include "device/device.h"
#include "device/scan.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"
#include "runtime/step_program.h"
#include "spmd/sharding.h"

namespace flambeau::spmd {
namespace {

using Tensors = std::vector<at::Tensor>;
using TpuManual = pjrt::LibtpuTest;

// Follows other rules than the program's while it lives.
struct Following {
  explicit Following(const Degrees& degrees) { use_sharding_rules(ShardingRules(degrees, standard_rules())); }
  ~Following() { use_sharding_rules(before); }
  const std::optional<ShardingRules> before = sharding_rules() ? std::optional(*sharding_rules()) : std::nullopt;
};

// Stages of a pipeline over tensor in a loop, rows of the batch by hand over shard within them: x [stages, rows, width], weights [stages,
// width, width].
at::Tensor pipeline(const at::Tensor& x, const at::Tensor& weights) {
  const hlo::Sharding stages{{{.axes = {"tensor"}}, {}, {}}}, rows{{{}, {.axes = {"shard"}}, {}}}, whole{{{}, {}, {}}};
  return manual({x, weights}, {stages, stages}, {stages}, [&](const Tensors& local) {
    const device::ScanBody iteration = [&](const at::Tensor&, const Tensors& carry, const Tensors&, const Tensors& weight) -> device::ScanValues {
      const at::Tensor y = manual({carry[0], weight[0]}, {rows, whole}, {rows}, [](const Tensors& part) {
        const at::Tensor h = at::tanh(at::matmul(part[0], part[1]));
        return Tensors{h - all_reduce_sum(h.sum(1, true), {"shard"}) * 0.01};
      }, MeshAxes{"shard"})[0];
      return {{collective_permute(y, {"tensor"}, ring({"tensor"}))}};
    };
    return device::scan(2, {local[0]}, {}, {local[1]}, iteration, {.kind = device::CheckpointPolicy::Kind::Full}).carry;
  }, MeshAxes{"tensor"})[0];
}

TEST_F(TpuManual, StagesWithRowsByHandWithinThem) {
  const Following following({.replicate = 2, .shard = 2, .tensor = 2});
  device::Capture capture("pipeline", [](const Tensors& in) -> Tensors {
    const at::AutoGradMode enabled(true);
    const at::Tensor x = in[0].detach().requires_grad_(), weights = in[1].detach().requires_grad_();
    return torch::autograd::grad({pipeline(x, weights).to(at::kFloat).square().mean()}, {x, weights});
  });
  capture.prepare({zeros(device::tpu(), {2, 256, 512}, at::kBFloat16, {"heads", "batch", ""}),
                   zeros(device::tpu(), {2, 512, 512}, at::kBFloat16, {"heads", "", ""})});
  const auto program = capture.program()->program();
  const pjrt::TopologyResult compiled = pjrt::compile_apart({.plugin = pjrt::find_plugin("tpu"), .topology = "v5e:2x4", .program = program->text,
                                                             .options = program->options, .time_limit = std::chrono::seconds(300)});
  const auto analysis = compiled::analyze(compiled::parse_module(compiled.optimized_hlo));
  double permutes = 0, products = 0;
  for (const auto& c : analysis.collectives)
    if (c.kind == "collective-permute" && c.loop >= 0) permutes += analysis.runs(c.loop);
  for (const auto& c : analysis.contractions) products += c.flops * analysis.runs(c.loop);
  EXPECT_EQ(permutes, 2 + 2);  // forward, and the gradient's way back; the policy keeps the carry
  // Each device has half of a stage's 256 rows, which shards share by hand; the partitioner lets both replicas compute the same. One
  // product forward, once more for the backward pass, two of the gradient, in each of two iterations.
  EXPECT_EQ(products, 2 * 4 * 2.0 * (256 / 2) * 512 * 512);
}

}  // namespace
}  // namespace flambeau::spmd
