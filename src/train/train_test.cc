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
#include "models/decoder/decoder.h"
#include "train/config.h"
#include "train/metrics.h"
#include "train/param_groups.h"
#include "train/sampler.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/step.h"
#include "train/test_files.h"

namespace flambeau::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

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
      {"[model]\nfreeze = [\"norm\", \"(\"]\n", {"c.toml: model.freeze", "regular expressions", "got \"(\""}},
      {"[model]\nfreeze = \"norm,\"\n", {"model.freeze", "got \"\""}},
      {"[model]\nfreeze = true\n", {"c.toml:2", "model.freeze", "a list of texts"}},
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
      {"[optimizer]\nname = \"SGD\"\nnesterov = true\n", {"optimizer.nesterov", "momentum above 0", "momentum 0", "momentum = 0.9"}},
      {"[optimizer]\nparam_groups = 3\n", {"c.toml:2", "optimizer.param_groups", "array of tables", "got 3"}},
      {"[optimizer]\nparam_groups = [3]\n", {"c.toml:2", "optimizer.param_groups", "expected tables"}},
      {"[[optimizer.param_groups]]\nlr = 1.0\n", {"c.toml:1", "expected a pattern"}},
      {"[[optimizer.param_groups]]\npattern = \"(\"\n", {"c.toml:1", "regular expression", "\"(\""}},
      {"[[optimizer.param_groups]]\npattern = 3\n", {"pattern", "got 3"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nrate = 1.0\n", {"unknown key rate", "lr, weight_decay"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nlr = [1]\n", {"one value for lr"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nname = \"Lion\"\n", {"optimizer.param_groups", "optimizer.name", "SGD", "Lion"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nname = 3\n", {"optimizer.name", "got 3"}},
      {"[[optimizer.param_groups]]\npattern = \"a\"\nname = \"SGD\"\nbeta1 = 0.5\n", {"no beta1 with SGD", "\"a\""}},
      {"[optimizer]\nnesterov = true\n[[optimizer.param_groups]]\npattern = \"a\"\nname = \"SGD\"\n", {"nesterov", "momentum above 0"}},
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
  set_from_text(config, "optimizer.param_groups", R"([{pattern = '\.norm"', weight_decay = 0}, {pattern = "b", name = "Adam", lr = 1e-5, beta1 = 0.5, eps = 0.25}])");
  set_from_text(config, "model.freeze", "norm, \\.w1");
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
  EXPECT_EQ(frozen_patterns(again), (std::vector<std::string>{"norm", "\\.w1"}));
  ASSERT_EQ(again.optimizer.param_groups.size(), 2);
  EXPECT_EQ(again.optimizer.param_groups[0].pattern, "\\.norm\"");
  EXPECT_EQ(again.optimizer.param_groups[0].weight_decay, 0);
  EXPECT_FALSE(again.optimizer.param_groups[0].lr.has_value());
  EXPECT_EQ(again.optimizer.param_groups[1].lr, 1e-5);
  EXPECT_EQ(again.optimizer.param_groups[1].name, "Adam");
  EXPECT_EQ(again.sampling.prompt, "a \"b\"\n\\\x1b\x7f");
  EXPECT_EQ(again.debug.seed, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(again.lr_scheduler.decay_ratio, 0.5);
  EXPECT_FALSE(again.lr_scheduler.total_steps.has_value());
}

TEST_F(ConfigTest, ActivationCheckpointingIsAPolicy) {
  using Kind = runtime::CheckpointPolicy::Kind;
  const auto read = [&](const std::string& text) {
    write_file_atomically(folder_ / "c.toml", "[model]\nscan = true\n[activation_checkpoint]\n" + text);
    const Config config = load_config(folder_ / "c.toml");
    check_config(config);
    return checkpoint_policy(config);
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

TEST(Config, KeysWithoutEffectAreNamed) {
  using Keys = std::vector<std::pair<const char*, const char*>>;
  const struct {
    Keys keys;
    std::vector<const char*> inert;  // in the table's order
  } cases[] = {
      {{}, {}},
      {{{"optimizer.beta1", "0.9"}}, {}},
      {{{"optimizer.name", "SGD"}}, {}},  // what was not given is nobody's mistake
      {{{"optimizer.name", "SGD"}, {"optimizer.beta1", "0.9"}, {"optimizer.eps", "1e-8"}}, {"optimizer.beta1", "optimizer.eps"}},
      {{{"optimizer.momentum", "0.9"}, {"optimizer.nesterov", "true"}}, {"optimizer.momentum", "optimizer.nesterov"}},
      {{{"optimizer.momentum", "0.9"}, {"optimizer.param_groups", "[{pattern = 'norm', name = 'SGD'}]"}}, {}},
      {{{"optimizer.name", "SGD"}, {"optimizer.beta2", "0.9"}, {"optimizer.param_groups", "[{pattern = 'norm', name = 'Adam'}]"}}, {}},
      {{{"optimizer.name", "SGD"}, {"optimizer.dampening", "0.5"}, {"optimizer.state_dtype", "bfloat16"}},
       {"optimizer.dampening", "optimizer.state_dtype"}},
      {{{"activation_checkpoint.memory_budget", "0.5"}}, {"activation_checkpoint.memory_budget"}},
      {{{"activation_checkpoint.memory_budget", "0.5"}, {"activation_checkpoint.mode", "budget"}}, {}},
      {{{"activation_checkpoint.selective_ops", "mm"}, {"activation_checkpoint.mode", "full"}}, {"activation_checkpoint.selective_ops"}},
      {{{"activation_checkpoint.selective_ops", "mm"}, {"activation_checkpoint.mode", "offload"}}, {}},
      {{{"model.attention", "dense"}, {"model.attention_block_q", "128"}}, {"model.attention_block_q"}},
      {{{"device", "cpu"}, {"model.attention", "chunked"}, {"plugin", "cpu"}}, {"model.attention", "plugin"}},
      {{{"parallelism.enable_sequence_parallel", "true"}}, {"parallelism.enable_sequence_parallel"}},
      {{{"parallelism.enable_sequence_parallel", "true"}, {"parallelism.tensor_parallel_degree", "2"}}, {}},
      {{{"lr_scheduler.decay_ratio", "0"}, {"lr_scheduler.decay_type", "cosine"}}, {"lr_scheduler.decay_type"}},
      {{{"dataloader.shuffle", "false"}, {"dataloader.seed", "1"}}, {"dataloader.seed"}},
      {{{"validator.freq", "5"}, {"checkpoint.interval", "5"}, {"sampling.prompt", "a"}},
       {"validator.freq", "checkpoint.interval", "sampling.prompt"}},
      // Switched off on purpose.
      {{{"validator.freq", "5"}, {"validator.enable", "false"}}, {}},
      {{{"checkpoint.interval", "5"}, {"checkpoint.enable", "true"}}, {}},
  };
  for (const auto& c : cases) {
    Config config;
    for (const auto& [key, value] : c.keys) set_from_text(config, key, value);
    const std::vector<std::string> lines = keys_without_effect(config);
    ASSERT_EQ(lines.size(), c.inert.size()) << fmt::format("{}", fmt::join(lines, "; "));
    for (size_t i = 0; i < lines.size(); ++i) EXPECT_THAT(lines[i], testing::StartsWith(std::string(c.inert[i]) + " has no effect: "));
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

// ---- frozen parameters, buffers, checkpoints --------------------------------------------------------------------------------

const models::Overrides kTiny{.vocab_size = 64, .n_layers = 2, .dim = 32, .n_heads = 4, .n_kv_heads = 2, .ffn_dim = 48};

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

struct TinyRun {
  explicit TinyRun(std::unique_ptr<models::Model> given, const std::string& frozen = {}, bool stacked = false, at::ScalarType dtype = at::kFloat)
      : model(std::move(given)) {
    config.optimizer.lr = 1e-2;
    if (!frozen.empty()) model->parameters().freeze([&](const std::string& name) { return name.find(frozen) != std::string::npos; }, dtype);
    if (stacked) model->run_layers_as_loop(device::CheckpointPolicy{});
    model->parameters().initialize(5, at::kCPU);
    model->prepare(at::kCPU, 16);
    optimizer.emplace(make_optimizer(config, *model));
    at::manual_seed(3);
    batch.tokens = at::randint(0, 64, {2, 2, 16}, at::kLong);
    batch.labels = at::randint(0, 64, {2, 2, 16}, at::kLong);
  }
  StepResult step(int64_t n = 1) {
    TrainStep train(*model, *optimizer, at::kCPU, {.max_norm = 1e9});  // not clipped: the norm is of what is trained
    train.start(batch, 1, n);
    return train.finish();
  }
  std::vector<at::Tensor> values() const { return model->parameters().rows_of(model->parameters().tensors()); }
  std::vector<at::Tensor> copies() const {
    std::vector<at::Tensor> out;
    for (const at::Tensor& t : values()) out.push_back(t.clone());
    return out;
  }
  checkpoint::State state() const { return collect_state(config, *model, *optimizer, at::kCPU); }

  Config config;
  std::unique_ptr<models::Model> model;
  std::optional<Optimizer> optimizer;
  TokenBatch batch;
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
