#include "nn/loss.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "device/capture.h"
#include "device/device.h"

namespace flambeau::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

// Loss, z and both gradients by torch's own cross_entropy and logsumexp.
Tensors reference(const at::Tensor& x, const at::Tensor& w, const at::Tensor& labels, const at::Tensor& divisor, double z_loss) {
  const at::AutoGradMode grad(true);
  const at::Tensor leaf_x = x.detach().requires_grad_(), leaf_w = w.detach().requires_grad_();
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits = at::linear(leaf_x.to(wide), leaf_w.to(x.scalar_type()).to(wide)).flatten(0, 1), flat = labels.flatten();
  const at::Tensor valid = flat.ne(kIgnoredLabel);
  const at::Tensor z = (at::where(valid, at::logsumexp(logits, -1).square(), at::zeros({}, logits.options()))).sum() * z_loss / divisor;
  const at::Tensor total = at::cross_entropy_loss(logits, flat, {}, at::Reduction::Sum, kIgnoredLabel) / divisor + z;
  Tensors out = torch::autograd::grad({total}, {leaf_x, leaf_w});
  out.insert(out.begin(), {total.detach(), z.detach()});
  return out;
}

Tensors ours(const at::Tensor& x, const at::Tensor& w, const at::Tensor& labels, const at::Tensor& divisor, const LossOptions& options) {
  const at::AutoGradMode grad(true);
  const at::Tensor leaf_x = x.detach().requires_grad_();
  const Weight head{.value = w.detach().requires_grad_(), .axes = {"vocab", "embed"}};
  const Loss loss = linear_cross_entropy(leaf_x, head, labels, divisor, options);
  EXPECT_FALSE(loss.z.requires_grad());
  Tensors out = torch::autograd::grad({loss.total}, {leaf_x, head.value});
  out.insert(out.begin(), {loss.total.detach(), loss.z});
  return out;
}

void expect_close(const Tensors& got, const Tensors& expected, double tolerance) {
  const char* names[] = {"total", "z", "dx", "dw"};
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), expected[i].sizes()) << names[i];
    EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type()) << names[i];
    const double error = (got[i].cpu().to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(error, tolerance * expected[i].to(at::kDouble).abs().max().item<double>() + 1e-30) << names[i];
  }
}

struct Case {
  const char* name;
  int64_t sequence, chunks;
  at::ScalarType dtype;
  double z_loss, tolerance;
  enum { Some, All, None } ignored = Some;
  LabelLookup lookup = LabelLookup::Gather;
};

// bfloat16: gradients of logits are rounded once before the products (2^-9 each), and of x once after.
const Case kCases[] = {
    {"one piece", 8, 1, at::kFloat, 0, 1e-6},
    {"pieces", 8, 4, at::kFloat, 0, 1e-6},
    {"a piece a token", 8, 100, at::kFloat, 0, 1e-6},
    {"shorter last piece", 13, 4, at::kFloat, 0, 1e-6},
    {"prime", 7, 6, at::kFloat, 1e-2, 1e-6},
    {"float64", 12, 4, at::kDouble, 1e-2, 1e-13},
    {"z-loss", 8, 2, at::kFloat, 1e-2, 1e-6},
    {"all ignored", 8, 2, at::kFloat, 1e-2, 0, Case::All},
    {"none ignored", 8, 2, at::kFloat, 0, 1e-6, Case::None},
    {"mask", 8, 4, at::kFloat, 1e-2, 1e-6, Case::Some, LabelLookup::Mask},
    {"bfloat16", 8, 4, at::kBFloat16, 0, 6e-3},
    {"bfloat16 z-loss, shorter last piece", 9, 2, at::kBFloat16, 1e-2, 6e-3},
};

Tensors inputs(const Case& c) {
  at::manual_seed(7);
  const at::ScalarType weight = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor labels = at::randint(0, 50, {3, c.sequence}, at::kLong);
  if (c.ignored == Case::All) labels.fill_(kIgnoredLabel);
  if (c.ignored == Case::Some) {
    labels[1].fill_(kIgnoredLabel);
    labels.select(1, 2).fill_(kIgnoredLabel);
  }
  return {at::randn({3, c.sequence, 16}, at::kDouble).to(c.dtype), at::randn({50, 16}, at::kDouble).to(weight), labels,
          valid_tokens(labels).to(weight)};
}

TEST(LinearCrossEntropy, EqualsTorch) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Tensors in = inputs(c);
    const Tensors expected = reference(in[0], in[1], in[2], in[3], c.z_loss);
    const LossOptions options{.chunks = c.chunks, .z_loss = c.z_loss, .lookup = c.lookup};
    expect_close(ours(in[0], in[1], in[2], in[3], options), expected, c.tolerance);
    const Loss alone = linear_cross_entropy(in[0], {in[1], {}}, in[2], in[3], options);  // no gradient wanted
    expect_close({alone.total, alone.z}, {expected[0], expected[1]}, c.tolerance);
  }
}

TEST(LinearCrossEntropy, IsTheSameInACapturedStep) {
  device::initialize();
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Tensors in = inputs(c);
    const LossOptions options{.chunks = c.chunks, .z_loss = c.z_loss, .lookup = c.lookup};
    device::Capture step("loss", [&](const Tensors& t) { return ours(t[0], t[1], t[2], t[3], options); });
    Tensors device_inputs;
    for (const at::Tensor& t : in) device_inputs.push_back(t.to(device::tpu()));
    expect_close(step(device_inputs), reference(in[0], in[1], in[2], in[3], c.z_loss), c.tolerance);
  }
}

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  device::initialize();
  constexpr int64_t B = 4, S = 256, D = 16, V = 8192;
  const auto temporaries = [&](int64_t chunks) {
    device::Capture step("loss", [&](const Tensors& t) { return ours(t[0], t[1], t[2], t[3], {.chunks = chunks}); });
    const at::TensorOptions on = at::TensorOptions(device::tpu());
    step.prepare({at::zeros({B, S, D}, on), at::zeros({V, D}, on), at::zeros({B, S}, on.dtype(at::kLong)), at::ones({}, on)});
    return step.temporary_bytes();
  };
  const int64_t logits = B * S * V * 4;
  EXPECT_GE(temporaries(1), logits);
  EXPECT_LE(temporaries(16), logits / 4);
}

TEST(Loss, CountsValidTokens) {
  EXPECT_EQ(valid_tokens(at::tensor({3, -100, 0, 6}, at::kLong)).item<float>(), 3);
  EXPECT_EQ(valid_tokens(at::full({4}, -100, at::kLong)).item<float>(), 1);
}

TEST(LinearCrossEntropy, RefusesShapesThatDoNotAgree) {
  const Weight head{.value = at::zeros({5, 4}), .axes = {}};
  const at::Tensor one = at::ones({});
  EXPECT_THROW(linear_cross_entropy(at::zeros({2, 3, 3}), head, at::zeros({2, 3}, at::kLong), one, {}), InvalidArgument);
  EXPECT_THROW(linear_cross_entropy(at::zeros({2, 3, 4}), head, at::zeros({2, 4}, at::kLong), one, {}), InvalidArgument);
  EXPECT_THROW(linear_cross_entropy(at::zeros({2, 3, 4}), head, at::zeros({2, 3}, at::kLong), one, {.chunks = 0}), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::nn
