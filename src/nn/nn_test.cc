
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "device/device.h"
#include "nn/attention.h"
#include "nn/feed_forward.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/parameter.h"
#include "nn/rope.h"
#include "nn/stack.h"
#include "spmd/sharding_rules.h"

namespace flambeau::nn {
namespace {

// Before the first gradient: autograd's threads are those of the devices that it knows then.
class Environment : public testing::Environment {
 public:
  void SetUp() override { device::initialize({.virtual_devices = 8}, true); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

using Tensors = std::vector<at::Tensor>;

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }

// A layer with a derivative of its own, and the same made of ops that torch derives.
struct Case {
  const char* name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> layer, composed;
};

at::Tensor rotate(const at::Tensor& x, const at::Tensor& table) {  // x [B, H, S, E], as Hugging Face writes it
  const at::Tensor cos = table.narrow(-1, 0, 4).repeat({1, 2}), sin = table.narrow(-1, 4, 4).repeat({1, 2});
  const int64_t half = x.size(-1) / 2;
  return x * cos + at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1) * sin;
}

std::vector<Case> cases() {
  const at::Tensor table = rope_table({.factor = 8}, 5, 8), tokens = at::tensor({3, 0, 6, 3, 3, 1}, at::kLong).view({2, 3});
  return {
      {"linear", {random({6, 4}), random({2, 3, 4})},
       [](const Tensors& t) { return Tensors{nn::linear(t[0], {t[1]})}; },
       [](const Tensors& t) { return Tensors{at::linear(t[0], t[1].reshape({6, 4})).view({6, 2, 3})}; }},
      {"linear on [B, S, I]", {random({2, 5, 4}), random({3, 4})},
       [](const Tensors& t) { return Tensors{nn::linear(t[0], {t[1]})}; },
       [](const Tensors& t) { return Tensors{at::linear(t[0], t[1])}; }},
      {"embedding", {random({7, 4})},
       [tokens](const Tensors& t) { return Tensors{nn::embedding(tokens, {t[0]}, at::kFloat)}; },
       [tokens](const Tensors& t) { return Tensors{at::embedding(t[0], tokens)}; }},
      {"rms_norm", {random({2, 3, 16}), random({16})},
       [](const Tensors& t) { return Tensors{nn::rms_norm(t[0], {t[1]}, 1e-5)}; },
       [](const Tensors& t) { return Tensors{at::rms_norm(t[0], {16}, t[1], 1e-5)}; }},
      {"swiglu", {random({2, 3, 2, 8})},
       [](const Tensors& t) { return Tensors{swiglu(t[0])}; },
       [](const Tensors& t) { return Tensors{at::silu(t[0].select(2, 0)) * t[0].select(2, 1)}; }},
      {"split_qkv_rope", {random({2, 5, 3, 4, 8})},
       [table](const Tensors& t) {
         const auto parts = split_qkv_rope(t[0], table, 0.25);
         return Tensors(parts.begin(), parts.end());
       },
       [table](const Tensors& t) {
         const at::Tensor q = t[0].slice(3, 0, 2).reshape({2, 5, 6, 8}).transpose(1, 2);
         return Tensors{rotate(q, table) * 0.25, rotate(t[0].select(3, 2).transpose(1, 2), table), t[0].select(3, 3).transpose(1, 2)};
       }},
      {"split_qkv_norm_rope", {random({2, 5, 3, 4, 8}), random({8}), random({8})},
       [table](const Tensors& t) {
         const auto parts = split_qkv_norm_rope(t[0], {t[1]}, {t[2]}, 1e-2, table, 0.25);
         return Tensors(parts.begin(), parts.end());
       },
       [table](const Tensors& t) {
         const at::Tensor q = at::rms_norm(t[0].slice(3, 0, 2).reshape({2, 5, 6, 8}), {8}, t[1], 1e-2);
         const at::Tensor k = at::rms_norm(t[0].select(3, 2), {8}, t[2], 1e-2);
         return Tensors{rotate(q.transpose(1, 2), table) * 0.25, rotate(k.transpose(1, 2), table), t[0].select(3, 3).transpose(1, 2)};
       }},
  };
}

TEST(Layers, EqualTheirCompositionInValueAndGradient) {
  at::manual_seed(0);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Tensors got = c.layer(c.inputs), expected = c.composed(c.inputs);
    ASSERT_EQ(got.size(), expected.size());
    at::Tensor got_sum = at::zeros({}), expected_sum = at::zeros({});
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-5, 1e-6)) << i;
      const at::Tensor weight = at::randn(got[i].sizes());
      got_sum = got_sum + (got[i] * weight).sum();
      expected_sum = expected_sum + (expected[i] * weight).sum();
    }
    const Tensors got_gradients = torch::autograd::grad({got_sum}, c.inputs);
    const Tensors expected_gradients = torch::autograd::grad({expected_sum}, c.inputs);
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      EXPECT_TRUE(at::allclose(got_gradients[i], expected_gradients[i], 1e-4, 1e-5)) << "gradient of input " << i;
    }
  }
}

