#include <cmath>
#include <filesystem>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "train/metrics.h"
#include "train/sampler.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/test_files.h"
#include "train/test_run.h"

namespace flambeau::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// ---- schedule -----------------------------------------------------------------------------------------------------------

TEST(Schedule, FollowsItsFormula) {
  const Schedule all({.warmup_steps = 2, .total_steps = 10});  // D = 8, S = 1
  EXPECT_DOUBLE_EQ(all.factor(0), 0.5);
  EXPECT_DOUBLE_EQ(all.factor(1), 1);
  EXPECT_DOUBLE_EQ(all.factor(2), 1);
  EXPECT_DOUBLE_EQ(all.factor(3), 1 - 1.0 / 8);
  EXPECT_DOUBLE_EQ(all.factor(9), 1 - 7.0 / 8);  // above the floor

  const auto last = [](DecayType type) {
    return Schedule({.warmup_steps = 2, .total_steps = 10, .decay_ratio = 0.4, .decay_type = type, .min_lr_factor = 0.1}).factor(8);
  };  // D = 4, S = 5: p = 2 / 4
  EXPECT_DOUBLE_EQ(last(DecayType::Linear), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(last(DecayType::Sqrt), 0.1 + 0.9 * (1 - std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(last(DecayType::Cosine), 0.1 + 0.9 * (1 + std::cos(std::numbers::pi / 2)) / 2);

  testing::internal::CaptureStderr();
  const Schedule cut({.warmup_steps = 20, .total_steps = 4});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::AllOf(HasSubstr("warning"), HasSubstr("20"), HasSubstr("warming up for 4")));
  EXPECT_EQ(cut.warmup(), 4);
  EXPECT_DOUBLE_EQ(cut.factor(3), 1);
}

TEST(Schedule, PartsAddUp) {
  const struct {
    int64_t warmup, total;
    std::optional<double> ratio;
    int64_t decay, stable;
  } cases[] = {
      {200, 1000, {}, 800, 1}, {200, 1000, 0.1, 100, 701}, {0, 10, 0.25, 3, 8},  // round(2.5) away from zero
      {5, 10, 0.9, 5, 1},      {10, 10, {}, 0, 1},         {0, 10, 0.0, 0, 11},
  };
  for (const auto& c : cases) {
    const Schedule s({.warmup_steps = c.warmup, .total_steps = c.total, .decay_ratio = c.ratio});
    EXPECT_EQ(s.decay(), c.decay);
    EXPECT_EQ(s.stable(), c.stable);
    EXPECT_GT(s.factor(c.total - 1), 0);  // the last real step is above the floor
    for (int64_t i = 1; i < c.total; ++i) EXPECT_EQ(s.factor(i) > s.factor(i - 1), i < c.warmup) << i;
  }
}

// ---- steps ------------------------------------------------------------------------------------------------------------

struct Small {
  explicit Small(bool stacked = false) : model(models::make_model("llama3", "debug", kTiny)) {
    if (stacked) model->run_layers_as_loop(device::CheckpointPolicy{});
    model->parameters().initialize(5, at::kCPU);
    model->prepare(at::kCPU, 16);
    Config config;
    config.optimizer.lr = 1e-3;
    optimizer.emplace(make_optimizer(config, *model));
    at::manual_seed(3);
    batch.tokens = at::randint(0, 64, {4, 2, 16}, at::kLong);
    batch.labels = at::randint(0, 64, {4, 2, 16}, at::kLong);
    batch.labels[1].fill_(-100);  // microbatches with different counts of valid tokens
  }
  StepResult step(const TokenBatch& b, int64_t n = 1) {
    TrainStep train(*model, *optimizer, at::kCPU, {});
    train.start(b, 1, n);
    return train.finish();
  }
  std::unique_ptr<models::Model> model;
  std::optional<Optimizer> optimizer;
  TokenBatch batch;
};

TEST(TrainStep, AccumulationEqualsOneLargeBatch) {
  Small accumulated, whole;
  whole.batch.tokens = whole.batch.tokens.view({1, 8, 16});
  whole.batch.labels = whole.batch.labels.view({1, 8, 16});
  const StepResult a = accumulated.step(accumulated.batch), b = whole.step(whole.batch);
  EXPECT_NEAR(a.loss, b.loss, 1e-5);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5);
  for (size_t i = 0; i < whole.model->parameters().physical().size(); ++i) {
    const std::string name = whole.model->parameters().spoken_name(whole.model->parameters().physical()[i]);
    EXPECT_TRUE(at::allclose(accumulated.optimizer->states()[0].tensors[i], whole.optimizer->states()[0].tensors[i], 1e-3, 1e-7)) << name;
    EXPECT_TRUE(at::allclose(accumulated.model->parameters().tensors()[i], whole.model->parameters().tensors()[i], 1e-3, 1e-4)) << name;
  }
}

TEST(TrainStep, WithholdsTheUpdateThatIsNotFiniteAndNamesTheCulprit) {
  Small small;
  const at::Tensor poisoned = small.model->parameters().tensors()[3];
  poisoned.detach().view({-1})[7].fill_(std::numeric_limits<float>::quiet_NaN());
  std::vector<at::Tensor> before;
  for (const at::Tensor& t : small.model->parameters().tensors()) before.push_back(t.detach().clone());
  const StepResult result = small.step(small.batch);
  EXPECT_FALSE(result.finite);
  size_t i = 0;
  for (const at::Tensor& t : small.model->parameters().tensors()) {
    EXPECT_TRUE(at::allclose(t, before[i], 0, 0, /*equal_nan=*/true)) << i;
    EXPECT_EQ(small.optimizer->states()[0].tensors[i].abs().max().item<float>(), 0) << i;
    ++i;
  }
  EXPECT_EQ(first_non_finite(*small.model, at::kCPU, {}, small.batch, result), "parameter layers.0.attention.wo.weight");

  Small large;  // finite weights whose products are not
  large.model->parameters().tensors()[2].detach().fill_(3e38F);
  EXPECT_EQ(first_non_finite(*large.model, at::kCPU, {}, large.batch, large.step(large.batch)), "activation layers.0.attention");
}

TEST(TrainStep, NamesTheLayerOfAStackedTensor) {
  Small small(true);
  const nn::Parameters& parameters = small.model->parameters();
  StepResult result = small.step(small.batch);
  ASSERT_TRUE(result.finite);
  ASSERT_EQ(result.squares.numel(), std::ssize(parameters.stored()));
  EXPECT_NEAR(result.squares.sum().sqrt().item<double>(), result.grad_norm, 1e-5);
  const nn::Physical& qkv = parameters.physical()[2];
  const auto behind = static_cast<int64_t>(1 + parameters.physical()[1].rows.size());  // the embedding and the layers' norms
  result.squares[behind + 1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_non_finite(*small.model, at::kCPU, {}, small.batch, result), "gradient of layers.1.attention.{wq,wk,wv}.weight");
  qkv.weight->value.detach()[1].view({-1})[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(first_non_finite(*small.model, at::kCPU, {}, small.batch, result), "parameter layers.1.attention.wq.weight");
}

// ---- sampling --------------------------------------------------------------------------------------------------------------

TEST(SampleStep, LooksAtThePrefixAlone) {
  Small small;
  SampleStep step(*small.model, at::kCPU, {}, 16);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = small.model->forward({at::tensor({3, 1, 4}, at::kLong).unsqueeze(0), {}, {}}, at::kFloat)[0][2];
  EXPECT_TRUE(at::allclose(step({3, 1, 4}), expected, 1e-4, 1e-5));
}

TEST(Sampler, DrawsByProbability) {
  const std::vector<float> logits = {0, std::log(2.0F), std::log(1.0F), 50};
  EXPECT_EQ(draw(logits, 3, 0, 0.99), 1);  // the likeliest of the first three
  EXPECT_EQ(draw(logits, 3, 1, 0.0), 0);
  EXPECT_EQ(draw(logits, 3, 1, 0.26), 1);
  EXPECT_EQ(draw(logits, 3, 1, 0.74), 1);
  EXPECT_EQ(draw(logits, 3, 1, 0.76), 2);
}

TEST(Sampler, PrintsWhatATerminalTakes) {
  EXPECT_EQ(printable("a\tb\n\u00e9\u20ac\U0001F525"), "a\tb\n\u00e9\u20ac\U0001F525");
  EXPECT_EQ(printable("\x1b[31m\r"), "\uFFFD[31m\uFFFD");
  EXPECT_EQ(printable("x\xff\xc3"), "x\uFFFD\uFFFD");
  EXPECT_EQ(printable("\xc0\xaf"), "\uFFFD\uFFFD");          // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(printable("\xc2\x9b"), "\uFFFD");                // a control character of two bytes
}

// ---- metrics --------------------------------------------------------------------------------------------------------------

TEST(Metrics, WritesNumbersForPeople) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(duration(59.4), "59s");
  EXPECT_EQ(duration(125), "2m 05s");
  EXPECT_EQ(duration(3 * 3600 + 61), "3h 01m");
}

using MetricsFileTest = FileTest;

TEST_F(MetricsFileTest, ContinuesAfterTheStepOfTheCheckpoint) {
  const auto line = [](int64_t step) {
    StepMetrics m;
    m.step = step;
    return m;
  };
  const fs::path path = folder_ / "sub" / "m.jsonl";
  {
    MetricsFile file(path, 0);
    for (int64_t step : {1, 2, 3}) file.write(line(step));
  }
  { std::ofstream(path, std::ios::app) << "{\"step\": 4, \"lo"; }  // killed while writing
  MetricsFile file(path, 2);
  file.write(line(3));
  const std::string text = read_file(path);
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("\"mfu\":null"), HasSubstr("\"mfu_causal\":null"), HasSubstr("\"attention\":\"\"")));
  EXPECT_THAT(text, testing::Not(HasSubstr("\"step\":4")));
}

TEST_F(MetricsFileTest, ReplacesNeitherLinksNorDevices) {
  MetricsFile("/dev/null", 0).write({});
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  for (const char* target : {"there", "later"}) {  // a link to a file, and one to nothing yet
    const fs::path link = folder_ / fmt::format("link-{}", target);
    fs::create_symlink(target, link);
    if (std::string_view(target) == "there") write_file_atomically(folder_ / target, "old\n");
    MetricsFile(link, 0).write({});
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(std::ranges::count(read_file(folder_ / target), '\n'), 1);
  }
  try {
    MetricsFile(folder_, 0);
    ADD_FAILURE() << "a folder is no file";
  } catch (const IoError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("metrics.jsonl"), HasSubstr("choose another file")));
  }
}

}  // namespace
}  // namespace flambeau::train
