// Manual computations over all axes of a mesh, over some, and inside one another, on eight virtual devices: values and gradients are
// those of the same arithmetic by PyTorch on the CPU.
#include "spmd/manual.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/capture.h"
#include "device/device.h"
#include "device/scan.h"
#include "spmd/sharding.h"
#include "spmd/test_util.h"

namespace flambeau::spmd {
namespace {

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

using Function = std::function<at::Tensor(const Tensors&)>;

// The value of f at `in`, weighted so that no two elements have the same gradient, and the gradients.
Tensors with_gradients(const Function& f, const Tensors& in) {
  const at::AutoGradMode enabled(true);
  Tensors leaves;
  for (const at::Tensor& t : in) leaves.push_back(t.detach().requires_grad_());
  const at::Tensor y = f(leaves);
  Tensors results = torch::autograd::grad({(y * y.detach().cos()).sum()}, leaves);
  results.push_back(y.detach());
  return results;
}

// `f` in a captured step on a mesh, its inputs stored by `axes`, against `plain` on the CPU.
void expect_same(const std::string& what, const Degrees& degrees, const Tensors& in, const std::vector<Axes>& axes, const Function& f,
                 const Function& plain) {
  SCOPED_TRACE(what);
  const Tensors want = with_gradients(plain, in);
  const Following following(degrees);
  Tensors on_mesh;
  for (size_t i = 0; i < in.size(); ++i) on_mesh.push_back(placed(in[i], axes[i]));
  device::Capture capture("step", [&](const Tensors& inputs) { return with_gradients(f, inputs); });
  const Tensors got = capture(on_mesh);
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], fmt::format("{}, tensor {}", what, i));
  device::Capture forward("forward", [&](const Tensors& inputs) { return Tensors{f(inputs)}; });
  expect_close(forward(on_mesh)[0], want.back(), what + ", without a gradient");
}

const Degrees kThreeAxes{.replicate = 2, .shard = 2, .tensor = 2};

// A product whose contracted dimension the manual axes split; rows of x lie over other axes, which are the partitioner's.
TEST(Manual, LeavesOtherAxesToThePartitioner) {
  const Tensors in{values({8, 8}, 1), values({4, 8}, 2), values({4}, 3)};
  const hlo::Sharding columns{{{}, {.axes = {"tensor"}}}}, whole{{{}, {}}};
  const Function plain = [](const Tensors& t) { return (at::matmul(t[0], t[1].t()) + t[2]).tanh(); };
  const struct {
    const char* what;
    std::function<at::Tensor(const at::Tensor&)> sum;  // of partial sums [rows, 4]
    hlo::Sharding out;
  } cases[] = {
      {"all-reduce", [](const at::Tensor& y) { return all_reduce_sum(y, {"tensor"}); }, whole},
      {"reduce-scatter and all-gather", [](const at::Tensor& y) { return all_gather(reduce_scatter(y, {"tensor"}, 1), {"tensor"}, 1); }, whole},
      {"reduce-scatter of rows", [](const at::Tensor& y) { return reduce_scatter(y, {"tensor"}, 0); }, {{{.axes = {"tensor"}}, {}}}},
      {"all-to-all", [](const at::Tensor& y) { return all_to_all(all_to_all(all_reduce_sum(y, {"tensor"}), {"tensor"}, 0, 1), {"tensor"}, 1, 0); }, whole},
      {"collective-permute",
       [](const at::Tensor& y) { return y + collective_permute(y, {"tensor"}, ring({"tensor"})); }, whole},
  };
  for (const auto& c : cases) {
    const Function f = [&](const Tensors& t) {
      return manual(t, {columns, columns, {{{}}}}, {c.out}, [&](const Tensors& local) {
        EXPECT_EQ(local[0].sizes(), at::IntArrayRef({8, 4}));  // rows are whole to the body
        EXPECT_EQ(sharding_rules()->axes(), (MeshAxes{"replicate", "shard"}));
        const at::Tensor y = shard_hint(at::matmul(local[0], local[1].t()), {"batch", "ffn"});
        return Tensors{(c.sum(y) + local[2]).tanh()};
      }, MeshAxes{"tensor"})[0];
    };
    expect_same(c.what, kThreeAxes, in, {{"batch", "heads"}, {"embed", "heads"}, {""}}, f, plain);
  }
}

