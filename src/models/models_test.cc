#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/llama3/llama3.h"

namespace flambeau::models {
namespace {

constexpr Overrides kSmall{.vocab_size = 64, .n_layers = 2, .dim = 32, .n_heads = 4, .n_kv_heads = 2, .ffn_dim = 48};

TEST(Llama3, FlavoursHaveTheirParameters) {
  const std::pair<const char*, int64_t> published[] = {
      {"1B", 1'235'814'400}, {"3B", 3'212'749'824}, {"8B", 8'030'261'248}, {"70B", 70'553'706'496}, {"405B", 405'853'388'800}};
  for (const auto& [flavor, parameters] : published) {
    EXPECT_EQ(make_model("llama3", flavor, {})->parameters().elements(), parameters) << flavor;
  }
}

TEST(Llama3, CountsFlopsAsTheFieldDoes) {
  const auto model = make_model("llama3", "8B", {});
  const double dense = 6.0 * (8'030'261'248 - 128'256.0 * 4096);
  EXPECT_DOUBLE_EQ(model->flops_per_token(8192), dense + 6.0 * 32 * 32 * (128 + 128) * 8192);
  EXPECT_NEAR(model->causal_flops_per_token(8192), dense + 6.0 * 32 * 32 * 256 * 4096.5, 1e3);
}

TEST(Llama3, RefusesSizesThatDoNotFit) {
  const struct {
    const char* flavor;
    Overrides overrides;
    const char* message;
  } cases[] = {
      {"9B", {}, "model.flavor"},
      {"debug", {.n_heads = 7}, "model.n_heads"},
      {"debug", {.n_kv_heads = 3}, "model.n_kv_heads"},
      {"debug", {.dim = 24}, "model.n_heads"},  // heads of 3: RoPE turns pairs
  };
  for (const auto& c : cases) {
    try {
      make_model("llama3", c.flavor, c.overrides);
      ADD_FAILURE() << c.message;
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(c.message));
    }
  }
  EXPECT_THROW(make_model("llama9", "debug", {}), InvalidArgument);
}

TEST(Llama3, HuggingFaceNamesGoThereAndBack) {
  const auto model = make_model("llama3", "debug", kSmall);
  model->parameters().initialize(1, at::kCPU);
  const std::vector<at::Tensor> before = model->parameters().tensors();
  NamedTensors named = model->to_hugging_face(before);
  EXPECT_EQ(named.size(), 2 * 9 + 3U);
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

TEST(Llama3, PackedDocumentsEqualSeparateOnes) {
  const auto model = make_model("llama3", "debug", kSmall);
  model->parameters().initialize(2, at::kCPU);
  model->prepare(at::kCPU, 8);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor({5, 6, 7, 8, 9, 10, 11, 12}, at::kLong).unsqueeze(0);
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 2, 3, 4}, at::kLong).unsqueeze(0);
  const at::Tensor documents = at::tensor({0, 0, 0, 1, 1, 1, 1, 1}, at::kLong).unsqueeze(0);
  const at::Tensor packed = model->forward({tokens, positions, documents}, at::kFloat);
  const at::Tensor first = model->forward({tokens.narrow(1, 0, 3), {}, {}}, at::kFloat);
  const at::Tensor second = model->forward({tokens.narrow(1, 3, 5), {}, {}}, at::kFloat);
  EXPECT_TRUE(at::allclose(packed, at::cat({first, second}), 1e-4, 1e-5));
}

}  // namespace
}  // namespace flambeau::models
