// A captured scan against a plain loop by PyTorch on the CPU: values, gradients, what is kept, random numbers.
#include "device/scan.h"

#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/capture.h"
#include "device/device.h"
#include "device/own_ops.h"

namespace flambeau::device {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr int64_t kLayers = 5, kWidth = 6, kRows = 4;
using Kind = CheckpointPolicy::Kind;

const CheckpointPolicy kFull{.kind = Kind::Full}, kSelective{.kind = Kind::Selective}, kNone{};
const CheckpointPolicy kPolicies[] = {kFull,
                                kSelective,
                                {.kind = Kind::Selective, .ops = {"tanh"}},
                                {.kind = Kind::Selective, .offload = true},
                                {.kind = Kind::Budget, .budget = 0},
                                {.kind = Kind::Budget, .budget = 0.4},
                                {.kind = Kind::Budget, .budget = 0.7},
                                {.kind = Kind::Budget, .budget = 1},
                                kNone};

at::Tensor wave(at::IntArrayRef sizes, double step) {
  return (at::arange(c10::multiply_integers(sizes), at::kFloat) * step).sin().view(sizes);
}

// x [4, 6], w [5, 6, 6], b [5, 6], scale [6]
Tensors inputs(c10::Device device) {
  return {wave({kRows, kWidth}, 0.7).to(device), wave({kLayers, kWidth, kWidth}, 1.3).to(device), wave({kLayers, kWidth}, 0.9).to(device),
          (wave({kWidth}, 0.4) + 1.5).to(device)};
}

// Layers with a residual, a part without parameters and a count of iterations in an integer carry.
ScanValues layer(const at::Tensor& index, const Tensors& carry, const Tensors& rows, const Tensors& constants) {
  at::Tensor h = at::tanh(carry[0].mm(rows[0]) + rows[1]) * constants[0];
  return {{carry[0] + h.mm(rows[0].t()) * 0.1, carry[1] + index}};
}

// Loss, its gradients with respect to all inputs, and the integer carry.
Tensors scan_gradients(const Tensors& in, const CheckpointPolicy& policy, const ScanBody& body = layer) {
  at::AutoGradMode enabled(true);
  Tensors leaves;
  for (const at::Tensor& t : in) leaves.push_back(t.detach().requires_grad_());
  at::Tensor count = at::zeros({}, in[0].options().dtype(at::kLong));
  Tensors out = scan(kLayers, {leaves[0], count}, {leaves[1], leaves[2]}, {leaves[3]}, body, policy).carry;
  at::Tensor loss = out[0].square().sum();
  Tensors results = torch::autograd::grad({loss}, leaves);
  results.push_back(loss.detach());
  results.push_back(out[1]);
  return results;
}

TEST(Scan, EqualsALoopUnderEveryPolicy) {
  Tensors want = scan_gradients(inputs(at::kCPU), kNone);
  for (const CheckpointPolicy& policy : kPolicies) {
    Capture capture("scan", [&](const Tensors& in) { return scan_gradients(in, policy); });
    capture.prepare(inputs(tpu()));
    Tensors got = capture(inputs(tpu()));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(at::allclose(got[i].cpu(), want[i], 1e-5, 1e-5)) << "policy " << static_cast<int>(policy.kind) << ", result " << i;
  }
}

// Layers whose outputs are a statistic with a gradient, one that comes of the carry alone, a count, and a value without a gradient.
ScanValues layer_with_outputs(const at::Tensor& index, const Tensors& carry, const Tensors& rows, const Tensors& constants) {
  ScanValues values = layer(index, carry, rows, constants);
  const at::Tensor y = values.carry[0];
  values.outputs = {(y * rows[1]).sum(1), carry[0].square().mean(), y.gt(0).sum(), rows[0].detach().amax(0)};
  return values;
}

TEST(Scan, GivesOutputsOfEachIterationWithTheirGradients) {
  const auto run = [](const Tensors& in, const CheckpointPolicy& policy, bool use_carry) {
    at::AutoGradMode enabled(true);
    Tensors leaves;
    for (const at::Tensor& t : in) leaves.push_back(t.detach().requires_grad_());
    const at::Tensor count = at::zeros({}, in[0].options().dtype(at::kLong));
    const auto [carry, outputs] = scan(kLayers, {leaves[0], count}, {leaves[1], leaves[2]}, {leaves[3]}, layer_with_outputs, policy);
    EXPECT_EQ(outputs.size(), 4U);
    EXPECT_TRUE(outputs[0].requires_grad());
    EXPECT_TRUE(!outputs[2].requires_grad() && !outputs[3].requires_grad());
    const at::Tensor weight = (at::arange(kLayers, in[0].options()) + 1).unsqueeze(1);
    at::Tensor loss = (outputs[0] * weight).square().sum() + outputs[1].log().sum();
    if (use_carry) loss = loss + carry[0].sum();
    Tensors results = torch::autograd::grad({loss}, leaves);
    for (const at::Tensor& output : outputs) results.push_back(output.detach());
    results.push_back(loss.detach());
    return results;
  };
  for (const bool use_carry : {false, true}) {
    const Tensors want = run(inputs(at::kCPU), kNone, use_carry);
    for (const CheckpointPolicy& policy : kPolicies) {
      SCOPED_TRACE(fmt::format("policy {}, carry {}", static_cast<int>(policy.kind), use_carry));
      Capture capture("outputs", [&](const Tensors& in) { return run(in, policy, use_carry); });
      const Tensors got = capture(inputs(tpu()));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].sizes(), want[i].sizes());
        // Of the largest value: gradients are in the thousands, and small ones among them are what is left of larger terms.
        EXPECT_LE((got[i].cpu() - want[i]).abs().max().item<double>(), 1e-5 + 1.3e-6 * want[i].abs().max().item<double>()) << "result " << i;
      }
    }
  }
  // Without a gradient.
  Capture forward("forward", [](const Tensors& in) {
    return scan(kLayers, {in[0], at::zeros({}, in[0].options().dtype(at::kLong))}, {in[1], in[2]}, {in[3]}, layer_with_outputs, kNone).outputs;
  });
  const Tensors want = run(inputs(at::kCPU), kNone, true), got = forward(inputs(tpu()));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i].cpu(), want[4 + i], 1e-5, 1e-5)) << i;
}

