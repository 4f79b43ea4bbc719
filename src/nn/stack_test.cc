// Stacks of layers that differ: how they are cut into loops, and that loops and layers written out are the same.
#include "nn/stack.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/capture.h"
#include "device/device.h"

namespace flambeau::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(Runs, HaveTheFewestLayersInBodies) {
  const struct {
    const char* kinds;
    std::vector<LayerRun> runs;
  } cases[] = {
      {"", {}},
      {"A", {{0, 1, 1}}},
      {"AAAA", {{0, 1, 4}}},
      {"AAABB", {{0, 1, 3}, {3, 1, 2}}},
      {"AABAAB", {{0, 3, 2}}},
      {"ABABABA", {{0, 1, 1}, {1, 2, 3}}},
      {"BAAAA", {{0, 1, 1}, {1, 1, 4}}},
      {"AAABAAABAAABAAAB", {{0, 4, 4}}},
      {"ABC", {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}}},
  };
  for (const auto& c : cases) {
    std::vector<size_t> kinds;
    for (const char* k = c.kinds; *k; ++k) kinds.push_back(static_cast<size_t>(*k - 'A'));
    EXPECT_EQ(find_runs(kinds), c.runs) << c.kinds;
  }
}

// What a letter of a pattern stands for: A has one weight, B another one too, C is A of another shape, S is A that no shape tells
// apart from it.
struct Layer {
  Weight in, out;
  int64_t activation = 0;
  static constexpr Weight Layer::*kWeights[] = {&Layer::in, &Layer::out};

  void declare(Parameters& list, const std::string& prefix, int64_t index, const std::string& pattern) {
    const char letter = pattern[static_cast<size_t>(index)];
    list.add(prefix + ".in", in, {letter == 'C' ? 7 : 5, 4}, Init::normal(0.5));
    if (letter == 'B') list.add(prefix + ".out", out, {4, 5}, Init::normal(0.5));
    activation = letter == 'S' ? 1 : 0;
  }
  int64_t kind() const { return activation; }
};

at::Tensor body(const Layer& layer, const at::Tensor& x) {
  const at::Tensor h = x.mm(layer.in.value.t());
  const at::Tensor y = layer.activation == 1 ? h.sin() : h.tanh();
  return x + (layer.out.value.defined() ? y.mm(layer.out.value.t()) : y.mm(layer.in.value)) * 0.5;
}

struct Model {
  Model(const std::string& pattern, bool stacked, at::Device device) : layers(static_cast<int64_t>(pattern.size())) {
    layers.declare(list, "layers", pattern);
    std::vector<AxesRule> rules{{"layers.*.in", {"ffn", "embed"}}};
    if (pattern.find('B') != std::string::npos) rules.push_back({"layers.*.out", {"embed", "ffn"}});
    list.set_axes(rules);
    if (stacked) layers.lay_out_stacked(list);
    list.initialize(3, device);
  }
  Parameters list;
  Stack<Layer> layers;
};

// The loss of `run`, and its gradients as one tensor a logical parameter, on the CPU.
template <class Run>
Tensors loss_and_gradients(const Model& model, Run&& run) {
  const auto step = [&](const Tensors& in) -> Tensors {
    const at::AutoGradMode enabled(true);
    const at::Tensor loss = run(in[0]).square().sum();
    Tensors out = torch::autograd::grad({loss}, model.list.tensors());
    out.push_back(loss.detach());
    return out;
  };
  const at::Device device = model.list.tensors().front().device();
  const Tensors in{(at::arange(12, at::kFloat) * 0.7).sin().view({3, 4}).to(device)};
  device::Capture capture("toy", step);
  capture.prepare(in);
  Tensors out = capture(in);
  const at::Tensor loss = out.back();
  out.pop_back();
  Tensors rows = model.list.rows_of(out);
  rows.push_back(loss);
  for (at::Tensor& row : rows) row = row.cpu();
  return rows;
}

TEST(Stack, OfUnequalLayersEqualsThemWrittenOut) {
  device::initialize({}, /*start=*/true);
  using Kind = device::CheckpointPolicy::Kind;
  const struct {
    const char* pattern;
    size_t loops;
  } cases[] = {{"AAACAAAC", 1}, {"AAABB", 2}, {"ASASA", 2}, {"CBS", 3}};
  const device::CheckpointPolicy policies[] = {{}, {.kind = Kind::Full}, {.kind = Kind::Selective}, {.kind = Kind::Budget}, {.kind = Kind::Selective, .offload = true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.pattern);
    const Model reference(c.pattern, false, at::kCPU);
    const auto written_out = [](const Model& model) {
      return [&](const at::Tensor& x) {
        return model.layers.apply(x, [](const Layer& layer, const at::Tensor& h, int64_t) { return body(layer, h); });
      };
    };
    const Tensors want = loss_and_gradients(reference, written_out(reference));
    const auto expect_same = [&](const Tensors& got) {
      ASSERT_EQ(got.size(), want.size());
      // Of the largest value: gradients through eight layers have elements that cancel.
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), 1e-5 * want[i].abs().max().item<double>()) << i;
    };
    const Model apart(c.pattern, false, device::tpu()), stacked(c.pattern, true, device::tpu());
    EXPECT_EQ(stacked.layers.loops(), c.loops);
    expect_same(loss_and_gradients(stacked, written_out(stacked)));
    for (const device::CheckpointPolicy& policy : policies) {
      SCOPED_TRACE(static_cast<int>(policy.kind));
      expect_same(loss_and_gradients(stacked, [&](const at::Tensor& x) { return stacked.layers.scan(x, policy, body); }));
    }
    expect_same(loss_and_gradients(apart, [&](const at::Tensor& x) { return apart.layers.scan(x, {}, body); }));
  }
}

}  // namespace
}  // namespace flambeau::nn
