// Stacks of layers that differ: how they are cut into loops, and that loops and layers written out are the same. Stacks whose layers
// pass on several tensors, give outputs and update buffers.
#include "nn/stack.h"

#include <cmath>
#include <functional>
#include <map>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/capture.h"
#include "device/device.h"
#include "spmd/sharding_rules.h"

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

device::ScanValues body(const Layer& layer, const Tensors& carry) {
  const at::Tensor& x = carry[0];
  const at::Tensor h = x.mm(layer.in.value.t());
  const at::Tensor y = layer.activation == 1 ? h.sin() : h.tanh();
  return {{x + (layer.out.value.defined() ? y.mm(layer.out.value.t()) : y.mm(layer.in.value)) * 0.5}};
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
        return model.layers.apply({x}, [](const Layer& layer, const Tensors& h, int64_t) { return body(layer, h); }).carry[0];
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
      expect_same(loss_and_gradients(stacked, [&](const at::Tensor& x) { return stacked.layers.scan({x}, policy, body).carry[0]; }));
    }
    expect_same(loss_and_gradients(apart, [&](const at::Tensor& x) { return apart.layers.scan({x}, {}, body).carry[0]; }));
  }
}

// ---- several tensors, outputs, buffers ------------------------------------------------------------------------------------------

constexpr int64_t kTokens = 8, kWidth = 4, kExperts = 3;

// A router in small: its bias is a buffer, which each use moves towards experts with few tokens. W has a weight of its own too.
struct Router {
  Weight gate, bias, out;
  static constexpr Weight Router::*kWeights[] = {&Router::gate, &Router::bias, &Router::out};

  void declare(Parameters& list, const std::string& prefix, int64_t index, const std::string& pattern) {
    list.add(prefix + ".gate", gate, {kExperts, kWidth}, Init::normal(0.5));
    list.add(prefix + ".bias", bias, {kExperts}, Init::normal(0.1), {.buffer = true});
    if (pattern[static_cast<size_t>(index)] == 'W') list.add(prefix + ".out", out, {kWidth, kWidth}, Init::normal(0.5));
  }
};

struct Routed {
  at::Tensor x, balance, counts, shares, bias;
};

// From x [tokens, width] and the sum of balance losses so far. counts [experts] are of tokens, shares [experts] have a gradient.
Routed route(const at::Tensor& x, const at::Tensor& balance, const at::Tensor& gate, const at::Tensor& bias, const at::Tensor& out) {
  const at::Tensor scores = x.mm(gate.t()), probabilities = scores.softmax(1);
  const at::Tensor chosen = (scores + bias).argmax(1, /*keepdim=*/true);
  const at::Tensor counts = chosen.eq(at::arange(kExperts, chosen.options())).sum(0);
  const at::Tensor shares = probabilities.mean(0), y = at::tanh(out.defined() ? x.mm(out.t()) : x) * probabilities.gather(1, chosen);
  return {x + y, balance + (shares * counts).sum() / kTokens, counts, shares,
          bias + (kTokens / static_cast<double>(kExperts) - counts).sign() * 0.125};
}

device::ScanValues router_body(Router& layer, const Tensors& carry) {
  const Routed routed = route(carry[0], carry[1], layer.gate.value, layer.bias.value, layer.out.value);
  layer.bias.value = routed.bias;
  return {{routed.x, routed.balance}, {routed.counts, routed.shares}};
}

// What is differentiated: of the last x, the balance loss, and the shares of each layer.
at::Tensor loss_of(const at::Tensor& x, const at::Tensor& balance, const at::Tensor& shares) {
  const at::Tensor weights = at::arange(shares.size(0), shares.options()).unsqueeze(1) + 1;
  return x.square().mean() + balance + (shares.square() * weights).sum();
}

struct RouterModel {
  RouterModel(const std::string& pattern, bool stacked, at::Device device) : layers(static_cast<int64_t>(pattern.size())) {
    layers.declare(list, "layers", pattern);
    std::vector<AxesRule> rules{{"layers.*.gate", {"", "embed"}}, {"layers.*.bias", {""}}};
    if (pattern.find('W') != std::string::npos) rules.push_back({"layers.*.out", {"ffn", "embed"}});
    list.set_axes(rules);
    if (stacked) layers.lay_out_stacked(list);
    list.initialize(3, device);
  }

