// Sharding rules, layouts and manual computations on eight virtual devices, against the same arithmetic by PyTorch on the CPU.
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
#include "spmd/sharding_rules.h"

namespace flambeau::spmd {
namespace {

using Tensors = std::vector<at::Tensor>;

class Environment : public testing::Environment {
 public:
  void SetUp() override { device::initialize({.virtual_devices = 8}, true); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

// Follows sharding rules while it lives.
struct Following {
  explicit Following(Degrees degrees, bool sequence_parallel = true) {
    use_sharding_rules(ShardingRules(degrees, standard_rules(sequence_parallel)));
  }
  ~Following() { use_sharding_rules(std::nullopt); }
};

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

at::Tensor values(std::vector<int64_t> shape, double seed) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return (at::arange(n, at::kFloat) * 0.37 + seed).sin().view(shape);
}

// The tensor on the device, stored as `axes` says.
at::Tensor placed(const at::Tensor& host, const Axes& axes) {
  const at::Tensor whole = host.contiguous();
  return make_tensor(device::tpu(), whole.sizes().vec(), whole.scalar_type(), axes, [&](const Part& part, void* out) {
    at::Tensor view = whole;
    for (size_t d = 0; d < part.start.size(); ++d) view = view.narrow(static_cast<int64_t>(d), part.start[d], part.size[d]);
    const at::Tensor dense = view.contiguous();
    std::memcpy(out, dense.data_ptr(), static_cast<size_t>(dense.nbytes()));
  });
}

std::vector<int64_t> part_shape(const at::Tensor& tensor) {
  const std::shared_ptr<const runtime::Array> array = device::storage_of(tensor).held().array;
  const auto dims = array->shards().front()->dims();
  return {dims.begin(), dims.end()};
}

void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_TRUE(at::allclose(got.cpu(), want, 1.3e-6, 1e-5)) << what << ": " << (got.cpu() - want).abs().max().item<float>();
}

void expect_error(const std::function<void()>& f, const std::string& part) {
  EXPECT_THAT(f, testing::ThrowsMessage<std::exception>(testing::HasSubstr(part)));
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
    const device::ScanBody body = [](const at::Tensor&, const Tensors& carry, const Tensors& rows, const Tensors&) -> Tensors {
      const at::Tensor y = at::matmul(carry[0], gather_weight(rows[0], {"ffn", "embed"}).t()).tanh();
      return {shard_hint(y, {"batch", "sequence_block", ""})};
    };
    const at::Tensor out = device::scan(3, {start}, {weights}, {}, body, {.kind = device::KeepPolicy::Kind::Full})[0];
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

// y = x w^T over both axes by hand: rows of x over shard, the contracted dimension over tensor; then what follows the sum.
TEST(Manual, ComputesAndDifferentiates) {
  const at::Tensor x = values({8, 8}, 1), w = values({4, 8}, 2), bias = values({4}, 3);
  const auto loss_of = [](const at::Tensor& y) { return (y * y.detach().cos()).sum(); };
  const auto reference = [&] {
    Tensors leaves{x.clone().requires_grad_(), w.clone().requires_grad_(), bias.clone().requires_grad_()};
    const at::Tensor y = (at::matmul(leaves[0], leaves[1].t()) + leaves[2]).tanh();
    Tensors out = torch::autograd::grad({loss_of(y)}, leaves);
    out.insert(out.begin(), y.detach());
    return out;
  }();
  struct Case {
    const char* what;
    std::function<at::Tensor(const Tensors&)> combine;  // from the partial sums [rows, 4] and the bias
    hlo::Sharding out;
  };
  const hlo::Sharding rows{{{.axes = {"shard"}}, {}}}, rows_and_columns{{{.axes = {"shard"}}, {.axes = {"tensor"}}}};
  const Case cases[] = {
      {"all_reduce", [](const Tensors& t) { return (all_reduce_sum(t[0], {"tensor"}) + t[1]).tanh(); }, rows},
      {"reduce_scatter, all_gather",
       [](const Tensors& t) { return (all_gather(reduce_scatter(t[0], {"tensor"}, 1), {"tensor"}, 1) + t[1]).tanh(); }, rows},
      {"gathered over both axes",
       [](const Tensors& t) {
         const at::Tensor y = (all_reduce_sum(t[0], {"tensor"}) + t[1]).tanh();
         return all_gather(y, {"shard"}, 0);
       },
       {{{}, {}}}},
  };
  for (const Degrees& degrees : {Degrees{.shard = 2, .tensor = 4}, Degrees{.shard = 4, .tensor = 2}}) {
    for (const Case& c : cases) {
      const Following following(degrees);
      device::Capture capture("manual", [&](const Tensors& inputs) -> Tensors {
        const at::AutoGradMode enabled(true);
        Tensors leaves;
        for (const at::Tensor& t : inputs) leaves.push_back(t.detach().requires_grad_());
        const at::Tensor y = manual(leaves, {rows_and_columns, {{{}, {.axes = {"tensor"}}}}, {{{}}}}, {c.out}, [&](const Tensors& local) {
          EXPECT_EQ(local[0].sizes(), at::IntArrayRef({8 / degrees.shard, 8 / degrees.tensor}));
          return Tensors{c.combine({at::matmul(local[0], local[1].t()), local[2]})};
        })[0];
        Tensors out = torch::autograd::grad({loss_of(y)}, leaves);
        out.insert(out.begin(), y.detach());
        return out;
      });
      const Tensors got = capture({x.to(device::tpu()), w.to(device::tpu()), bias.to(device::tpu())});
      for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], reference[i], fmt::format("{}, tensor {}", c.what, i));
    }
  }
}

TEST(Manual, RunsWithoutGradients) {
  const Following following({.shard = 4, .tensor = 2});
  const at::Tensor x = values({8, 6}, 1);
  device::Capture capture("manual", [](const Tensors& inputs) {
    return manual(inputs, {{{{.axes = {"shard"}}, {.axes = {"tensor"}}}}}, {{{{}}}}, [](const Tensors& local) {
      return Tensors{all_reduce_max(local[0].amax({0, 1}).unsqueeze(0), {"shard", "tensor"})};
    });
  });
  expect_close(capture({x.to(device::tpu())})[0], x.max().unsqueeze(0), "max");
}

TEST(Manual, RefusesWhatCannotBe) {
  const Following following({.shard = 4, .tensor = 2});
  const at::Tensor x = placed(values({8, 6}, 1), {"embed", ""});
  const auto run = [&](const std::function<Tensors(const Tensors&)>& body, const hlo::Sharding& in) {
    device::Capture capture("manual", [&](const Tensors& inputs) { return manual(inputs, {in}, {{}}, body); });
    capture({x});
  };
  expect_error([&] { run([&](const Tensors& local) { return Tensors{local[0] + x}; }, {}); }, "pass it as an input");
  expect_error([&] { run([](const Tensors& local) { return Tensors{at::rand_like(local[0])}; }, {}); }, "random numbers");
  expect_error([&] { run([](const Tensors& local) { return local; }, {{{}, {.axes = {"shard"}}}}); }, "does not split into 4 equal parts");
  expect_error([&] { run([](const Tensors& local) { return Tensors{all_reduce_sum(local[0], {"nowhere"})}; }, {}); },
               "expected axes of the mesh, got \"nowhere\"");
  expect_error([&] { run([](const Tensors& local) { return manual(local, {{}}, {{}}, [](const Tensors& t) { return t; }); }, {}); },
               "outside of a manual body");
  for (const hlo::Sharding& out : {hlo::Sharding{{{.axes = {"tensr"}}, {}}}, hlo::Sharding{{{}, {}, {.axes = {"shard"}}}}}) {
    device::Capture capture("manual", [&](const Tensors& inputs) { return manual(inputs, {{}}, {out}, [](const Tensors& t) { return t; }); });
    expect_error([&] { capture({x}); }, "for result 0");
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