// Rows over shard by hand, and within that the contracted dimension over tensor by hand; replicate is the partitioner's.
TEST(Manual, StandsInsideAnother) {
  const Tensors in{values({8, 8}, 1), values({4, 8}, 2), values({4}, 3)};
  const hlo::Sharding rows{{{.axes = {"shard"}}, {}}}, columns{{{}, {.axes = {"tensor"}}}}, whole{{{}, {}}}, vector{{{}}};
  const Function plain = [](const Tensors& t) {
    const at::Tensor y = (at::matmul(t[0], t[1].t()) + t[2]).tanh();
    return y * y.mean(0) + t[2].sin();
  };
  // `inner_axes`: given, or all that the outer computation leaves.
  const auto nested = [&](const std::optional<MeshAxes>& inner_axes, bool mean_inside) -> Function {
    return [=](const Tensors& t) {
      const ManualBody product = [=](const Tensors& local) {
        EXPECT_EQ(local[0].sizes(), at::IntArrayRef({4, 4}));
        at::Tensor y = (all_reduce_sum(at::matmul(local[0], local[1].t()), {"tensor"}) + local[2]).tanh();
        if (mean_inside) y = y * (all_reduce_sum(y.sum(0), {"shard"}) / 8);  // over an axis of the computation around it
        return Tensors{y};
      };
      const ManualBody outer = [=](const Tensors& local) {
        EXPECT_EQ(local[0].sizes(), at::IntArrayRef({4, 8}));
        EXPECT_TRUE(can_be_manual());
        at::Tensor y = manual(local, {columns, columns, vector}, {whole}, product, inner_axes)[0];
        if (!mean_inside) y = y * (all_reduce_sum(y.sum(0), {"shard"}) / 8);
        return Tensors{y + local[2].sin()};
      };
      return manual(t, {rows, whole, vector}, {rows}, outer, MeshAxes{"shard"})[0];
    };
  };
  const std::vector<Axes> axes{{"batch", "heads"}, {"", "heads"}, {""}};
  for (const bool mean_inside : {false, true}) {
    expect_same("over tensor in shard", kThreeAxes, in, axes, nested(MeshAxes{"tensor"}, mean_inside), plain);
    expect_same("over all that is left", {.shard = 2, .tensor = 2}, in, axes, nested(std::nullopt, mean_inside), plain);
    expect_same("over all that is left, replicas too", kThreeAxes, in, axes, nested(std::nullopt, mean_inside), plain);
  }
}

// Stages of a pipeline over tensor: each device has a stage's weight and a microbatch, which go around. Rows of the microbatches lie
// over shard, which is the partitioner's; the iterations are a scan.
TEST(Manual, RunsStagesInARing) {
  constexpr int64_t kStages = 4;
  const Tensors in{values({kStages, 4, 6}, 1), values({kStages, 6, 6}, 2)};
  const Function plain = [](const Tensors& t) {
    Tensors done;
    for (int64_t m = 0; m < kStages; ++m) {
      at::Tensor x = t[0][m];
      for (int64_t s = 0; s < kStages; ++s) x = at::tanh(x.mm(t[1][(m + s) % kStages]));
      done.push_back(x);
    }
    return at::stack(done);
  };
  for (const device::CheckpointPolicy::Kind kind : {device::CheckpointPolicy::Kind::None, device::CheckpointPolicy::Kind::Full}) {
    const Function f = [&](const Tensors& t) {
      const hlo::Sharding by_stage{{{.axes = {"tensor"}}, {}, {}}};
      return manual(t, {by_stage, by_stage}, {by_stage}, [&](const Tensors& local) {
        const device::ScanBody iteration = [](const at::Tensor&, const Tensors& carry, const Tensors&, const Tensors& weight) -> device::ScanValues {
          const at::Tensor y = at::tanh(at::matmul(carry[0], weight[0]));
          return {{collective_permute(shard_hint(y, {"", "batch", ""}), {"tensor"}, ring({"tensor"}))}};
        };
        return device::scan(kStages, {local[0]}, {}, {local[1]}, iteration, {.kind = kind}).carry;
      }, MeshAxes{"tensor"})[0];
    };
    expect_same(fmt::format("policy {}", static_cast<int>(kind)), {.shard = 2, .tensor = 4}, in, {{"heads", "batch", ""}, {"heads", "", ""}}, f, plain);
  }
}

