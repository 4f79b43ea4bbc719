// Chunked attention within models' surroundings (meshes, scans, checkpoint policies), against dense attention by PyTorch on the CPU.
// Shapes and dtypes are the op table's affair: tests/torch/op_cases_attention.cc.
#include "nn/attention.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/capture.h"
#include "device/device.h"
#include "device/scan.h"
#include "spmd/sharding_rules.h"

namespace flambeau::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBatch = 4, kHeads = 8, kKvHeads = 4, kLength = 23, kWidth = 8;
const AttentionOptions kChunked{.kind = AttentionKind::Chunked, .blocks = {.q = 5, .kv = 8}};

at::Tensor documents() {
  const at::Tensor positions = at::arange(kLength, at::kLong).unsqueeze(0);
  return (positions + at::arange(kBatch, at::kLong).unsqueeze(1) * 2).div(7, "floor");
}

// x [B, S, D] and weights [.., 2 (q; k and v), H E, D]: a layer of attention with a residual.
at::Tensor layer(const at::Tensor& x, const at::Tensor& weights, const Attention& attention) {
  const auto heads = [&](int64_t which, int64_t count) {
    const at::Tensor rows = weights.select(0, which).narrow(0, 0, count * kWidth);
    return at::matmul(x, rows.t()).view({x.size(0), kLength, count, kWidth}).transpose(1, 2);
  };
  const at::Tensor q = spmd::shard_hint(heads(0, kHeads) / std::sqrt(kWidth), {"batch", "heads", "sequence", ""});
  const at::Tensor kv = spmd::shard_hint(heads(1, kKvHeads), {"batch", "kv_heads", "sequence", ""});
  return x + attention(q, kv.sin(), kv).flatten(2);
}

// The loss of a scan over layers and its gradients.
Tensors step(const Tensors& in, const AttentionOptions& options, bool with_documents, const device::CheckpointPolicy& policy) {
  const at::AutoGradMode enabled(true);
  const at::Tensor x = in[0].detach().requires_grad_(), weights = in[1].detach().requires_grad_();
  const Attention attention(options, in[2], with_documents ? in[2] : at::Tensor());
  const device::ScanBody body = [&](const at::Tensor&, const Tensors& carry, const Tensors& rows, const Tensors&) -> device::ScanValues {
    return {{layer(carry[0], rows[0], attention)}};
  };
  const at::Tensor loss = device::scan(in[1].size(0), {x}, {weights}, {}, body, policy).carry[0].square().mean();
  Tensors results = torch::autograd::grad({loss}, {x, weights});
  results.push_back(loss.detach());
  return results;
}

Tensors inputs() {
  at::manual_seed(3);
  return {at::randn({kBatch, kLength, kHeads * kWidth}), at::randn({3, 2, kHeads * kWidth, kHeads * kWidth}) * 0.1, documents()};
}

void expect_close(const Tensors& got, const Tensors& want, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LE((got[i].cpu() - want[i]).abs().max().item<double>(), 1e-5 * want[i].abs().max().item<double>()) << what << ", result " << i;
  }
}

using Kind = device::CheckpointPolicy::Kind;
const device::CheckpointPolicy kPolicies[] = {{},
                                        {.kind = Kind::Full},
                                        {.kind = Kind::Selective},
                                        {.kind = Kind::Selective, .ops = {"attention"}},
                                        {.kind = Kind::Selective, .offload = true},
                                        {.kind = Kind::Budget, .budget = 0.5}};

TEST(ChunkedAttention, EqualsDenseInAScanUnderEveryPolicy) {
  for (const bool with_documents : {false, true}) {
    const Tensors want = step(inputs(), {}, with_documents, {});
    for (const device::CheckpointPolicy& policy : kPolicies) {
      if (!with_documents && policy.kind != Kind::None) continue;
      device::Capture capture("attention", [&](const Tensors& in) { return step(in, kChunked, with_documents, policy); });
      Tensors on_device;
      for (const at::Tensor& t : inputs()) on_device.push_back(t.to(device::tpu()));
      expect_close(capture(on_device), want, fmt::format("policy {}, documents {}", static_cast<int>(policy.kind), with_documents));
    }
  }
}

TEST(ChunkedAttention, EqualsDenseOnEveryMesh) {
  const spmd::Degrees meshes[] = {
      {.shard = 2, .tensor = 2}, {.tensor = 4}, {.replicate = 2, .shard = 2, .tensor = 2},
      {.shard = 8},  // does not divide the batch
  };
  const Tensors want = step(inputs(), {}, true, {});
  for (const spmd::Degrees& degrees : meshes) {
    spmd::use_sharding_rules(spmd::ShardingRules(degrees, spmd::standard_rules()));
    {
      device::Capture capture("attention", [&](const Tensors& in) { return step(in, kChunked, true, {.kind = Kind::Selective}); });
      const Tensors in = inputs();
      const Tensors placed{spmd::place(in[0], {"batch", "sequence", ""}), spmd::place(in[1], {"", "", "heads", ""}),
                           spmd::place(in[2], {"batch", "sequence"})};
      expect_close(capture(placed), want, fmt::format("replicate {} shard {} tensor {}", degrees.replicate, degrees.shard, degrees.tensor));
    }
    spmd::use_sharding_rules(std::nullopt);
  }
}

// Outside of a capture, op by op.
TEST(ChunkedAttention, EqualsDenseInEagerMode) {
  const Tensors in = inputs();
  const at::Tensor x = in[0].to(device::tpu()), weights = in[1][0].to(device::tpu()), rows = in[2].to(device::tpu());
  const at::Tensor want = layer(in[0], in[1][0], Attention({}, in[2], in[2]));
  expect_close({layer(x, weights, Attention(kChunked, rows, rows))}, {want}, "eager");
}

TEST(Attention, IsChosenByDeviceAndLength) {
  const auto kind = [](AttentionKind wanted, int64_t length, at::Device device) {
    return Attention({.kind = wanted}, at::zeros({1, length}, at::TensorOptions().dtype(at::kLong).device(device)), {}).kind();
  };
  EXPECT_EQ(kind(AttentionKind::Auto, 256, device::tpu()), AttentionKind::Dense);  // the device is a CPU plugin
  EXPECT_EQ(kind(AttentionKind::Auto, 512, device::tpu()), AttentionKind::Chunked);
  EXPECT_EQ(kind(AttentionKind::Dense, 512, device::tpu()), AttentionKind::Dense);
  EXPECT_EQ(kind(AttentionKind::Chunked, 16, device::tpu()), AttentionKind::Chunked);
  EXPECT_EQ(kind(AttentionKind::Chunked, 512, at::kCPU), AttentionKind::Dense);  // the reference
}

}  // namespace
}  // namespace flambeau::nn