TEST(Linear, KeepsTheWeightsGradientInFloat32) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({2, 32, 8}).to(at::kBFloat16), cotangent = at::randn({2, 32, 3, 4}).to(at::kBFloat16), w = at::randn({3, 4, 8});
  const at::Tensor expected = at::einsum("bsij,bsk->ijk", {cotangent.to(at::kDouble), x.to(at::kDouble)});
  for (const at::Device device : {at::Device(at::kCPU), device::tpu()}) {
    const at::Tensor weight = w.to(device).set_requires_grad(true);
    const at::Tensor y = nn::linear(x.to(device), {weight});
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    const at::Tensor g = torch::autograd::grad({y}, {weight}, {cotangent.to(device)})[0];
    EXPECT_EQ(g.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(g.cpu().to(at::kDouble), expected, 1e-5, 1e-5)) << device;  // no rounding to bfloat16
  }
}

TEST(Attention, StaysWithinDocuments) {
  at::manual_seed(1);
  const at::Tensor q = at::randn({1, 4, 6, 8}), k = at::randn({1, 2, 6, 8}), v = at::randn({1, 2, 6, 8});
  const at::Tensor documents = at::tensor({0, 0, 1, 1, 1, 2}, at::kLong).unsqueeze(0);
  const at::Tensor packed = Attention({}, documents, documents)(q, k, v);
  for (const auto& [begin, length] : {std::pair{0, 2}, {2, 3}, {5, 1}}) {
    const auto part = [&, b = begin, n = length](const at::Tensor& t) { return t.narrow(2, b, n); };
    EXPECT_TRUE(at::allclose(packed.narrow(1, begin, length), Attention({}, documents, {})(part(q), part(k), part(v)), 1e-5, 1e-6)) << begin;
  }
}

// ---- layouts --------------------------------------------------------------------------------------------------------------

struct TwoWeights {
  Weight a, b, absent;
  static constexpr Weight TwoWeights::*kWeights[] = {&TwoWeights::a, &TwoWeights::b, &TwoWeights::absent};
  void declare(Parameters& list, const std::string& prefix, int64_t index) {
    list.add(prefix + ".a", a, {4, 3}, Init::normal(0.1 * static_cast<double>(index + 1)));
    list.add(prefix + ".b", b, {3}, Init::ones());
  }
};

struct Layered {
  explicit Layered(bool stacked, at::Device device = at::kCPU) {
    list.add("first", first, {3}, Init::normal(1));
    layers.declare(list, "layers");
    list.add("last", last, {2, 3}, Init::normal(1));
    list.set_axes(std::vector<AxesRule>{{"first", {"embed"}}, {"layers.*.a", {"ffn", "embed"}}, {"layers.*.b", {"embed"}}, {"last", {"", "embed"}}});
    if (stacked) layers.lay_out_stacked(list);
    list.initialize(7, device);
  }
  Parameters list;
  Weight first, last;
  Stack<TwoWeights> layers{3};
};

TEST(Init, DependsOnSeedAndNameAlone) {
  const auto values = [&](const char* name, uint64_t seed) {
    return initial_values({.name = name, .shape = {2, 50, 40}, .init = Init::normal(0.5, 0.9)}, seed);
  };
  EXPECT_TRUE(at::equal(values("a", 1), values("a", 1)));
  EXPECT_FALSE(at::equal(values("a", 1), values("b", 1)));
  EXPECT_FALSE(at::equal(values("a", 1), values("a", 2)));
  EXPECT_LE(values("a", 1).abs().max().item<float>(), 0.9F);
  // An element's value does not depend on how many elements follow.
  EXPECT_TRUE(at::equal(values("a", 1)[0], initial_values({.name = "a", .shape = {50, 40}, .init = Init::normal(0.5, 0.9)}, 1)));
  // A tensor that was called otherwise keeps the values that it had.
  EXPECT_TRUE(at::equal(values("a", 1), initial_values({.name = "b", .key = "a", .shape = {2, 50, 40}, .init = Init::normal(0.5, 0.9)}, 1)));
}

TEST(Init, GivesEveryMeshAndLayoutTheSameBits) {
  const Tensors expected = [] {
    const Layered model(false);
    return model.list.rows_of(model.list.tensors());
  }();
  for (const spmd::Degrees& degrees : {spmd::Degrees{}, {.shard = 3}, {.tensor = 2}, {.shard = 3, .tensor = 2}}) {
    spmd::use_sharding_rules(spmd::ShardingRules(degrees, spmd::standard_rules()));
    for (const bool stacked : {false, true}) {
      const Layered model(stacked, device::tpu());
      const Tensors rows = model.list.rows_of(model.list.tensors());
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(at::equal(rows[i].cpu(), expected[i])) << degrees.devices() << stacked << i;
    }
    spmd::use_sharding_rules(std::nullopt);
  }
}