TEST(CollectivePermute, SendsAlongAxes) {
  const Tensors in{values({8, 3}, 1)};
  // Row r of the result is row from[r] of x, which is split by rows over the axes; -1: zeros.
  const auto rows_of = [](std::vector<int64_t> from) -> Function {
    return [=](const Tensors& t) {
      Tensors rows;
      for (int64_t r : from) rows.push_back(r < 0 ? at::zeros({3}) : t[0][r]);
      return at::stack(rows).square();
    };
  };
  const struct {
    const char* what;
    MeshAxes axes, over;  // of the collective, of the computation
    DevicePairs pairs;
    std::vector<int64_t> from;
  } cases[] = {
      {"a ring of two axes", {"shard", "tensor"}, {"shard", "tensor"}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 0}}, {7, 0, 1, 2, 3, 4, 5, 6}},
      {"one axis of two", {"shard"}, {"shard", "tensor"}, {{0, 1}, {1, 0}}, {4, 5, 6, 7, 0, 1, 2, 3}},
      {"some devices", {"shard", "tensor"}, {"shard", "tensor"}, {{0, 5}, {3, 3}, {7, 0}}, {7, -1, -1, 3, -1, 0, -1, -1}},
      {"rows that the partitioner splits further", {"shard"}, {"shard"}, {{1, 0}}, {4, 5, 6, 7, -1, -1, -1, -1}},
  };
  for (const auto& c : cases) {
    const Function f = [&](const Tensors& t) {
      const hlo::Sharding rows{{{.axes = c.over}, {}}};
      return manual(t, {rows}, {rows}, [&](const Tensors& local) {
        return Tensors{collective_permute(local[0], c.axes, c.pairs).square()};
      }, c.over)[0];
    };
    expect_same(c.what, {.shard = 2, .tensor = 4}, in, {{"", ""}}, f, rows_of(c.from));
  }
  const Following following({.shard = 2, .tensor = 4});
  EXPECT_EQ(ring({"tensor"}), (DevicePairs{{0, 1}, {1, 2}, {2, 3}, {3, 0}}));
  EXPECT_EQ(ring({"shard"}, -1), (DevicePairs{{0, 1}, {1, 0}}));
  EXPECT_EQ(ring({"tensor"}, -1), (DevicePairs{{0, 3}, {1, 0}, {2, 1}, {3, 2}}));
  const auto run = [&](const DevicePairs& pairs) {
    device::Capture capture("permute", [&](const Tensors& t) {
      return manual(t, {{}}, {{{{}, {}}}}, [&](const Tensors& local) { return Tensors{collective_permute(local[0], {"tensor"}, pairs)}; });
    });
    capture({in[0].to(device::tpu())});
  };
  expect_error([&] { run({}); }, "expected at least one pair of devices");
  expect_error([&] { run({{0, 4}}); }, "expected positions of 0 to 3 along tensor, got 4");
  expect_error([&] { run({{0, 1}, {2, 1}}); }, "at most once as source and once as target");
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
               "expected axes that manual computations around it are over (shard, tensor), got nowhere");
  const ManualBody same = [](const Tensors& t) { return t; };
  expect_error([&] { run([&](const Tensors& local) { return manual(local, {{}}, {{}}, same); }, {}); }, "expected an axis of the mesh that no manual");
  const auto over = [&](const MeshAxes& axes, const ManualBody& body, const hlo::Sharding& in, const hlo::Sharding& out = {}) {
    device::Capture capture("manual", [&](const Tensors& inputs) { return manual(inputs, {in}, {out}, body, axes); });
    capture({x});
  };
  expect_error([&] { over({"expert"}, same, {}); }, "expected axes that are left, each once, of shard, tensor, got expert");
  expect_error([&] { over({}, same, {}); }, "of shard, tensor, got none");
  expect_error([&] { over({"shard", "shard"}, same, {}); }, "got shard, shard");
  const hlo::Sharding by_shard{{{.axes = {"shard"}}, {}}};
  expect_error([&] { over({"tensor"}, same, by_shard); }, "expected layouts over the axes of the computation (tensor)");
  expect_error([&] { over({"tensor"}, same, {}, by_shard); }, "expected layouts over the axes of the computation (tensor)");
  expect_error([&] { over({"tensor"}, [](const Tensors& t) { return Tensors{all_reduce_sum(t[0], {"shard"})}; }, {}); },
               "expected axes that manual computations around it are over (tensor), got shard");
  expect_error([&] { over({"shard"}, [&](const Tensors& t) { return manual(t, {{}}, {{}}, same, MeshAxes{"shard"}); }, {}); },
               "expected axes that are left, each once, of tensor, got shard");
  expect_error([&] { over({"shard"}, [&](const Tensors& t) { return manual(t, {{}}, {{}}, [&](const Tensors& u) { return Tensors{u[0] + t[0]}; }); }, {}); },
               "pass it as an input");
  EXPECT_EQ(ManualScope::current(), nullptr);  // whatever was raised
  for (const hlo::Sharding& out : {hlo::Sharding{{{.axes = {"tensr"}}, {}}}, hlo::Sharding{{{}, {}, {.axes = {"shard"}}}}}) {
    device::Capture capture("manual", [&](const Tensors& inputs) { return manual(inputs, {{}}, {out}, [](const Tensors& t) { return t; }); });
    expect_error([&] { capture({x}); }, "for result 0");
  }
}

}  // namespace
}  // namespace flambeau::spmd
