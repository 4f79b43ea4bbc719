#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "device/capture.h"
#include "device/device.h"
#include "models/model.h"
#include "nn/loss.h"
#include "spmd/sharding_rules.h"

namespace flambeau::models {
namespace {

class Environment : public testing::Environment {
 public:
  void SetUp() override { device::initialize({.virtual_devices = 8}, true); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

constexpr Overrides kSmall{.vocab_size = 64, .n_layers = 2, .dim = 32, .n_heads = 4, .n_kv_heads = 2, .ffn_dim = 48};

TEST(Models, FlavoursHaveTheirParameters) {
  const struct {
    const char *family, *flavor;
    int64_t parameters;
  } published[] = {
      {"llama3", "1B", 1'235'814'400},   {"llama3", "3B", 3'212'749'824},      {"llama3", "8B", 8'030'261'248},
      {"llama3", "70B", 70'553'706'496}, {"llama3", "405B", 405'853'388'800},  {"qwen3", "0.6B", 596'049'920},
      {"qwen3", "1.7B", 1'720'574'976},  {"qwen3", "4B", 4'022'468'096},       {"qwen3", "8B", 8'190'735'360},
      {"qwen3", "14B", 14'768'307'200},  {"qwen3", "32B", 32'762'123'264},
  };
  for (const auto& p : published) {
    EXPECT_EQ(make_model(p.family, p.flavor, {})->parameters().elements(), p.parameters) << p.family << " " << p.flavor;
  }
}

TEST(Models, LlamasStretchTheirContextAsPublished) {
  for (const auto& [flavor, factor] : {std::pair{"1B", "32.0"}, {"3B", "32.0"}, {"8B", "8.0"}, {"405B", "8.0"}}) {
    EXPECT_THAT(make_model("llama3", flavor, {})->hugging_face_config(), testing::ContainsRegex(std::string("\"factor\": *") + factor)) << flavor;
  }
}

TEST(Models, CountFlopsAsTheFieldDoes) {
  const auto llama = make_model("llama3", "8B", {});
  const double dense = 6.0 * (8'030'261'248 - 128'256.0 * 4096);
  EXPECT_DOUBLE_EQ(llama->flops_per_token(8192).standard, dense + 6.0 * 32 * 32 * (128 + 128) * 8192);
  EXPECT_NEAR(llama->flops_per_token(8192).causal, dense + 6.0 * 32 * 32 * 256 * 4096.5, 1e3);
  // A tied embedding is multiplied by as the head; heads of 128 are wider than 1024 / 16.
  EXPECT_DOUBLE_EQ(make_model("qwen3", "0.6B", {})->flops_per_token(4096).standard,
                   6.0 * 596'049'920 + 6.0 * 28 * 16 * (128 + 128) * 4096);
}

TEST(Models, RefuseSizesThatDoNotFit) {
  const struct {
    const char *family, *flavor;
    Overrides overrides;
    const char* message;
  } cases[] = {
      {"llama9", "debug", {}, "choose from llama3: debug, 1B, 3B, 8B, 70B, 405B; qwen3: debug,"},
      {"llama3", "9B", {}, "model.flavor"},
      {"llama3", "debug", {.n_heads = 7}, "model.n_heads"},
      {"llama3", "debug", {.n_kv_heads = 3}, "model.n_kv_heads"},
      {"llama3", "debug", {.dim = 24}, "model.n_heads"},  // heads of 3: RoPE rotates pairs
      {"llama3", "debug", {.n_layers = -1}, "model.n_layers"},
      {"qwen3", "debug", {.n_kv_heads = 3}, "model.n_kv_heads"},
  };
  for (const auto& c : cases) {
    try {
      make_model(c.family, c.flavor, c.overrides);
      ADD_FAILURE() << c.message;
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(c.message));
    }
  }
  EXPECT_NO_THROW(make_model("qwen3", "debug", {.n_heads = 24}));  // heads have a size of their own
  EXPECT_THROW(make_model("qwen3", "debug", {})->prepare(at::kCPU, 40961), InvalidArgument);
}

TEST(Models, HuggingFaceNamesGoThereAndBack) {
  for (const auto& [family, tensors] : {std::pair{"llama3", 2 * 9 + 3U}, {"qwen3", 2 * 11 + 2U}}) {
    SCOPED_TRACE(family);
    const auto model = make_model(family, "debug", kSmall);
    model->parameters().initialize(1, at::kCPU);
    const std::vector<at::Tensor> before = model->parameters().rows_of(model->parameters().tensors());
    NamedTensors named = model->to_hugging_face(before);
    EXPECT_EQ(named.size(), tensors);
    const std::vector<at::Tensor> after = model->from_hugging_face(named);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << model->parameters().all()[i].name;

    NamedTensors missing(named.begin() + 1, named.end());
    EXPECT_THROW(model->from_hugging_face(missing), InvalidArgument);
    named.emplace_back("model.extra", at::zeros({1}));
    EXPECT_THROW(model->from_hugging_face(named), InvalidArgument);
    named.pop_back();
    named[0].second = at::zeros({3, 32});
    EXPECT_THROW(model->from_hugging_face(named), InvalidArgument);
  }
}

TEST(Models, ParametersHaveTheNamesThatUsersKnow) {
  std::vector<std::string> names;
  const auto model = make_model("qwen3", "debug", {.n_layers = 1});
  for (const nn::Parameter& p : model->parameters()) names.push_back(p.name);
  EXPECT_THAT(names, testing::ElementsAre("tok_embeddings.weight", "layers.0.attention_norm.weight", "layers.0.attention.wq.weight",
                                          "layers.0.attention.wk.weight", "layers.0.attention.wv.weight", "layers.0.attention.q_norm.weight",
                                          "layers.0.attention.k_norm.weight", "layers.0.attention.wo.weight", "layers.0.ffn_norm.weight",
                                          "layers.0.feed_forward.w1.weight", "layers.0.feed_forward.w3.weight",
                                          "layers.0.feed_forward.w2.weight", "norm.weight"));
  EXPECT_EQ(make_model("llama3", "debug", {})->parameters().all().back().name, "lm_head.weight");
}

TEST(Models, PackedDocumentsEqualSeparateOnes) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor({5, 6, 7, 8, 9, 10, 11, 12}, at::kLong).unsqueeze(0);
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 2, 3, 4}, at::kLong).unsqueeze(0);
  const at::Tensor documents = at::tensor({0, 0, 0, 1, 1, 1, 1, 1}, at::kLong).unsqueeze(0);
  for (const char* family : {"llama3", "qwen3"}) {
    const auto model = make_model(family, "debug", kSmall);
    model->parameters().initialize(2, at::kCPU);
    model->prepare(at::kCPU, 8);
    const at::Tensor packed = model->forward({tokens, positions, documents}, at::kFloat);
    const at::Tensor first = model->forward({tokens.narrow(1, 0, 3), {}, {}}, at::kFloat);
    const at::Tensor second = model->forward({tokens.narrow(1, 3, 5), {}, {}}, at::kFloat);
    EXPECT_TRUE(at::allclose(packed, at::cat({first, second}, 1), 1e-4, 1e-5)) << family;
  }
}

TEST(Models, BeginWithSmallLogits) {
  const at::NoGradGuard no_grad;
  at::manual_seed(3);
  const at::Tensor tokens = at::randint(64, {4, 32}, at::kLong), labels = at::randint(64, {4, 32}, at::kLong);
  for (const char* family : {"llama3", "qwen3"}) {  // untied and tied
    const auto model = make_model(family, "debug", {.vocab_size = 64, .n_layers = 2, .ffn_dim = 256});
    model->parameters().initialize(3, at::kCPU);
    model->prepare(at::kCPU, 32);
    const nn::Loss loss = nn::linear_cross_entropy(model->hidden({tokens, {}, {}}, at::kFloat), model->head(), labels, at::full({}, 128.0), {});
    // The head's rows have length 1 and its input has length sqrt(D) = 16, so no logit is far beyond it.
    EXPECT_LT(loss.total.item<float>(), std::log(64.0) + 16) << family;
  }
}

TEST(Models, NameTheAxesOfEveryParameter) {
  for (const char* family : {"llama3", "qwen3"}) {
    const auto model = make_model(family, "debug", {});
    for (const nn::Stored& p : model->parameters().stored()) {
      ASSERT_EQ(p.axes.size(), p.shape.size()) << p.name;
      const bool is_matrix = p.shape.size() > 1;
      EXPECT_EQ(std::ranges::count(p.axes, "embed"), p.name.ends_with("q_norm.weight") || p.name.ends_with("k_norm.weight") ? 0 : 1) << p.name;
      const auto by_tensor = [](const std::string& axis) { return axis == "vocab" || axis == "kv_heads" || axis == "heads" || axis == "ffn"; };
      EXPECT_EQ(std::ranges::count_if(p.axes, by_tensor), is_matrix ? 1 : 0) << p.name;
    }
  }
}

// Loss and gradients of one batch: those of logical parameters, on the CPU.
// Undefined for those whose names have one of `frozen` in them.
std::vector<at::Tensor> gradients_of(const char* family, at::Device device, std::optional<device::CheckpointPolicy> loop,
                                     const std::vector<std::string>& frozen = {}) {
  const auto model = make_model(family, "debug", {.vocab_size = 64, .n_layers = 2, .dim = 32, .n_heads = 8, .n_kv_heads = 4, .ffn_dim = 48});
  model->parameters().freeze([&](const std::string& name) {
    return std::ranges::any_of(frozen, [&](const std::string& part) { return name.find(part) != std::string::npos; });
  });
  model->run_layers_as_loop(loop);
  model->parameters().initialize(6, device);
  model->prepare(device, 16);
  device::Capture step("gradients", [&](const std::vector<at::Tensor>& in) {
    const at::AutoGradMode grad(true);
    const at::Tensor hidden = model->hidden({in[0], in[2], in[3]}, at::kFloat);
    const at::Tensor loss = nn::linear_cross_entropy(hidden, model->head(), in[1], nn::valid_tokens(in[1]), {.chunks = 4}).total;
    std::vector<at::Tensor> out = torch::autograd::grad({loss}, model->parameters().trainable_tensors());
    out.push_back(loss.detach());
    return out;
  });
  at::manual_seed(8);
  const at::Tensor tokens = at::randint(64, {4, 16}, at::kLong), labels = at::randint(64, {4, 16}, at::kLong);
  const at::Tensor positions = (at::arange(16, at::kLong) % 10).expand({4, 16}).contiguous();  // two documents a row
  const at::Tensor documents = at::floor_divide(at::arange(16, at::kLong), 10).expand({4, 16}).contiguous();
  std::vector<at::Tensor> results = step({tokens.to(device), labels.to(device), positions.to(device), documents.to(device)});
  const at::Tensor loss = results.back().cpu();
  results.pop_back();
  std::vector<at::Tensor> rows;
  for (const at::Tensor& row : model->parameters().rows_of(model->parameters().like_physical(results)))
    rows.push_back(row.defined() ? row.cpu() : row);
  rows.push_back(loss);
  return rows;
}

TEST(Models, AreTheSameOnEveryMesh) {
  const device::CheckpointPolicy full{.kind = device::CheckpointPolicy::Kind::Full};
  for (const char* family : {"llama3", "qwen3"}) {
    const std::vector<at::Tensor> expected = gradients_of(family, at::kCPU, {});
    for (const spmd::Degrees& degrees : {spmd::Degrees{.shard = 4}, {.tensor = 4}, {.replicate = 2, .shard = 2, .tensor = 2}}) {
      for (const bool loop : {false, true}) {
        if (!loop && degrees.devices() < 8) continue;  // written out, a program takes long to compile
        SCOPED_TRACE(fmt::format("{} on {} devices, tensor {}{}", family, degrees.devices(), degrees.tensor, loop ? ", as a loop" : ""));
        spmd::use_sharding_rules(spmd::ShardingRules(degrees, spmd::standard_rules()));
        const std::vector<at::Tensor> got = gradients_of(family, device::tpu(), loop ? std::optional(full) : std::nullopt);
        spmd::use_sharding_rules(std::nullopt);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE((got[i] - expected[i]).abs().max().item<float>(), 2e-5 * expected[i].abs().max().item<float>()) << i;
        }
      }
    }
  }
}

TEST(Models, FrozenParametersHaveNoGradientAndChangeNoOther) {
  const device::CheckpointPolicy full{.kind = device::CheckpointPolicy::Kind::Full};
  for (const auto& [family, frozen] : {std::pair{"llama3", std::vector<std::string>{"lm_head", "feed_forward.w2", "ffn_norm"}},
                                       {"qwen3", {"attention.w", "q_norm", "attention_norm"}}}) {
    const std::vector<at::Tensor> expected = gradients_of(family, at::kCPU, {});
    const auto model = make_model(family, "debug", {.n_layers = 2});
    for (const spmd::Degrees& degrees : {spmd::Degrees{}, {.replicate = 2, .shard = 2, .tensor = 2}}) {
      SCOPED_TRACE(fmt::format("{} on {} devices", family, degrees.devices()));
      spmd::use_sharding_rules(spmd::ShardingRules(degrees, spmd::standard_rules()));
      const std::vector<at::Tensor> got = gradients_of(family, device::tpu(), full, frozen);
      spmd::use_sharding_rules(std::nullopt);
      for (size_t i = 0; i < expected.size(); ++i) {
        const std::string name = i < model->parameters().size() ? model->parameters().all()[i].name : "loss";
        const bool is_frozen = std::ranges::any_of(frozen, [&, n = name](const std::string& part) { return n.find(part) != std::string::npos; });
        ASSERT_EQ(got[i].defined(), !is_frozen) << name;
        if (!is_frozen) EXPECT_LE((got[i] - expected[i]).abs().max().item<float>(), 2e-5 * expected[i].abs().max().item<float>()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace flambeau::models