TEST(Scan, MakesTheSameRandomNumbersAgain) {
  ScanBody noisy = [](const at::Tensor& index, const Tensors& carry, const Tensors& rows, const Tensors& constants) -> ScanValues {
    const Tensors next = layer(index, carry, rows, constants).carry;
    return {{std::get<0>(at::native_dropout(next[0], 0.5, true)), next[1]}};
  };
  std::vector<Tensors> all;
  for (const CheckpointPolicy& policy : {kFull, kPolicies[5], kNone}) {
    at::Generator generator = default_generator();
    generator.set_current_seed(5);
    Capture capture("noisy", [&](const Tensors& in) { return scan_gradients(in, policy, noisy); });
    Tensors first = capture(inputs(tpu())), second = capture(inputs(tpu()));
    EXPECT_FALSE(at::equal(first[0].cpu(), second[0].cpu()));
    all.push_back(second);
  }
  for (size_t i = 0; i < all[0].size(); ++i)
    for (const Tensors& other : all) EXPECT_TRUE(at::allclose(all[0][i].cpu(), other[i].cpu(), 1e-5, 1e-5)) << i;
}

// A loop without a gradient (the weight's largest singular value by power iteration) and a scan with one, within a layer.
ScanValues layer_with_loops(const at::Tensor& index, const Tensors& carry, const Tensors& rows, const Tensors& constants,
                            const CheckpointPolicy& inner_policy, double dropout) {
  at::Tensor w = rows[0].detach();
  at::Tensor v = loop(4, {at::ones({kWidth, 1}, w.options())}, [&](const at::Tensor&, const Tensors& c) -> Tensors {
    at::Tensor next = w.t().mm(w.mm(c[0]));
    return {next / next.norm()};
  })[0];
  ScanBody inner = [&](const at::Tensor& i, const Tensors& c, const Tensors& r, const Tensors& k) -> ScanValues {
    at::Tensor h = at::tanh(c[0].mm(r[0])) * k[0] + w.sum() * 0.01 + (i + index) * 0.1;
    if (dropout > 0) h = std::get<0>(at::native_dropout(h, dropout, true));
    return {{c[0] + h}};
  };
  at::Tensor both = at::stack({rows[0], rows[0].t()});
  at::Tensor x = scan(2, {carry[0] / w.mm(v).norm()}, {both}, {constants[0]}, inner, inner_policy).carry[0];
  return {{x + rows[1], carry[1] + index}};
}

// Apart by at most 1e-5 of the largest value: a gradient through ten layers has elements that cancel.
void expect_close(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor expected = want[i].cpu();
    EXPECT_LE((got[i].cpu() - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>()) << "result " << i;
  }
}

