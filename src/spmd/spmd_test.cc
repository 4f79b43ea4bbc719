// Sharding rules and layouts on eight virtual devices, against the same arithmetic by PyTorch on the CPU.
#include <cstring>
#include <limits>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "device/capture.h"
#include "device/device.h"
#include "device/scan.h"
#include "device/own_ops.h"
#include "spmd/manual.h"
#include "spmd/test_util.h"

namespace flambeau::spmd {
namespace {

class Environment : public testing::Environment {
 public:
  void SetUp() override { device::initialize({.virtual_devices = 8}, true); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

const Degrees kMeshes[] = {
    {},
    {.shard = 2},
    {.shard = 8},
    {.tensor = 4},
    {.replicate = 2, .shard = 4},
    {.shard = 2, .tensor = 4},
    {.replicate = 2, .shard = 2, .tensor = 2},
    {.shard = 2, .context = 2, .tensor = 2},
};

std::string name_of(const Degrees& d) {
  return fmt::format("replicate {} shard {} context {} tensor {}", d.replicate, d.shard, d.context, d.tensor);
}

std::vector<int64_t> part_shape(const at::Tensor& tensor) {
  const std::shared_ptr<const runtime::Array> array = device::storage_of(tensor).held().array;
  const auto dims = array->shards().front()->dims();
  return {dims.begin(), dims.end()};
}

TEST(ShardingRules, SayHowTensorsLie) {
  struct Case {
    Axes axes;
    std::string stored, used;
  };
  const ShardingRules rules({.replicate = 2, .shard = 2, .tensor = 2}, standard_rules());
  const Case cases[] = {
      {{"vocab", "embed"}, R"(<@mesh, [{"tensor"}, {"shard"}]>)", R"(<@mesh, [{"tensor"}, {}]>)"},
      {{"", "ffn", "embed"}, R"(<@mesh, [{}, {"tensor"}, {"shard"}]>)", R"(<@mesh, [{}, {"tensor"}, {}]>)"},
      {{"batch", "sequence_block", ""}, R"(<@mesh, [{"replicate", "shard"}, {"tensor"}, {}]>)", R"(<@mesh, [{}, {"tensor"}, {}]>)"},
      {{"vocab", "vocab"}, R"(<@mesh, [{"tensor"}, {}]>)", R"(<@mesh, [{"tensor"}, {}]>)"},
      {{"unknown"}, "<@mesh, [{}]>", "<@mesh, [{}]>"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(rules.sharding(c.axes).to_string(), c.stored);
    EXPECT_EQ(rules.gathered(c.axes).to_string(), c.used);
  }
  EXPECT_EQ(rules.parts("batch"), 4);
  EXPECT_EQ(rules.parts("sequence"), 1);
}

TEST(ShardingRules, SayWhatAxesAreFor) {
  const ShardingRules rules({.replicate = 2, .shard = 3, .context = 5, .tensor = 7, .expert = 11}, standard_rules());
  EXPECT_EQ(rules.axes_of(AxisRole::Batch), (MeshAxes{"replicate", "shard"}));
  EXPECT_EQ(rules.axes_of(AxisRole::Storage), (MeshAxes{"shard", "context"}));
  EXPECT_EQ(rules.axes_of(AxisRole::Compute), (MeshAxes{"context", "tensor", "expert"}));
  EXPECT_EQ(rules.parts(AxisRole::Batch), 6);
  EXPECT_EQ(rules.degrees().data_parallel(), 6);
  EXPECT_EQ(rules.degrees().devices(), 2 * 3 * 5 * 7 * 11);
  // An axis may have one role for some tensors and another for others: experts that borrow data-parallel devices.
  std::vector<ShardingRule> borrowed = standard_rules();
  borrowed.push_back({"experts_on_shard", {"shard"}, AxisRole::Compute});
  const ShardingRules experts({.shard = 2, .tensor = 2}, borrowed);
  EXPECT_EQ(experts.gathered({"experts_on_shard", "embed"}).to_string(), R"(<@mesh, [{"shard"}, {}]>)");
  EXPECT_EQ(experts.gathered({"ffn", "embed"}).to_string(), R"(<@mesh, [{"tensor"}, {}]>)");
  const ShardingRules left = experts.without({"shard"});
  EXPECT_EQ(left.sharding({"batch", "ffn"}).to_string(), R"(<@mesh, [{}, {"tensor"}]>)");
  EXPECT_EQ(left.axes(), MeshAxes{"tensor"});
  EXPECT_EQ(left.mesh(), experts.mesh());
}

TEST(ShardingRules, PlaceAndReadBack) {
  const at::Tensor host = values({8, 3, 16}, 0.1);
  for (const Degrees& degrees : kMeshes) {
    const Following following(degrees);
    at::Tensor x = placed(host, {"vocab", "", "embed"});
    EXPECT_TRUE(x.cpu().equal(host)) << name_of(degrees);
    EXPECT_EQ(part_shape(x), (std::vector<int64_t>{8 / degrees.tensor, 3, 16 / (degrees.shard * degrees.context)})) << name_of(degrees);
    if (sharding_rules()) {
      EXPECT_EQ(part_shape(zeros_like(x, at::kDouble)), part_shape(x)) << name_of(degrees);
    }
    // What is written in place stays laid out as it was, whatever is written.
    const std::vector<int64_t> before = part_shape(x);
    x.copy_(host * 2);
    EXPECT_EQ(part_shape(x), before) << name_of(degrees);
    EXPECT_TRUE(x.cpu().equal(host * 2)) << name_of(degrees);
    x.copy_((host * 2).to(device::tpu()));  // another tensor of the device, which lies otherwise
    EXPECT_EQ(part_shape(x), before) << name_of(degrees);
    device::Capture capture("copy", [&](const Tensors& inputs) -> Tensors {
      x.copy_(inputs[0]);
      return {};
    });
    for (int i = 0; i < 2; ++i) capture({(host * 2).to(device::tpu())});
    EXPECT_EQ(part_shape(x), before) << name_of(degrees);
    x.select(1, 1).add_(1);
    EXPECT_EQ(part_shape(x), before) << name_of(degrees);
    at::Tensor want = host * 2;
    want.select(1, 1).add_(1);
    expect_close(x, want, name_of(degrees));
    expect_close(x.transpose(0, 2).slice(0, 3, 7), want.transpose(0, 2).slice(0, 3, 7), name_of(degrees));
    EXPECT_EQ(part_shape(x + 1), before) << name_of(degrees);
    expect_close((x + 1).sum(0), (want + 1).sum(0), name_of(degrees));
  }
}

TEST(ShardingRules, RefuseWhatDoesNotFit) {
  expect_error([] { use_sharding_rules(ShardingRules({.shard = 16}, standard_rules())); }, "expected a mesh of at most the 8 devices");
  expect_error([] { ShardingRules({.shard = 0}, standard_rules()); }, "expected a degree of at least 1 for the axis shard, got 0");
  const Following following({.shard = 4});
  expect_error([] { placed(values({6}, 0), {"embed"}); }, "does not split into 4 equal parts");
  const at::Tensor x = placed(values({8}, 0), {"embed"});
  expect_error([&] { shard_hint(x, {"embed", ""}); }, "one logical axis a dimension");
  expect_error([&] { manual({x}, {{}}, {{}}, [](const Tensors& local) { return local; }); }, "within a captured step");
}

// A gated feed-forward network with its loss and gradient descent, sharded as a layer of a model is.
struct Network {
  at::Tensor w1, w2;
  explicit Network(const at::Device& device) : w1(values({16, 8}, 1)), w2(values({8, 16}, 2)) {
    if (device != at::kCPU) {
      w1 = placed(w1, {"ffn", "embed"});
      w2 = placed(w2, {"embed", "ffn"});
    }
    w1.requires_grad_();
    w2.requires_grad_();
  }
  Tensors step(const Tensors& inputs) {
    at::Tensor loss;
    Tensors gradients;
    {
      const at::AutoGradMode enabled(true);
      const at::Tensor x = shard_hint(inputs[0], {"batch", "sequence", ""});
      const at::Tensor h = shard_hint(at::silu(at::matmul(x, gather_weight(w1, {"ffn", "embed"}).t())), {"batch", "sequence", "ffn"});
      const at::Tensor y = shard_hint(at::matmul(h, gather_weight(w2, {"embed", "ffn"}).t()), {"batch", "sequence_block", ""});
      loss = (y - x).square().mean();
      gradients = torch::autograd::grad({loss}, {w1, w2});
    }
    const at::NoGradGuard no_grad;
    w1.sub_(gradients[0] * 0.001);
    w2.sub_(gradients[1] * 0.001);
    return {loss.detach(), (gradients[0].square().sum() + gradients[1].square().sum()).sqrt()};
  }
};

TEST(Hints, GiveTheSameStepOnEveryMesh) {
  const at::Tensor x = values({8, 4, 8}, 3);
  Network reference(at::kCPU);
  Tensors want;
  for (int i = 0; i < 3; ++i) want.push_back(at::stack(reference.step({x})));
  for (const Degrees& degrees : kMeshes) {
    const Following following(degrees);
    Network network(device::tpu());
    const std::vector<int64_t> before = part_shape(network.w1);
    device::Capture step("network", [&](const Tensors& inputs) { return network.step(inputs); });
    for (int i = 0; i < 3; ++i) expect_close(at::stack(step({placed(x, {"batch", "sequence", ""})})), want[i], name_of(degrees));
    EXPECT_EQ(part_shape(network.w1), before);
    expect_close(network.w1.detach(), reference.w1.detach(), name_of(degrees));
    expect_close(network.w2.detach(), reference.w2.detach(), name_of(degrees));
  }
}

TEST(Hints, WorkInsideOfAScan) {
  const at::Tensor x = values({8, 4, 8}, 3), stack = values({3, 8, 8}, 4);
  const auto run = [&](const at::Tensor& start, at::Tensor weights) {
    const at::AutoGradMode enabled(true);
    weights = weights.detach().requires_grad_();
    const device::ScanBody body = [](const at::Tensor&, const Tensors& carry, const Tensors& rows, const Tensors&) -> device::ScanValues {
      const at::Tensor y = at::matmul(carry[0], gather_weight(rows[0], {"ffn", "embed"}).t()).tanh();
      return {{shard_hint(y, {"batch", "sequence_block", ""})}};
    };
    const at::Tensor out = device::scan(3, {start}, {weights}, {}, body, {.kind = device::CheckpointPolicy::Kind::Full}).carry[0];
    const at::Tensor loss = out.square().sum();
    return Tensors{loss.detach(), torch::autograd::grad({loss}, {weights})[0]};
  };
  const Tensors want = run(x, stack);
  for (const Degrees& degrees : kMeshes) {
    const Following following(degrees);
    const at::Tensor weights = placed(stack, {"layers", "ffn", "embed"});
    device::Capture capture("scan", [&](const Tensors& inputs) { return run(inputs[0], weights); });
    const Tensors got = capture({placed(x, {"batch", "sequence", ""})});
    expect_close(got[0], want[0], name_of(degrees));
    expect_close(got[1], want[1], name_of(degrees));
  }
}

// The host's rounding is a loop over Philox of its own; programs have the same bits, however a tensor lies.
TEST(StochasticRound, IsTheSameOnEveryMesh) {
  at::Tensor x = values({8, 16, 12}, 2) * 1e-3;
  x.view({-1}).narrow(0, 0, 4).copy_(at::tensor({std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                                                 -std::numeric_limits<float>::max(), 0.0F}));
  const at::Tensor step = at::full({}, (int64_t{1} << 33) + 5, at::kLong), one = at::full({1}, -77, at::kLong), each = at::arange(8, at::kLong) - 3;
  for (const at::Tensor& keys : {one, each}) {
    const at::Tensor want = device::stochastic_round(x, step, keys, 2);
    EXPECT_FALSE(at::equal(want.view(at::kShort), device::stochastic_round(x, step, keys, 1).view(at::kShort)));
    const at::Tensor finite = x.isfinite().logical_and(x.abs() < 1e30);
    EXPECT_LT(at::where(finite, (want.to(at::kFloat) - x).abs() / x.abs().clamp_min(1e-30), at::zeros({})).max().item<float>(), 0x1p-7);
    for (const Degrees& degrees : kMeshes) {
      SCOPED_TRACE(name_of(degrees));
      const Following following(degrees);
      for (const Axes& axes : {Axes{"", "", ""}, Axes{"embed", "heads", ""}, Axes{"", "embed", "heads"}}) {
        device::Capture capture("round", [&](const Tensors& in) { return Tensors{device::stochastic_round(in[0], in[1], in[2], 2)}; });
        const at::Tensor got = capture({placed(x, axes), step.to(device::tpu()), keys.to(device::tpu())})[0].cpu();
        EXPECT_TRUE(at::equal(got.view(at::kShort), want.view(at::kShort))) << axes[0] << axes[1] << axes[2];
      }
    }
  }
}

// Tensors and captured steps of one device and of meshes, in one process and at one time.
TEST(ShardingRules, MeshesLiveSideBySide) {
  const at::Tensor host = values({8, 4}, 1), one = host.to(device::tpu());
  device::Capture doubled("doubled", [](const Tensors& inputs) { return Tensors{inputs[0] * 2}; });
  for (int i = 0; i < 2; ++i) doubled({one});
  std::vector<at::Tensor> tensors{one};
  std::vector<device::Capture> steps;
  for (const Degrees& degrees : {Degrees{.shard = 4}, Degrees{.shard = 2, .tensor = 2}}) {
    const Following following(degrees);
    tensors.push_back(placed(host, {"embed", "heads"}));
    const at::Tensor state = placed(host, {"embed", "heads"});
    steps.emplace_back("step", [state](const Tensors& inputs) {
      state.mul_(0.5).add_(inputs[0]);
      return Tensors{state + 1};
    });
    for (int i = 0; i < 2; ++i) steps.back()({tensors.back()});
  }
  at::Tensor want = host.clone();
  for (int i = 0; i < 2; ++i) want.mul_(0.5).add_(host);
  for (int round = 0; round < 2; ++round) {
    want.mul_(0.5).add_(host);
    for (size_t i = 0; i < steps.size(); ++i) {
      expect_close(steps[i]({tensors[i + 1]})[0], want + 1, "a step of another mesh");
      expect_close(doubled({one})[0], host * 2, "a step of one device between them");
      expect_close(one.add(1), host + 1, "an op of one device between them");
    }
  }
  for (const at::Tensor& t : tensors) expect_close(t.t() + 1, host.t() + 1, "an op of each");
  expect_error([&] { tensors[1] + tensors[2]; }, "expected tensors that lie on the mesh shard 4, as this op uses");
  expect_error([&] { tensors[1] + one; }, "on one device");
  expect_error([&] { steps[0]({one}); }, "'step' was recorded for the mesh shard 4");
  expect_error([&] { doubled({tensors[1]}); }, "'doubled' was recorded for one device");
  expect_close(zeros_like(tensors[1], at::kFloat) + tensors[1], host, "zeros like it");
}

}  // namespace
}  // namespace flambeau::spmd