  // One step: loss, counts, shares, then the gradients. Buffers get their next values.
  Tensors step(const at::Tensor& x, bool loop, const device::CheckpointPolicy& policy) {
    const at::AutoGradMode enabled(true);
    const Tensors start{x, at::zeros({}, x.options())};
    const StackValues values = loop ? layers.scan(start, policy, router_body)
                                    : layers.apply(start, [](Router& layer, const Tensors& carry, int64_t) { return router_body(layer, carry); });
    const at::Tensor loss = loss_of(values.carry[0], values.carry[1], values.outputs[1]);
    Tensors results{loss.detach(), values.outputs[0], values.outputs[1].detach()};
    for (const at::Tensor& gradient : torch::autograd::grad({loss}, list.trainable_tensors())) results.push_back(gradient);
    const at::NoGradGuard no_grad;
    const Tensors buffers = layers.buffers();
    EXPECT_EQ(buffers.size(), values.buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values.buffers[i]);
    return results;
  }

  // By name, on the CPU: what a checkpoint has.
  std::map<std::string, at::Tensor> named(const Tensors& like_physical) const {
    const Tensors rows = list.rows_of(like_physical);
    std::map<std::string, at::Tensor> result;
    for (size_t i = 0; i < rows.size(); ++i)
      if (rows[i].defined()) result[list.all()[i].name] = rows[i].cpu().clone();
    return result;
  }

  Parameters list;
  Stack<Router> layers;
};

using Named = std::map<std::string, at::Tensor>;

// Loss, counts, shares, and by name the gradients and the values after a step.
struct Outcome {
  Tensors outputs;
  Named gradients, values;
};

// The same by PyTorch alone, from the same values.
Outcome plain_step(const at::Tensor& input, Named& values, size_t layers) {
  const at::AutoGradMode enabled(true);
  std::vector<std::string> names;
  Tensors leaves;
  for (auto& [name, value] : values) {
    value = value.detach().clone();
    if (name.ends_with("bias")) continue;
    names.push_back(name);
    leaves.push_back(value.requires_grad_());
  }
  at::Tensor x = input, balance = at::zeros({});
  Tensors counts, shares;
  Named next = values;
  for (size_t i = 0; i < layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i);
    const auto out = values.find(prefix + ".out");
    const Routed routed = route(x, balance, values.at(prefix + ".gate"), values.at(prefix + ".bias"), out == values.end() ? at::Tensor() : out->second);
    x = routed.x;
    balance = routed.balance;
    counts.push_back(routed.counts);
    shares.push_back(routed.shares);
    next[prefix + ".bias"] = routed.bias.detach();
  }
  const at::Tensor loss = loss_of(x, balance, at::stack(shares));
  Outcome outcome{{loss.detach(), at::stack(counts), at::stack(shares).detach()}, {}, {}};
  const Tensors gradients = torch::autograd::grad({loss}, leaves);
  for (size_t i = 0; i < names.size(); ++i) outcome.gradients[names[i]] = gradients[i];
  outcome.values = values = next;
  return outcome;
}

void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_EQ(got.scalar_type(), want.scalar_type()) << what;
  EXPECT_TRUE(at::allclose(got.cpu(), want.detach(), 1e-5, 1e-6)) << what << "\n" << got.cpu() << "\n" << want;
}

void expect_same(const Named& got, const Named& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, value] : want) expect_close(got.at(name), value, what + " " + name);
}