TEST(Scan, HoldsOtherLoops) {
  const auto body = [](const CheckpointPolicy& inner, double dropout) -> ScanBody {
    return [=](const at::Tensor& i, const Tensors& c, const Tensors& r, const Tensors& k) {
      return layer_with_loops(i, c, r, k, inner, dropout);
    };
  };
  const Tensors want = scan_gradients(inputs(at::kCPU), kNone, body(kNone, 0));
  const CheckpointPolicy half{.kind = Kind::Budget};
  const std::pair<CheckpointPolicy, CheckpointPolicy> policies[] = {{kNone, kFull}, {kFull, kNone}, {half, half}, {kSelective, kNone}};
  Tensors noisy;
  for (const auto& [outer, inner] : policies) {
    SCOPED_TRACE(fmt::format("outer policy {}, inner {}", static_cast<int>(outer.kind), static_cast<int>(inner.kind)));
    Capture capture("loops", [&, &outer = outer, &inner = inner](const Tensors& in) { return scan_gradients(in, outer, body(inner, 0)); });
    capture.prepare(inputs(tpu()));
    expect_close(capture(inputs(tpu())), want);

    if (outer.kind == Kind::Selective) continue;
    at::Generator generator = default_generator();
    generator.set_current_seed(5);
    Capture random("noisy loops", [&, &outer = outer, &inner = inner](const Tensors& in) { return scan_gradients(in, outer, body(inner, 0.5)); });
    const Tensors drawn = random(inputs(tpu()));
    if (noisy.empty()) noisy = drawn;
    expect_close(drawn, noisy);
  }
}

TEST(Scan, MemoryFollowsThePolicy) {
  auto kept = [](const CheckpointPolicy& policy) {
    Capture capture("memory", [&](const Tensors& in) {
      at::AutoGradMode enabled(true);
      at::Tensor w = in[1].detach().requires_grad_();
      ScanBody body = [](const at::Tensor&, const Tensors& c, const Tensors& r, const Tensors&) -> ScanValues {
        return {{at::tanh(at::tanh(at::tanh(c[0].mm(r[0]).sin()).cos()).sin())}};
      };
      at::Tensor loss = scan(16, {in[0]}, {w}, {}, body, policy).carry[0].sum();
      return Tensors{torch::autograd::grad({loss}, {w})[0]};
    });
    Tensors in{at::ones({256, 64}).to(tpu()), at::ones({16, 64, 64}).to(tpu())};
    capture.prepare(in);
    return capture.temporary_bytes();
  };
  int64_t carry = kept(kFull), costly = kept(kSelective), everything = kept(kNone);
  EXPECT_LT(carry, costly);
  EXPECT_LT(costly, everything);
  int64_t half = kept({.kind = Kind::Budget, .budget = 0.5});
  EXPECT_LT(carry, half);
  EXPECT_LT(half, everything);
  EXPECT_EQ(kept({.kind = Kind::Budget, .budget = 0}), carry);
  EXPECT_EQ(kept({.kind = Kind::Budget, .budget = 1}), everything);
}

// What torch.profiler shows.
TEST(Scan, IsSeenByProfilers) {
  static thread_local std::set<std::string> seen;
  const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) {
    seen.insert(f.name());
    return std::unique_ptr<at::ObserverContext>();
  }));
  scan(2, {at::ones({3}).to(tpu())}, {}, {}, [](const at::Tensor&, const Tensors& c, const Tensors&, const Tensors&) { return ScanValues{c}; }, kFull);
  dot_general(at::ones({2, 3}).to(tpu()), at::ones({3}).to(tpu()), {1}, {0});
  at::removeCallback(callback);
  EXPECT_THAT(seen, testing::IsSupersetOf({"flambeau::scan", "flambeau::dot_general"}));
}

TEST(Scan, RefusesWhatItCannotDo) {
  ScanBody nested = [](const at::Tensor&, const Tensors& c, const Tensors&, const Tensors&) -> ScanValues {
    return {loop(2, {c[0]}, [](const at::Tensor&, const Tensors& x) -> Tensors { return {x[0] * 2}; })};
  };
  auto run = [&](bool with_gradient) {
    Capture capture("nested", [&](const Tensors& in) {
      at::AutoGradMode enabled(true);
      at::Tensor x = in[0].detach().requires_grad_(with_gradient);
      return Tensors{scan(kLayers, {x}, {}, {}, nested, kFull).carry[0].detach()};
    });
    return capture({at::ones({3}).to(tpu())})[0].sum().item<float>();
  };
  EXPECT_EQ(run(false), 3 * std::pow(4, kLayers));
  try {
    run(true);
    ADD_FAILURE() << "a loop has no gradient";
  } catch (const std::exception& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("gradients do not pass a captured loop"));
  }
  EXPECT_ANY_THROW(scan(3, {at::ones({2})}, {at::ones({4, 2})}, {}, layer, kFull));
  EXPECT_EQ(at::ones({3}).to(tpu()).add(1).sum().item<float>(), 6);  // the device is as before
}

}  // namespace
}  // namespace flambeau::device
