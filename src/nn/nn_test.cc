#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "nn/attention.h"
#include "nn/feed_forward.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/norm.h"
#include "nn/parameter.h"
#include "nn/rope.h"

namespace flambeau::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).set_requires_grad(true); }

// A layer with a derivative of its own, and the same made of ops that torch derives.
struct Case {
  const char* name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> layer, composed;
};

at::Tensor rotate(const at::Tensor& x, const at::Tensor& table) {  // x [B, H, S, E], as Hugging Face writes it
  const at::Tensor cos = at::cat({table[0], table[0]}, -1), sin = at::cat({table[1], table[1]}, -1);
  const int64_t half = x.size(-1) / 2;
  return x * cos + at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1) * sin;
}

std::vector<Case> cases() {
  const at::Tensor table = rope_table({.factor = 8}, 5, 8);
  return {
      {"linear", {random({6, 4}), random({2, 3, 4})},
       [](const Tensors& t) { return Tensors{nn::linear(t[0], t[1])}; },
       [](const Tensors& t) { return Tensors{at::linear(t[0], t[1].reshape({6, 4}))}; }},
      {"rms_norm", {random({6, 16}), random({16})},
       [](const Tensors& t) { return Tensors{nn::rms_norm(t[0], t[1], 1e-5)}; },
       [](const Tensors& t) { return Tensors{at::rms_norm(t[0], {16}, t[1], 1e-5)}; }},
      {"swiglu", {random({6, 2, 8})},
       [](const Tensors& t) { return Tensors{swiglu(t[0])}; },
       [](const Tensors& t) { return Tensors{at::silu(t[0].select(1, 0)) * t[0].select(1, 1)}; }},
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
         const auto parts = split_qkv_norm_rope(t[0], t[1], t[2], 1e-2, table, 0.25);
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
  const at::Tensor x = at::randn({64, 8}).to(at::kBFloat16), w = random({4, 8});
  const at::Tensor y = nn::linear(x, w);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const at::Tensor g = torch::autograd::grad({y.to(at::kFloat).sum()}, {w})[0];
  EXPECT_EQ(g.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(g, x.to(at::kFloat).sum(0).expand({4, 8}), 1e-5, 1e-5));  // no rounding to bfloat16
}

TEST(Attention, StaysWithinDocuments) {
  at::manual_seed(1);
  const at::Tensor q = at::randn({1, 4, 6, 8}), k = at::randn({1, 2, 6, 8}), v = at::randn({1, 2, 6, 8});
  const at::Tensor documents = at::tensor({0, 0, 1, 1, 1, 2}, at::kLong).unsqueeze(0);
  const at::Tensor packed = attention(q, k, v, document_mask(documents));
  for (const auto& [begin, length] : {std::pair{0, 2}, {2, 3}, {5, 1}}) {
    const auto part = [&, b = begin, n = length](const at::Tensor& t) { return t.narrow(2, b, n); };
    EXPECT_TRUE(at::allclose(packed.narrow(1, begin, length), attention(part(q), part(k), part(v), {}), 1e-5, 1e-6)) << begin;
  }
}

TEST(Loss, SumsValidTokens) {
  const at::Tensor logits = at::randn({4, 7}), labels = at::tensor({3, -100, 0, 6}, at::kLong);
  const at::Tensor expected = -(at::log_softmax(logits, -1)[0][3] + at::log_softmax(logits, -1)[2][0] + at::log_softmax(logits, -1)[3][6]);
  EXPECT_NEAR(cross_entropy_sum(logits, labels).item<float>(), expected.item<float>(), 1e-5);
  EXPECT_EQ(valid_tokens(labels).item<float>(), 3);
  EXPECT_EQ(valid_tokens(at::full({4}, -100, at::kLong)).item<float>(), 1);
}

TEST(Init, DependsOnSeedAndNameAlone) {
  at::Tensor unused;
  const auto values = [&](const char* name, uint64_t seed) {
    return initial_values({name, {2, 50, 40}, Init::normal(0.5, 0.9), &unused}, seed);
  };
  EXPECT_TRUE(at::equal(values("a", 1), values("a", 1)));
  EXPECT_FALSE(at::equal(values("a", 1), values("b", 1)));
  EXPECT_FALSE(at::equal(values("a", 1), values("a", 2)));
  EXPECT_LE(values("a", 1).abs().max().item<float>(), 0.9F);
  // An element's value does not depend on how many elements follow.
  EXPECT_TRUE(at::equal(values("a", 1)[0], initial_values({"a", {50, 40}, Init::normal(0.5, 0.9), &unused}, 1)));
}

TEST(Init, HasTheStandardDeviationOfEachPart) {
  at::Tensor unused;
  Init init = Init::normal(0.02, 2);
  init.part_scale = {1, 0.25};
  const at::Tensor values = initial_values({"w13", {2, 300, 200}, init, &unused}, 3);
  EXPECT_NEAR(values[0].std().item<float>(), 0.02, 4e-4);
  EXPECT_NEAR(values[1].std().item<float>(), 0.005, 1e-4);
  EXPECT_NEAR(values.mean().item<float>(), 0, 2e-4);
}

}  // namespace
}  // namespace flambeau::nn