// Two steps of a model as one captured loop, then the values as a checkpoint in a model that lies otherwise, and a step written out.
void expect_steps(const std::string& pattern, bool stacked, const device::CheckpointPolicy& policy) {
  const at::Tensor input = (at::arange(kTokens * kWidth, at::kFloat) * 0.7).sin().view({kTokens, kWidth});
  RouterModel model(pattern, stacked, device::tpu()), other(pattern, !stacked, device::tpu());
  Named values = model.named(model.list.tensors());
  const auto step_of = [&](RouterModel& m, bool in_loop) {
    return device::Capture("router", [&, in_loop](const Tensors& in) { return m.step(in[0], in_loop, policy); });
  };
  const auto expect_step = [&](device::Capture& step, const RouterModel& m) {
    Tensors got = step({spmd::place(input, {"batch", ""})});
    const Outcome want = plain_step(input, values, pattern.size());
    const char* const names[] = {"loss", "counts", "shares"};
    for (size_t i = 0; i < 3; ++i) expect_close(got[i], want.outputs[i], names[i]);
    got.erase(got.begin(), got.begin() + 3);
    expect_same(m.named(m.list.like_physical(got)), want.gradients, "gradient of");
    expect_same(m.named(m.list.tensors()), want.values, "after the step,");
  };
  device::Capture first = step_of(model, /*in_loop=*/true), second = step_of(other, /*in_loop=*/false);
  const at::Tensor untouched = model.named(model.list.tensors()).at("layers.0.bias");
  for (int i = 0; i < 2; ++i) expect_step(first, model);
  EXPECT_FALSE(at::equal(untouched, values.at("layers.0.bias")));
  const Named saved = model.named(model.list.tensors());
  EXPECT_TRUE(saved.contains("layers.1.bias"));
  other.list.assign(other.list.tensors(), [&](size_t parameter) { return saved.at(other.list.all()[parameter].name); });
  expect_same(other.named(other.list.tensors()), saved, "restored");
  expect_step(second, other);
}

TEST(Stack, GivesOutputsAndUpdatesBuffers) {
  using Kind = device::CheckpointPolicy::Kind;
  for (const spmd::Degrees& degrees : {spmd::Degrees{}, {.shard = 2, .tensor = 2}}) {
    spmd::use_sharding_rules(spmd::ShardingRules(degrees, spmd::standard_rules()));
    for (const std::string pattern : {"RRRR", "RWRWRW", "RRRW"}) {
      if (degrees.devices() > 1 && pattern != "RWRWRW") continue;
      for (const bool stacked : {true, false}) {
        SCOPED_TRACE(fmt::format("{} devices, {}, {}", degrees.devices(), pattern, stacked ? "stacked" : "apart"));
        expect_steps(pattern, stacked, {.kind = pattern == "RRRW" ? Kind::Full : Kind::None});
      }
    }
    spmd::use_sharding_rules(std::nullopt);
  }
}

TEST(Stack, RefusesWhatWouldBeLost) {
  const RouterModel model("RR", true, at::kCPU);
  const Tensors start{at::ones({kTokens, kWidth}), at::zeros({})};
  const auto refusal = [&](const std::function<device::ScanValues(Router&, const Tensors&)>& body) -> std::string {
    std::string first;
    try {
      model.layers.scan(start, {}, body);
    } catch (const InvalidArgument& error) {
      first = error.what();
    }
    try {
      model.layers.apply(start, [&](Router& layer, const Tensors& carry, int64_t) { return body(layer, carry); });
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), first);
      return first;
    }
    return "";
  };
  EXPECT_THAT(refusal([](Router& layer, const Tensors& carry) -> device::ScanValues {
    layer.gate.value = layer.gate.value + 1;
    return {carry};
  }), testing::HasSubstr("expected a body that assigns members that are buffers"));
  EXPECT_THAT(refusal([](Router& layer, const Tensors& carry) -> device::ScanValues {
    layer.bias.value = layer.bias.value.sum();
    return {carry};
  }), testing::HasSubstr("expected the next value of a buffer to be Float [3] as it was, got Float []"));
  EXPECT_EQ(refusal([](Router&, const Tensors& carry) -> device::ScanValues { return {carry}; }), "");
  int calls = 0;
  EXPECT_THROW(model.layers.apply(start, [&](Router&, const Tensors& carry, int64_t) -> device::ScanValues {
    return {carry, Tensors(static_cast<size_t>(calls++), at::ones({}))};
  }), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::nn