TEST(Init, HasTheStandardDeviationOfEachPart) {
  Init init = Init::normal(0.02, 2);
  init.part_scale = {1, 0.25};
  const at::Tensor values = initial_values({.name = "w13", .shape = {2, 300, 200}, .init = init}, 3);
  EXPECT_NEAR(values[0].std().item<float>(), 0.02, 4e-4);
  EXPECT_NEAR(values[1].std().item<float>(), 0.005, 1e-4);
  EXPECT_NEAR(values.mean().item<float>(), 0, 2e-4);
}

TEST(Layouts, HoldTheSameLogicalParameters) {
  const Layered apart(false), stacked(true);
  EXPECT_EQ(apart.list.physical().size(), 8U);
  ASSERT_EQ(stacked.list.physical().size(), 4U);
  EXPECT_EQ(stacked.list.elements(), apart.list.elements());
  const Physical& a = stacked.list.physical()[1];
  EXPECT_EQ(a.weight->value.sizes(), (at::IntArrayRef{3, 4, 3}));
  EXPECT_EQ(a.weight->axes, (spmd::Axes{"layers", "ffn", "embed"}));
  const Tensors one = apart.list.rows_of(apart.list.tensors()), other = stacked.list.rows_of(stacked.list.tensors());
  for (size_t i = 0; i < one.size(); ++i) {
    const Parameter& p = stacked.list.all()[i];
    EXPECT_EQ(p.name, apart.list.all()[i].name);
    EXPECT_TRUE(at::equal(one[i], other[i])) << p.name;
    const Stored& stored = stacked.list.stored()[p.stored];
    EXPECT_EQ(stacked.list.physical()[stored.physical].rows[stored.row], p.stored);
  }
  stacked.list.assign(stacked.list.tensors(), [&](size_t i) { return one[i] + static_cast<double>(i); });
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i] + static_cast<double>(i), stacked.list.rows_of(stacked.list.tensors())[i])) << stacked.list.all()[i].name;
  }
}

// A layer whose first tensor is two parameters.
struct Fused {
  Weight ab, c;
  static constexpr Weight Fused::*kWeights[] = {&Fused::ab, &Fused::c};
  void declare(Parameters& list, const std::string& prefix, int64_t) {
    list.add_fused(prefix + ".attention.ab.weight", ab, {2, 3, 4}, 1,
                   {{prefix + ".attention.wa.weight", 2, {4, 4}}, {prefix + ".attention.wb.weight", 1, {2, 4}}}, Init::normal(1));
    list.add(prefix + ".c", c, {3}, Init::ones(), {}, prefix + ".old_c");
  }
};

TEST(Layouts, FusedParametersAreReadAndWrittenApart) {
  for (const bool stacked : {false, true}) {
    Parameters list;
    Stack<Fused> layers{2};
    layers.declare(list, "layers");
    list.set_axes(std::vector<AxesRule>{{"layers.*.attention.ab.weight", {"", "", "embed"}}, {"layers.*.c", {"embed"}}});
    if (stacked) layers.lay_out_stacked(list);
    list.initialize(7, at::kCPU);
    std::vector<std::string> names;
    for (const Parameter& p : list) names.push_back(p.name);
    EXPECT_THAT(names, testing::ElementsAre("layers.0.attention.wa.weight", "layers.0.attention.wb.weight", "layers.0.c",
                                            "layers.1.attention.wa.weight", "layers.1.attention.wb.weight", "layers.1.c"));
    const Stored& ab = list.stored()[2];
    EXPECT_EQ(list.spoken_name(ab), "layers.1.attention.{wa,wb}.weight");
    EXPECT_EQ(list.spoken_name(list.physical()[0]), stacked ? "layers.*.attention.{wa,wb}.weight" : "layers.0.attention.{wa,wb}.weight");
    EXPECT_EQ(list.elements(), 2 * (24 + 3));

    const at::Tensor whole = initial_values(ab, 7);
    const Tensors rows = list.rows_of(list.tensors());
    EXPECT_TRUE(at::equal(rows[3], whole.narrow(1, 0, 2).reshape({4, 4})));
    EXPECT_TRUE(at::equal(rows[4], whole.select(1, 2)));
    Tensors next;  // rows are views of what is about to change
    for (size_t i = 0; i < rows.size(); ++i) next.push_back(rows[i] + static_cast<double>(i));
    list.assign(list.tensors(), [&](size_t i) { return next[i]; });
    const Tensors moved = list.rows_of(list.tensors());
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(at::equal(moved[i], next[i])) << names[i];
  }
}

