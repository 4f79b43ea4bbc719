// Captured steps against the same steps run by PyTorch on the CPU.
#include "device/capture.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "device/device.h"
#include "device/scope.h"

namespace flambeau::device {
namespace {

using Tensors = std::vector<at::Tensor>;

at::TensorOptions on_tpu() { return at::TensorOptions().device(tpu()).dtype(at::kFloat); }

int64_t compiled() { return runtime::Engine::get().counters().programs_compiled; }
int64_t recorded() { return runtime::Engine::get().counters().ops_recorded; }

void expect_error(const std::function<void()>& f, const std::string& part) {
  EXPECT_THAT(f, testing::ThrowsMessage<std::exception>(testing::HasSubstr(part)));
}

// One step of gradient descent on |w x - y|^2, with momentum.
struct Regression {
  at::Tensor w, momentum;
  explicit Regression(at::Device device)
      : w(at::arange(12, at::kFloat).view({3, 4}).to(device)), momentum(at::zeros({3, 4}, at::TensorOptions().device(device))) {
    w.requires_grad_();
  }
  Tensors step(const Tensors& inputs) {
    at::Tensor loss, gradient;
    {
      at::AutoGradMode enabled(true);
      loss = (w.mm(inputs[0]) - inputs[1]).square().sum();
      gradient = torch::autograd::grad({loss}, {w})[0];
    }
    at::NoGradGuard no_grad;
    momentum.mul_(0.9).add_(gradient);
    w.sub_(momentum * inputs[2]);
    return {loss.detach()};
  }
};

Tensors batch(int i, at::Device device) {
  at::Tensor x = (at::arange(8, at::kFloat).view({4, 2}) * (i + 1)).sin();
  return {x.to(device), at::ones({3, 2}).to(device), at::full({}, 0.01 / (i + 1), at::kFloat).to(device)};
}

// Notes the scope that its gradient is computed in.
struct Noting : torch::autograd::Function<Noting> {
  static inline std::vector<std::string> noted;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list& gradients) {
    noted.push_back(current_scope());
    return {gradients[0] * 2};
  }
};

TEST(Capture, GradientsAreInTheScopeOfWhatTheyAreOf) {
  const at::Tensor w = at::ones({3}, on_tpu()).requires_grad_();
  Capture capture("scopes", [&](const Tensors&) -> Tensors {
    Noting::noted.clear();
    const at::AutoGradMode enabled(true);
    at::Tensor x = w;
    {
      const Scope outer("a");
      x = Noting::apply(x);
      {
        const Scope inner("b");
        EXPECT_EQ(current_scope(), "a/b");
        x = Noting::apply(x);
      }
      EXPECT_EQ(current_scope(), "a");
      x = Noting::apply(x);
    }
    EXPECT_EQ(current_scope(), "");
    return torch::autograd::grad({Noting::apply(x).sum()}, {w});
  });
  capture.prepare({});
  EXPECT_THAT(Noting::noted, testing::ElementsAre("backward", "backward/a", "backward/a/b", "backward/a"));
}

TEST(Capture, ReplaysWithChangingInputsAndState) {
  Regression host(at::kCPU), device(tpu());
  Capture capture("regression", [&](const Tensors& in) { return device.step(in); });
  for (int i = 0; i < 6; ++i) {
    int64_t compiled_before = compiled(), recorded_before = recorded();
    Tensors inputs = batch(i, tpu());
    float got = capture(inputs)[0].item<float>(), want = host.step(batch(i, at::kCPU))[0].item<float>();
    EXPECT_NEAR(got, want, 1e-5 * want) << "step " << i;
    if (i >= 2) {
      EXPECT_EQ(compiled(), compiled_before);
      EXPECT_EQ(recorded(), recorded_before);
    }
  }
  EXPECT_TRUE(at::allclose(device.w.cpu(), host.w, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(device.momentum.cpu(), host.momentum, 1e-5, 1e-6));
}

TEST(Capture, PrepareRunsNothing) {
  Regression device(tpu());
  Capture capture("regression", [&](const Tensors& in) { return device.step(in); });
  at::Tensor before = device.w.detach().cpu();
  Tensors inputs = batch(0, tpu());
  capture.prepare(inputs);
  EXPECT_TRUE(at::equal(device.w.detach().cpu(), before));
  int64_t compiled_before = compiled(), recorded_before = recorded();
  capture(inputs);
  EXPECT_EQ(compiled(), compiled_before);
  EXPECT_EQ(recorded(), recorded_before);
  EXPECT_FALSE(at::equal(device.w.detach().cpu(), before));
}

TEST(Capture, RefusesWhatWouldBeFrozen) {
  at::Tensor x = at::ones({3}, on_tpu()), y = at::ones({3}, on_tpu());
  double changing = 1.5;
  Capture number("number", [&](const Tensors&) -> Tensors { return {x.mul(changing += 0.5)}; });
  number({});
  expect_error([&] { number({}); }, "became 2.5");
  EXPECT_EQ(x.sum().item<float>(), 3);

  Capture host_data("host data", [&](const Tensors&) -> Tensors { return {x + at::full({3}, changing += 1).to(tpu())}; });
  host_data({});
  expect_error([&] { host_data({}); }, "12 bytes of data from the host");

  bool flip = false;
  Capture structure("structure", [&](const Tensors&) -> Tensors { return {(flip = !flip) ? x.sin() : x.cos()}; });
  structure({});
  expect_error([&] { structure({}); }, "aten::sin and became aten::cos");

  Capture other_state("other state", [&](const Tensors&) -> Tensors { return {((flip = !flip) ? x : y) * 2}; });
  other_state({});
  expect_error([&] { other_state({}); }, "another one");
}

TEST(Capture, RefusesHostReadsAndOtherShapes) {
  at::Tensor x = at::ones({3}, on_tpu());
  Capture reads("reads", [&](const Tensors& in) -> Tensors { return {x * in[0].sum().item<float>()}; });
  expect_error([&] { reads({x}); }, "read on the host");
  EXPECT_EQ(x.add(1).sum().item<float>(), 6);  // the device is as before

  Capture shapes("shapes", [](const Tensors& in) -> Tensors { return {in[0] + 1}; });
  shapes({x});
  shapes({x});
  expect_error([&] { shapes({at::ones({4}, on_tpu())}); }, "capture the function anew");
}

TEST(Capture, KeepsStateThatIsMadeInside) {
  at::Tensor x = at::ones({2}, on_tpu());
  at::Tensor total;
  Capture capture("lazy", [&](const Tensors& in) -> Tensors {
    if (!total.defined()) total = at::zeros({2}, on_tpu());
    total.add_(in[0]);
    return {total * 2};
  });
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(capture({x})[0].sum().item<float>(), 4 * i);
  EXPECT_EQ(total.sum().item<float>(), 10);

  at::Tensor escaped;
  Capture poisoned("poisoned", [&](const Tensors& in) -> Tensors {
    escaped = in[0] * 3;
    return {in[0]};
  });
  expect_error([&] { poisoned.prepare({x}); }, "outlive");
  expect_error([&] { escaped.cpu(); }, "was not returned");
}

TEST(Capture, RefusesToWriteToItsInputs) {
  at::Tensor x = at::ones({3}, on_tpu());
  Capture capture("writes", [](const Tensors& in) -> Tensors { return {in[0].add_(1)}; });
  expect_error([&] { capture({x}); }, "writes to one of its inputs");
  EXPECT_EQ(x.sum().item<float>(), 3);
}

TEST(Capture, TakesViewsAsInputs) {
  at::Tensor x = at::arange(6, on_tpu());
  Capture capture("views", [](const Tensors& in) -> Tensors { return {in[0].mm(in[0].t())}; });
  at::Tensor want = at::arange(6, at::kFloat).view({2, 3});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(capture({x.view({2, 3})})[0].cpu(), want.mm(want.t())));
  EXPECT_TRUE(at::equal(capture({x.view({3, 2}).t().contiguous().view({2, 3})})[0].cpu(), [&] {
    at::Tensor t = want.view({3, 2}).t().contiguous().view({2, 3});
    return t.mm(t.t());
  }()));
}

TEST(Capture, StateKeepsItsShapeThroughReshapedWrites) {
  at::Tensor w = at::zeros({2, 3}, on_tpu()), never_written = at::empty({2, 3}, on_tpu());
  Capture capture("reshaped", [&](const Tensors& in) -> Tensors {
    w.view({-1}).add_(in[0]);
    never_written.copy_(w);
    return {w.sum()};
  });
  at::Tensor one = at::ones({6}, on_tpu());
  for (int i = 1; i <= 4; ++i) EXPECT_EQ(capture({one})[0].item<float>(), 6 * i);
  w.view({-1}).copy_(at::zeros({6}));
  EXPECT_EQ(capture({one})[0].item<float>(), 6);
  EXPECT_EQ(never_written.sum().item<float>(), 6);
}

TEST(Capture, WhatIsReturnedMayAlsoBeKept) {
  at::Tensor x = at::ones({2}, on_tpu()), total;
  Capture capture("kept", [&](const Tensors& in) -> Tensors {
    if (!total.defined()) total = at::zeros({2}, on_tpu());
    total.add_(in[0]);
    return {total};
  });
  at::Tensor first = capture({x})[0];
  for (int i = 2; i <= 4; ++i) EXPECT_EQ(capture({x})[0].sum().item<float>(), 2 * i);
  EXPECT_EQ(total.sum().item<float>(), 8);
  EXPECT_EQ(first.sum().item<float>(), 2);  // an earlier result stays what it was
}

TEST(Capture, RefusesAGeneratorOfItsOwn) {
  at::Generator own = new_generator();
  Capture capture("generator", [&](const Tensors& in) -> Tensors { return {at::empty_like(in[0]).normal_(0, 1, own)}; });
  expect_error([&] { capture({at::ones({3}, on_tpu())}); }, "generator");
}

TEST(Capture, DrawsNewNumbersAtEachReplay) {
  auto draw = [](bool captured) {
    at::Generator generator = default_generator();
    generator.set_current_seed(11);
    Capture capture("noise", [](const Tensors& in) -> Tensors { return {at::rand_like(in[0]), at::rand_like(in[0])}; });
    at::Tensor x = at::empty({5}, on_tpu());
    std::vector<float> sums;
    for (int i = 0; i < 4; ++i) {
      Tensors r = captured ? capture({x}) : Tensors{at::rand_like(x), at::rand_like(x)};
      sums.push_back(r[0].sum().item<float>());
      sums.push_back(r[1].sum().item<float>());
    }
    return sums;
  };
  std::vector<float> eager = draw(false), captured = draw(true);
  EXPECT_EQ(eager, captured);
  EXPECT_NE(eager[0], eager[1]);
  EXPECT_NE(eager[0], eager[2]);
}

TEST(Loop, AccumulatesInsideOneProgram) {
  at::Tensor w = at::arange(6, at::kFloat).view({2, 3}), x = at::arange(30, at::kFloat).view({5, 3, 2}).cos();
  auto gradients = [](const at::Tensor& w, const at::Tensor& x) {
    return loop(5, {at::zeros_like(w), at::zeros({}, w.options())}, [&](const at::Tensor& i, const Tensors& carry) -> Tensors {
      at::AutoGradMode enabled(true);
      at::Tensor leaf = w.detach().requires_grad_();
      at::Tensor loss = leaf.mm(x.index_select(0, i.reshape({1})).squeeze(0)).square().sum();
      return {carry[0] + torch::autograd::grad({loss}, {leaf})[0], carry[1] + loss.detach()};
    });
  };
  Capture capture("accumulate", [&](const Tensors& in) { return gradients(in[0], in[1]); });
  Tensors want = gradients(w, x);
  for (int i = 0; i < 3; ++i) {
    Tensors got = capture({w.to(tpu()), x.to(tpu())});
    EXPECT_TRUE(at::allclose(got[0].cpu(), want[0], 1e-5, 1e-6));
    EXPECT_NEAR(got[1].item<float>(), want[1].item<float>(), 1e-4);
  }
}

TEST(Loop, RefusesToDropAGradient) {
  Capture capture("gradient", [](const Tensors& in) -> Tensors {
    at::AutoGradMode enabled(true);
    at::Tensor w = in[0].detach().requires_grad_();
    return {loop(2, {w}, [](const at::Tensor&, const Tensors& c) -> Tensors { return {c[0] * 2}; })[0].detach()};
  });
  expect_error([&] { capture({at::ones({2}, on_tpu())}); }, "gradients do not pass");
}

TEST(Loop, RefusesWritesToTheOutside) {
  at::Tensor outside = at::zeros({2}, on_tpu());
  Capture capture("writes", [&](const Tensors& in) {
    return loop(3, {in[0]}, [&](const at::Tensor&, const Tensors& carry) -> Tensors {
      outside.add_(1);
      return carry;
    });
  });
  expect_error([&] { capture({at::ones({2}, on_tpu())}); }, "carry it through the loop");
  Capture shape("shape", [&](const Tensors& in) {
    return loop(3, {in[0]}, [&](const at::Tensor&, const Tensors& carry) -> Tensors { return {at::cat({carry[0], carry[0]})}; });
  });
  expect_error([&] { shape({at::ones({2}, on_tpu())}); }, "must stay");
}

}  // namespace
}  // namespace flambeau::device
