// Frozen parameters, buffers and checkpoints.
#include "train/state.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/decoder/decoder.h"
#include "train/test_run.h"

namespace flambeau::train {
namespace {

using testing::HasSubstr;

// A model that counts the steps that were applied.
struct Counting : models::Decoder {
  Counting()
      : Decoder("counting", {.layers = 2, .dim = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn_dim = 48, .vocab_size = 64,
                             .max_context = 16}) {
    parameters_.add("steps", count, {}, nn::Init::zeros(), {.buffer = true});
  }
  std::string hugging_face_config() const override { return "{}"; }
  void update_buffers(const at::Tensor& apply) override { count.value.copy_(at::where(apply, count.value + 1, count.value)); }
  nn::Weight count;
};

TEST(Frozen, ParametersStayAndTheOthersTrainAsBefore) {
  for (const char* family : {"llama3", "qwen3"}) {
    for (const bool stacked : {false, true}) {
      TinyRun whole(models::make_model(family, "debug", kTiny), "", stacked);
      whole.step();
      const std::vector<at::Tensor> trained = whole.values();
      for (const std::string frozen : {"tok_embeddings", "lm_head", "ffn_norm", "attention.w", "feed_forward", "q_norm"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", family, frozen, stacked));
        if ((frozen == "lm_head" && family == std::string("qwen3")) || (frozen == "q_norm" && family == std::string("llama3"))) continue;
        TinyRun part(models::make_model(family, "debug", kTiny), frozen, stacked);
        const std::vector<at::Tensor> first = part.copies();
        ASSERT_TRUE(part.step().finite);
        const std::vector<at::Tensor> after = part.values();
        const checkpoint::State state = part.state();
        for (size_t i = 0; i < after.size(); ++i) {
          const std::string& name = part.model->parameters().all()[i].name;
          const bool is_frozen = name.find(frozen) != std::string::npos;
          EXPECT_TRUE(at::equal(after[i], is_frozen ? first[i] : trained[i])) << name;
          EXPECT_EQ(std::ranges::count(state.parameters, name, [](const auto& t) { return t.first; }), 1) << name;
          EXPECT_EQ(std::ranges::count(state.optimizer, name + ".exp_avg", [](const auto& t) { return t.first; }), is_frozen ? 0 : 1) << name;
        }
      }
    }
  }
}

TEST(Frozen, InBfloat16IsTheSameAsRoundedBefore) {
  TinyRun rounded(models::make_model("llama3", "debug", kTiny), "feed_forward", true);
  for (const nn::Physical& p : rounded.model->parameters().physical()) {
    if (!rounded.model->parameters().traits(p).trainable) p.weight->value.copy_(p.weight->value.to(at::kBFloat16));
  }
  TinyRun narrow(models::make_model("llama3", "debug", kTiny), "feed_forward", true, at::kBFloat16);
  EXPECT_EQ(rounded.step().loss, narrow.step().loss);
  for (const auto& [name, tensor] : narrow.state().parameters)
    EXPECT_EQ(tensor.scalar_type(), name.find("feed_forward") == std::string::npos ? at::kFloat : at::kBFloat16) << name;
}

TEST(Buffers, AreUpdatedByTheStepAndSaved) {
  TinyRun run(std::make_unique<Counting>());
  const auto count = [](const TinyRun& r) { return static_cast<const Counting&>(*r.model).count.value.item<float>(); };
  for (int64_t n = 1; n <= 3; ++n) run.step(n);
  EXPECT_EQ(count(run), 3);
  run.model->parameters().tensors()[3].detach().view({-1})[7].fill_(std::numeric_limits<float>::quiet_NaN());
  const checkpoint::State saved = run.state();
  EXPECT_FALSE(run.step(4).finite);
  EXPECT_EQ(count(run), 3) << "a step that is withheld updates no buffer";
  TinyRun other(std::make_unique<Counting>());
  restore_state(saved, "step-3", other.config, *other.model, *other.optimizer, at::kCPU);
  EXPECT_EQ(count(other), 3);
}

// Checkpoints of format 1: fused tensors, under the names of then.
TEST(Checkpoints, OfTheOldNamesLoad) {
  for (const char* family : {"llama3", "qwen3"}) {
    for (const bool stacked : {false, true}) {
      TinyRun from(models::make_model(family, "debug", kTiny), "", stacked);
      from.step();
      const nn::Parameters& parameters = from.model->parameters();
      const auto old_layout = [&](const std::vector<at::Tensor>& like_physical, const std::string& suffix, checkpoint::NamedTensors& out) {
        for (const nn::Stored& s : parameters.stored()) {
          const at::Tensor& all = like_physical[s.physical];
          out.emplace_back(s.draw_key() + suffix, (stacked && parameters.physical()[s.physical].stacked ? all[static_cast<int64_t>(s.row)] : all).detach().clone());
        }
      };
      checkpoint::State old;
      old_layout(parameters.tensors(), "", old.parameters);
      for (const Optimizer::State& s : from.optimizer->states()) old_layout(s.tensors, "." + s.name, old.optimizer);
      const auto has = [&](const char* name) { return std::ranges::count(old.parameters, std::string(name), [](const auto& t) { return t.first; }); };
      EXPECT_EQ(has("layers.1.attention.qkv.weight"), 1);
      EXPECT_EQ(has("layers.1.feed_forward.w13.weight"), 1);
      EXPECT_EQ(has("output.weight"), family == std::string("llama3") ? 1 : 0);

      TinyRun to(models::make_model(family, "debug", kTiny));
      to.model->parameters().allocate(at::kCPU);
      to.optimizer.emplace(make_optimizer(to.config, *to.model));
      restore_state(old, "old", to.config, *to.model, *to.optimizer, at::kCPU);
      const checkpoint::State want = from.state(), got = to.state();
      for (size_t i = 0; i < want.parameters.size(); ++i) EXPECT_TRUE(at::equal(got.parameters[i].second, want.parameters[i].second)) << want.parameters[i].first;
      for (size_t i = 0; i + 1 < want.optimizer.size(); ++i) EXPECT_TRUE(at::equal(got.optimizer[i].second, want.optimizer[i].second)) << want.optimizer[i].first;

      for (const auto& [name, dtype] : {std::pair{"SGD", "float32"}, {"AdamW", "bfloat16"}}) {
        Config other = to.config;
        other.optimizer.name = name;
        other.optimizer.state_dtype = dtype;
        Optimizer optimizer = make_optimizer(other, *to.model);
        EXPECT_THROW(restore_state(old, "old", other, *to.model, optimizer, at::kCPU), InvalidArgument) << name << dtype;
      }
    }
  }
}

TEST(Checkpoints, MustHaveEverything) {
  TinyRun run(models::make_model("llama3", "debug", kTiny));
  for (const char* name : {"layers.1.attention.wk.weight", "layers.1.attention.wk.weight.exp_avg", "extra"}) {
    checkpoint::State state = run.state();
    if (std::string_view(name) == "extra") state.parameters.emplace_back(name, at::zeros({1}));
    std::erase_if(state.parameters, [&](const auto& t) { return t.first == name && t.first != "extra"; });
    std::erase_if(state.optimizer, [&](const auto& t) { return t.first == name; });
    try {
      restore_state(state, "step-1", run.config, *run.model, *run.optimizer, at::kCPU);
      ADD_FAILURE() << name;
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace flambeau::train
