#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "train/config.h"
#include "train/metrics.h"
#include "train/param_groups.h"
#include "train/sampler.h"
#include "train/schedule.h"
#include "train/step.h"

namespace flambeau::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "flambeau-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~FileTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// ---- configuration ----------------------------------------------------------------------------------------------------------

using ConfigTest = FileTest;

TEST_F(ConfigTest, BadFilesAreRefusedInOneLineWithKeyAndRemedy) {
  const struct {
    const char* text;
    std::vector<const char*> parts;
  } cases[] = {
      {"[training]\nstpes = 3\n", {"c.toml:2", "training.stpes", "did you mean training.steps"}},
      {"[optimzer]\nlr = 1.0\n", {"optimzer.lr", "optimizer.lr"}},
      {"[metrics]\nsteps = 1\n", {"metrics.steps", "did you mean training.steps"}},
      {"[training]\nsteps = -3\n", {"c.toml:2", "training.steps", "at least 1", "-3", "10000"}},
      {"[training]\nsteps = 2.5\n", {"training.steps", "2.5"}},
      {"[training]\nsteps = \"many\"\n", {"training.steps", "\"many\""}},
      {"[training]\nsteps = [1]\n", {"training.steps", "array"}},
      {"[optimizer]\nlr = nan\n", {"optimizer.lr", "nan"}},
      {"[optimizer]\nlr = -1\n", {"optimizer.lr", "-1"}},
      {"[optimizer]\nbeta1 = 1.0\n", {"optimizer.beta1", "below 1"}},
      {"[lr_scheduler]\ndecay_type = \"cubic\"\n", {"lr_scheduler.decay_type", "linear", "cubic"}},
      {"[checkpoint]\nkeep_latest_k = 1\n", {"checkpoint.keep_latest_k", "2"}},
      {"[training]\nsequences_per_microbatch = 72057594037927936\n", {"training.sequences_per_microbatch", "at most", "72057594037927936"}},
      {"[checkpoint]\nenable = 1\n", {"checkpoint.enable", "true or false"}},
      {"[activation_checkpoint]\nmode = \"some\"\n", {"activation_checkpoint.mode", "selective", "budget"}},
      {"[activation_checkpoint]\nmemory_budget = 1.5\n", {"activation_checkpoint.memory_budget", "from 0 to 1"}},
      {"[activation_checkpoint]\nselective_ops = \"mm,relou\"\n", {"activation_checkpoint.selective_ops", "attention", "relou"}},
      {"[activation_checkpoint]\nselective_ops = [\"mm\", \"relou\"]\n", {"activation_checkpoint.selective_ops", "relou"}},
      {"[activation_checkpoint]\nselective_ops = [1]\n", {"activation_checkpoint.selective_ops", "array"}},
      {"[activation_checkpoint]\nmode = \"budget\"\n", {"activation_checkpoint.mode", "model.scan = true"}},
      {"device = \"gpu\"\n", {"device", "tpu", "cpu"}},
      {"device = \"cpu\"\n[debug]\nvirtual_devices = 8\n", {"debug.virtual_devices", "expected 1", "got 8", "device = \"tpu\""}},
      {"[debug]\nvirtual_devices = 0\n", {"debug.virtual_devices", "at least 1"}},
      {"[compile]\noptions = [\"xla_a\"]\n", {"c.toml: compile.options", "got 'xla_a'; write name=value"}},
      {"[compile]\noptions = [\"xla_a=1\", \"tpu_b=2\"]\n", {"compile.options", "got 'tpu_b=2'", "xla_"}},
      {"[compile]\noptions = \"xla_a=1,xla_a=2\"\n", {"compile.options", "xla_a twice"}},
      {"[compile]\noptions = [1]\n", {"c.toml:2", "compile.options", "array"}},
      {"[compile]\noptions = true\n", {"c.toml:2", "compile.options", "a list of texts", "true"}},
      {"device = \"cpu\"\n[compile]\noptions = \"xla_a=1\"\n", {"compile.options", "expected none", "device = \"tpu\""}},
      {"[loss]\nchunks = 0\n", {"loss.chunks", "at least 1", "got 0", "the default is 8"}},
      {"[loss]\nz_loss = -0.1\n", {"loss.z_loss", "at least 0", "-0.1"}},
      {"[training]\nmixed_precision_reduce = \"bfloat16\"\n", {"training.mixed_precision_reduce", "float32", "loses bits", "\"bfloat16\""}},
      {"[training]\nmixed_precision_param = \"float16\"\n", {"training.mixed_precision_param", "bfloat16", "\"float16\""}},
      {"[parallelism]\ndata_parallel_shard_degree = 0\n", {"parallelism.data_parallel_shard_degree", "-1", "got 0"}},
      {"[parallelism]\ntensor_parallel_degree = 0\n", {"parallelism.tensor_parallel_degree", "at least 1", "got 0"}},
      {"[parallelism]\nfsdp_reshard_after_forward = \"sometimes\"\n", {"fsdp_reshard_after_forward", "default", "always", "never", "sometimes"}},
      {"[optimizer]\nname = \"Lion\"\n", {"optimizer.name", "AdamW", "SGD", "Lion"}},
      {"[optimizer]\nstate_dtype = \"float16\"\n", {"optimizer.state_dtype", "bfloat16", "float16"}},
      {"[optimizer]\nmomentum = 0.9\n", {"optimizer.momentum", "AdamW", "0.9", "SGD"}},
      {"[optimizer]\ndampening = 0.5\n", {"optimizer.dampening", "AdamW", "0.5", "SGD"}},
      {"[optimizer]\nnesterov = true\n", {"optimizer.nesterov", "AdamW", "SGD"}},
      {"[optimizer]\nname = \"SGD\"\nnesterov = true\n", {"optimizer.nesterov", "momentum above 0", "momentum 0", "momentum = 0.9"}},
      {"[optimizer]\nparam_groups = 3\n", {"c.toml:2", "optimizer.param_groups", "array of tables", "got 3"}},
      {"[optimizer]\nparam_groups = [3]\n", {"c.toml:2", "optimizer.param_groups", "expected tables"}},
      {"[[optimizer.param_groups]]\nlr = 1.0\n", {"c.toml:1", "expected a pattern"}},
      {"[[optimizer.param_groups]]\npattern = \"(\"\n", {"c.toml:1", "regular expression", "\"(\""}},
      {"[[optimizer.param_groups]]\npattern = 3\n", {"pattern", "got 3"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nrate = 1.0\n", {"unknown key rate", "lr, weight_decay"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nlr = [1]\n", {"one value for lr"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nlr = -1\n", {"optimizer.param_groups", "optimizer.lr", "at least 0", "-1"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nmomentum = 0.5\n", {"optimizer.param_groups", "no momentum with AdamW", "\"a\""}},
      {"[optimizer]\nname = \"SGD\"\n[[optimizer.param_groups]]\npattern = \"a\"\neps = 0.5\n", {"no eps with SGD"}},
      {"[training\n", {"c.toml:1", "not TOML"}},
  };
  for (const auto& c : cases) {
    write_file_atomically(folder_ / "c.toml", c.text);
    try {
      check_config(load_config(folder_ / "c.toml"));
      ADD_FAILURE() << c.text;
    } catch (const Error& e) {
      for (const char* part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part)) << c.text;
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(load_config(folder_ / "none.toml"), IoError);
}

TEST_F(ConfigTest, PrintedConfigurationReadsBackEqual) {
  Config config;
  set_from_text(config, "training.steps", "7");
  set_from_text(config, "optimizer.lr", "1e-3");
  set_from_text(config, "lr_scheduler.decay_ratio", "0.5");
  set_from_text(config, "checkpoint.enable", "true");
  set_from_text(config, "optimizer.param_groups", R"([{pattern = '\.norm"', weight_decay = 0}, {pattern = "b", lr = 1e-5, beta1 = 0.5, eps = 0.25}])");
  set_from_text(config, "sampling.prompt", "a \"b\"\n\\\x1b\x7f");
  set_from_text(config, "training.sequences_per_microbatch", "3");
  set_from_text(config, "training.sequences_per_train_step", "6");
  set_from_text(config, "debug.seed", "9223372036854775807");
  write_file_atomically(folder_ / "c.toml", to_toml(config));
  const Config again = load_config(folder_ / "c.toml");
  EXPECT_NO_THROW(check_config(again));
  EXPECT_EQ(to_toml(again), to_toml(config));
  EXPECT_EQ(batching(again).tokens_per_step(), 6 * 2048);
  EXPECT_EQ(again.training.steps, 7);
  ASSERT_EQ(again.optimizer.param_groups.size(), 2);
  EXPECT_EQ(again.optimizer.param_groups[0].pattern, "\\.norm\"");
  EXPECT_EQ(again.optimizer.param_groups[0].weight_decay, 0);
  EXPECT_FALSE(again.optimizer.param_groups[0].lr.has_value());
  EXPECT_EQ(again.optimizer.param_groups[1].lr, 1e-5);
  EXPECT_EQ(again.sampling.prompt, "a \"b\"\n\\\x1b\x7f");
  EXPECT_EQ(again.debug.seed, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(again.lr_scheduler.decay_ratio, 0.5);
  EXPECT_FALSE(again.lr_scheduler.total_steps.has_value());
}

TEST_F(ConfigTest, ActivationCheckpointingIsAPolicy) {
  using Kind = runtime::KeepPolicy::Kind;
  const auto read = [&](const std::string& text) {
    write_file_atomically(folder_ / "c.toml", "[model]\nscan = true\n[activation_checkpoint]\n" + text);
    const Config config = load_config(folder_ / "c.toml");
    check_config(config);
    return keep_policy(config);
  };
  EXPECT_EQ(read("").kind, Kind::None);
  EXPECT_EQ(read("mode = \"full\"").kind, Kind::Full);
  EXPECT_EQ(read("mode = \"budget\"\nmemory_budget = 0.25").kind, Kind::Budget);
  EXPECT_EQ(read("mode = \"budget\"\nmemory_budget = 0.25").budget, 0.25);
  EXPECT_FALSE(read("mode = \"full\"").keep_gathered);
  EXPECT_TRUE(read("[parallelism]\nfsdp_reshard_after_forward = \"never\"").keep_gathered);
  EXPECT_TRUE(read("mode = \"offload\"").offload);
  const std::vector<std::string> ops{"mm", "silu"};
  EXPECT_EQ(read("mode = \"selective\"\nselective_ops = [\"mm\", \"aten::silu\"]").ops, ops);
  EXPECT_EQ(read("mode = \"selective\"\nselective_ops = \"mm, silu\"").ops, ops);
}

TEST_F(ConfigTest, CompileOptionsAreNamesWithValues) {
  const pjrt::CompileFlags want{{"xla_a", true}, {"xla_b", int64_t{65536}}, {"xla_c", 0.5}, {"xla_d", "AUTO"}};
  for (const char* options : {R"(["xla_a=true", "xla_b=65536", "xla_c=0.5", "xla_d=AUTO"])", R"("xla_a=true,xla_b=65536, xla_c=0.5,xla_d=AUTO")"}) {
    write_file_atomically(folder_ / "c.toml", fmt::format("[compile]\noptions = {}\n", options));
    const Config config = load_config(folder_ / "c.toml");
    EXPECT_NO_THROW(check_config(config));
    EXPECT_EQ(compile_options(config), want);
    write_file_atomically(folder_ / "again.toml", to_toml(config));
    EXPECT_EQ(compile_options(load_config(folder_ / "again.toml")), want);
  }
  Config config;
  EXPECT_EQ(compile_options(config), pjrt::CompileFlags{});
  set_from_text(config, "compile.options", "xla_a=true");
  EXPECT_EQ(compile_options(config), (pjrt::CompileFlags{{"xla_a", true}}));
}

TEST(Config, OverridesAreChecked) {
  Config config;
  EXPECT_THROW(set_from_text(config, "training.steps", "3x"), InvalidArgument);
  EXPECT_THROW(set_from_text(config, "training.steps", ""), InvalidArgument);
  EXPECT_THROW(set_from_text(config, "checkpoint.enable", "yes"), InvalidArgument);
  EXPECT_THROW(set_from_text(config, "optimizer.lr", "inf"), InvalidArgument);
  EXPECT_THROW(set_from_text(config, "optimizer.param_groups", "norm"), InvalidArgument);
  EXPECT_THROW(set_from_text(config, "optimizer.param_groups", "[]\n[training]\nsteps = 3"), InvalidArgument);
  EXPECT_TRUE(is_bool_key("checkpoint.enable"));
  EXPECT_FALSE(is_bool_key("training.steps"));
}

TEST(Config, TokensAndSequencesMustAgreeExactly) {
  const struct {
    std::vector<std::pair<const char*, const char*>> keys;
    int64_t sequences, accumulation;  // 0: refused
  } cases[] = {
      {{}, 8, 1},  // 16384 / 2048
      {{{"training.num_tokens_per_microbatch_per_dp_rank", "4096"}}, 2, 1},
      {{{"training.num_tokens_per_microbatch_per_dp_rank", "4097"}}, 0, 0},
      {{{"training.sequences_per_microbatch", "3"}}, 3, 1},
      {{{"training.sequences_per_microbatch", "3"}, {"training.num_tokens_per_microbatch_per_dp_rank", "6144"}}, 3, 1},
      {{{"training.sequences_per_microbatch", "3"}, {"training.num_tokens_per_microbatch_per_dp_rank", "4096"}}, 0, 0},
      {{{"training.sequences_per_microbatch", "3"}, {"training.sequences_per_train_step", "6"}}, 3, 2},
      {{{"training.sequences_per_microbatch", "3"}, {"training.sequences_per_train_step", "7"}}, 0, 0},
      {{{"training.num_tokens_per_train_step", "65536"}}, 8, 4},
      {{{"training.num_tokens_per_train_step", "65537"}}, 0, 0},
  };
  for (const auto& c : cases) {
    Config config;
    for (const auto& [key, value] : c.keys) set_from_text(config, key, value);
    if (c.sequences == 0) {
      EXPECT_THROW(batching(config), InvalidArgument);
      continue;
    }
    EXPECT_EQ(batching(config).sequences, c.sequences);
    EXPECT_EQ(batching(config).accumulation, c.accumulation);
  }
}

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
  explicit Small(bool stacked = false) : model(models::make_model("llama3", "debug", {.vocab_size = 64, .n_layers = 2, .dim = 32, .n_heads = 4, .n_kv_heads = 2, .ffn_dim = 48})) {
    if (stacked) model->run_layers_as_loop(device::KeepPolicy{});
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
  for (size_t i = 0; i < whole.model->parameters().size(); ++i) {
    const nn::Parameter& p = accumulated.model->parameters().all()[i];
    EXPECT_TRUE(at::allclose(accumulated.optimizer->states()[0].tensors[i], whole.optimizer->states()[0].tensors[i], 1e-3, 1e-7)) << p.name;
    EXPECT_TRUE(at::allclose(accumulated.model->parameters().tensors()[i], whole.model->parameters().tensors()[i], 1e-3, 1e-4)) << p.name;
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
  EXPECT_EQ(first_non_finite(*small.model, at::kCPU, {}, small.batch, result), "parameter " + small.model->parameters().all()[3].name);

  Small large;  // finite weights whose products are not
  large.model->parameters().tensors()[2].detach().fill_(3e38F);
  EXPECT_EQ(first_non_finite(*large.model, at::kCPU, {}, large.batch, large.step(large.batch)), "activation layers.0.attention");
}

TEST(TrainStep, NamesTheLayerOfAStackedTensor) {
  Small small(true);
  const nn::Parameters& parameters = small.model->parameters();
  StepResult result = small.step(small.batch);
  ASSERT_TRUE(result.finite);
  ASSERT_EQ(result.squares.numel(), static_cast<int64_t>(parameters.size()));
  EXPECT_NEAR(result.squares.sum().sqrt().item<double>(), result.grad_norm, 1e-5);
  const nn::Physical& qkv = parameters.physical()[2];
  const auto behind = static_cast<int64_t>(1 + parameters.physical()[1].rows.size());  // the embedding and the layers' norms
  result.squares[behind + 1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_non_finite(*small.model, at::kCPU, {}, small.batch, result), "gradient of layers.1.attention.qkv.weight");
  qkv.weight->value.detach()[1].view({-1})[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(first_non_finite(*small.model, at::kCPU, {}, small.batch, result), "parameter layers.1.attention.qkv.weight");
}

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

TEST(Metrics, KnowsPeaks) {
  EXPECT_EQ(peak_tflops("TPU v5 lite"), 197);
  EXPECT_EQ(peak_tflops("TPU v5"), 459);
  EXPECT_EQ(peak_tflops("TPU v5p"), 459);
  EXPECT_EQ(peak_tflops("TPU v6e"), 918);
  EXPECT_EQ(peak_tflops("TPU7x"), 1153.5);  // of a device, which is half a chip
  EXPECT_EQ(peak_tflops("NVIDIA H100 80GB HBM3"), 989);
  EXPECT_EQ(peak_tflops("cpu"), std::nullopt);
}

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
  EXPECT_THAT(text, HasSubstr("\"mfu\":null"));
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
