// Attention in programs for TPUs, ahead of time: recorded for eight devices, compiled by libtpu. Nothing of it runs.
#include "nn/attention.h"

#include <cmath>
#include <regex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "compiled/analysis.h"
#include "compiled/buffers.h"
#include "device/capture.h"
#include "device/device.h"
#include "device/scan.h"
#include "kernels/registry.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"
#include "runtime/recording.h"
#include "spmd/sharding_rules.h"

namespace flambeau::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBatch = 8, kHeads = 4, kKvHeads = 2, kLength = 2048, kWidth = 128, kLayers = 3;
const spmd::Degrees kDegrees{.shard = 4, .tensor = 2};
constexpr int64_t kLocalBatch = kBatch / 4;

class Environment : public testing::Environment {
 public:
  void SetUp() override {
    device::initialize({.target = targets::Target::ahead_of_time(targets::chip_of(targets::Generation::V5e), 8)}, true);
    spmd::use_sharding_rules(spmd::ShardingRules(kDegrees, spmd::standard_rules()));
  }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

// A scan over layers of attention between products, and its gradients.
Tensors step(const Tensors& in, const AttentionOptions& options) {
  const at::AutoGradMode enabled(true);
  const at::Tensor x = in[0].detach().requires_grad_(), weights = in[1].detach().requires_grad_();
  const Attention attention(options, in[2], in[2]);
  const device::ScanBody body = [&](const at::Tensor&, const Tensors& carry, const Tensors& rows, const Tensors&) -> Tensors {
    const at::Tensor qkv = at::matmul(carry[0], rows[0]);
    const auto heads = [&](int64_t first, int64_t count, const char* axis) {
      const at::Tensor part = qkv.narrow(2, first * kWidth, count * kWidth).reshape({kBatch, kLength, count, kWidth}).transpose(1, 2);
      return spmd::shard_hint(part, {"batch", axis, "sequence", ""});
    };
    const at::Tensor out = attention(heads(0, kHeads, "heads") / std::sqrt(kWidth), heads(kHeads, kKvHeads, "kv_heads"),
                                     heads(kHeads + kKvHeads, kKvHeads, "kv_heads"));
    return {spmd::shard_hint(carry[0] + out.flatten(2), {"batch", "sequence", ""})};
  };
  const at::Tensor y = device::scan(kLayers, {x}, {weights}, {}, body, {.kind = device::KeepPolicy::Kind::Selective})[0];
  return torch::autograd::grad({y.to(at::kFloat).square().mean()}, {x, weights});
}

struct Program {
  std::string text;  // as recorded
  pjrt::TopologyResult compiled;
};

device::Capture record(const AttentionOptions& options) {
  device::Capture capture("attention", [options](const Tensors& in) { return step(in, options); });
  const auto zeros = [](std::vector<int64_t> shape, at::ScalarType dtype, const spmd::Axes& axes) {
    return spmd::zeros(device::tpu(), shape, dtype, axes);
  };
  capture.prepare({zeros({kBatch, kLength, kHeads * kWidth}, at::kBFloat16, {"batch", "sequence", ""}),
                   zeros({kLayers, kHeads * kWidth, (kHeads + 2 * kKvHeads) * kWidth}, at::kBFloat16, {"", "", ""}),
                   zeros({kBatch, kLength}, at::kLong, {"batch", "sequence"})});
  return capture;
}

Program compile(AttentionKind kind) {
  const device::Capture capture = record({.kind = kind});
  const auto program = capture.program()->program();
  return {program->text, pjrt::compile_apart({.plugin = pjrt::find_plugin("tpu"), .topology = "v5e:2x4", .program = program->text,
                                              .options = program->options, .time_limit = std::chrono::seconds(300)})};
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

int64_t bytes_of(const pjrt::TopologyResult& compiled) {
  return compiled::parse_buffers(compiled.buffer_assignment, compiled.live_ranges).hbm_bytes();
}

// Whether a value of the compiled program has as many elements as a row has pairs of tokens, in two dimensions.
bool holds_square(const pjrt::TopologyResult& compiled) {
  return std::regex_search(compiled.buffer_assignment, std::regex("\\[[0-9,]*2048,([0-9]+,)*2048[,\\]]"));
}

// Whether there are kernels for one device's part of so many rows; fails for another reason than that JAX is absent.
bool has_kernels(int64_t batch) {
  const hlo::Type query{DType::BF16, {batch, kHeads / 2, kLength, kWidth}}, key{DType::BF16, {batch, kKvHeads / 2, kLength, kWidth}};
  const kernels::Answer answer =
      kernels::find({.name = "flash_attention", .operands = {query, key, key, {DType::S32, {batch, kLength}}}, .options = {0, 0}},
                    runtime::Engine::get().target());
  if (answer.calls) return true;
  EXPECT_THAT(answer.why_not, testing::AnyOf(testing::HasSubstr("has no JAX"), testing::HasSubstr("no Python environment")));
  return false;
}

// FLOPs of the kernels of a step on one device: products forward and backward, of blocks of 512 that reach below the diagonal, in
// each layer, for each head and row.
constexpr double kBlockPairs = 4 + 3 + 2 + 1, kBlockFlops = 2.0 * 512 * 512 * kWidth;
constexpr double kKernelFlops = (2 + 3 + 4) * kBlockPairs * kBlockFlops * kLayers * (kHeads / 2) * kLocalBatch;

double kernel_flops(const pjrt::TopologyResult& compiled) {
  const auto analysis = compiled::analyze(compiled::parse_module(compiled.optimized_hlo));
  double flops = 0;
  for (const auto& c : analysis.contractions)
    if (c.op_name.find("flash_attention") != std::string::npos) flops += c.flops * analysis.runs(c.loop);
  return flops;
}

using TpuAttention = pjrt::LibtpuTest;

TEST_F(TpuAttention, IsInBlocksOrKernels) {
  const Program chunked = compile(AttentionKind::Chunked);
  EXPECT_FALSE(holds_square(chunked.compiled));
  EXPECT_EQ(count(chunked.text, "tpu_custom_call"), 0);
  EXPECT_EQ(chunked.compiled.diagnostics.find("rematerialization"), std::string::npos) << chunked.compiled.diagnostics;

  if (!has_kernels(kLocalBatch)) GTEST_SKIP() << "NOT TESTED: kernels, which need a Python with JAX (FLAMBEAU_PYTHON)";
  for (const AttentionKind kind : {AttentionKind::Flash, AttentionKind::Auto}) {
    const Program flash = compile(kind);
    // One kernel in the forward loop, two in the backward loop, which with this policy does not make the output again; each is given
    // one device's part.
    EXPECT_EQ(count(flash.text, "tpu_custom_call"), 3);
    EXPECT_EQ(count(flash.compiled.optimized_hlo, "tpu_custom_call"), 3);
    EXPECT_THAT(flash.text, testing::HasSubstr("tensor<2x2x2048x128xbf16>, tensor<2x1x2048x128xbf16>, tensor<2x1x2048x128xbf16>, tensor<2x2048x128xi32>"));
    EXPECT_FALSE(holds_square(flash.compiled));
    EXPECT_EQ(kernel_flops(flash.compiled), kKernelFlops);
    EXPECT_EQ(flash.compiled.diagnostics.find("rematerialization"), std::string::npos) << flash.compiled.diagnostics;
    EXPECT_LT(bytes_of(flash.compiled), bytes_of(chunked.compiled));
  }
}

TEST(AttentionUse, SaysWhatFlashBecameAndWhy) {
  const AttentionOptions dense{.kind = AttentionKind::Dense}, blocks{.blocks = {.q = 100}};  // no kernel has such blocks
  record(dense);
  EXPECT_EQ(describe(*dense.use), "dense");
  record(blocks);
  EXPECT_EQ(describe(*blocks.use), "chunked instead of flash: a kernel wants blocks of multiples of 128 that divide a row, and 100 does not");
}

// JAX leaves out the dimension of rows where there is one.
TEST(FlashKernels, AreMadeForOneRow) {
  if (!has_kernels(1)) GTEST_SKIP() << "NOT TESTED: kernels, which need a Python with JAX (FLAMBEAU_PYTHON)";
}

}  // namespace
}  // namespace flambeau::nn
