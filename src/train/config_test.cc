#include "train/config.h"

#include <limits>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "train/test_files.h"

namespace flambeau::train {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace flambeau::train