TEST(Layouts, FrozenParametersAndBuffersHaveNoGradientAndTheirOwnDtype) {
  for (const bool stacked : {false, true}) {
    Parameters list;
    Stack<Fused> layers{2};
    Weight count;
    layers.declare(list, "layers");
    list.add("count", count, {5}, Init::zeros(), {.buffer = true});
    list.set_axes(std::vector<AxesRule>{{"layers.*.attention.ab.weight", {"", "", "embed"}}, {"layers.*.c", {"embed"}}, {"count", {""}}});
    EXPECT_THROW(list.freeze([](const std::string& name) { return name.ends_with("wa.weight"); }), InvalidArgument);
    list.freeze([](const std::string& name) { return name.find("attention") != std::string::npos; }, at::kBFloat16);
    if (stacked) layers.lay_out_stacked(list);
    list.initialize(7, at::kCPU);
    EXPECT_EQ(list.elements(), 2 * (24 + 3)) << "a buffer is no parameter";
    for (const Physical& p : list.physical()) {
      const bool trained = p.weight->value.size(-1) == 3;
      EXPECT_EQ(p.weight->value.requires_grad(), trained);
      EXPECT_EQ(p.weight->value.scalar_type(), p.weight->value.size(-1) == 4 ? at::kBFloat16 : at::kFloat);
    }
    EXPECT_TRUE(at::equal(list.rows_of(list.tensors())[1], initial_values(list.stored()[0], 7).select(1, 2).to(at::kBFloat16)));
    const Tensors trained = list.trainable_tensors();
    ASSERT_EQ(trained.size(), stacked ? 1U : 2U);
    const Tensors rows = list.rows_of(list.like_physical(trained));
    EXPECT_FALSE(rows[0].defined());
    EXPECT_TRUE(at::equal(rows[2], at::ones({3})));
    EXPECT_FALSE(rows[6].defined());
  }
  Parameters list;
  Stack<Fused> layers{2};
  layers.declare(list, "layers");
  list.set_axes(std::vector<AxesRule>{{"layers.*.attention.ab.weight", {"", "", "embed"}}, {"layers.*.c", {"embed"}}});
  list.freeze([](const std::string& name) { return name == "layers.1.c"; });
  EXPECT_THROW(layers.lay_out_stacked(list), InvalidArgument) << "rows of one tensor are all trained or all frozen";
}

TEST(Layouts, ApplyAndScanGiveTheSameGradients) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({2, 3});
  const auto layer = [](const TwoWeights& w, const Tensors& h) -> device::ScanValues {
    return {{h[0] + at::tanh(h[0].mm(w.a.value.t())).mm(w.a.value) * w.b.value}};
  };
  Tensors all;
  for (const bool stacked : {false, true}) {
    for (const bool loop : {false, true}) {
      const Layered model(stacked);
      const StackValues values = loop ? model.layers.scan({x}, device::CheckpointPolicy{}, layer)
                                      : model.layers.apply({x}, [&](const TwoWeights& w, const Tensors& h, int64_t) { return layer(w, h); });
      const at::Tensor y = values.carry[0];
      std::vector<at::Tensor> of_layers = model.list.tensors();
      of_layers.erase(of_layers.begin());
      of_layers.pop_back();
      Tensors like = torch::autograd::grad({y.square().sum()}, of_layers);
      like.insert(like.begin(), model.first.value);
      like.push_back(model.last.value);
      Tensors rows = model.list.rows_of(like);
      rows.push_back(y.detach());
      if (all.empty()) all = rows;
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(at::allclose(rows[i], all[i], 1e-6, 1e-7)) << stacked << loop << i;
    }
  }
}

TEST(Axes, EachParameterHasExactlyOneRule) {
  const auto refusal = [](const std::vector<AxesRule>& rules) -> std::string {
    Parameters list;
    Weight weight;
    list.add("layers.12.wo", weight, {4, 3}, Init::ones());
    try {
      list.set_axes(rules);
      return fmt::format("{}", fmt::join(weight.axes, ","));
    } catch (const InvalidArgument& e) {
      return e.what();
    }
  };
  EXPECT_EQ(refusal({{"layers.*.wo", {"embed", "heads"}}, {"other", {"x"}}}), "embed,heads");
  EXPECT_THAT(refusal({{"layers.*", {"embed", "heads"}}}), testing::HasSubstr("layers.12.wo, got 0"));
  EXPECT_THAT(refusal({{"layers.*.wo", {"a", "b"}}, {"layers.12.wo", {"a", "b"}}}), testing::HasSubstr("got 2"));
  EXPECT_THAT(refusal({{"layers.*.wo", {"a"}}}), testing::HasSubstr("which has 2, got 1"));
}

}  // namespace
}  // namespace flambeau::nn
