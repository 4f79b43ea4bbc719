// The configuration of a run: a tree of plain structs, and one table that says of each key its name, meaning and legal values.
//
// The table serves everything: reading TOML files (`[section] key = value`), overriding on the command line (`--section.key
// value`), printing, help, and naming the nearest known key when one is mistyped. Names follow TorchTitan's where it has them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/model.h"
#include "pjrt/pjrt.h"
#include "runtime/checkpoint_policy.h"

namespace flambeau::train {

// [[optimizer.param_groups]]: what the parameters that `pattern` matches take instead of [optimizer]'s values.
struct ParamGroup {
  std::string pattern;
  std::optional<std::string> name = {};  // of the optimizer
  std::optional<double> lr = {}, weight_decay = {}, beta1 = {}, beta2 = {}, eps = {}, momentum = {}, dampening = {};
};

struct Config {
  std::string device = "tpu";
  std::string plugin;
  std::string dump_folder = "./outputs";

  struct Model {
    std::string name = "llama3", flavor = "debug";
    models::Overrides overrides;
    std::string freeze;
    bool scan = false;
    std::string attention = "auto";
    int64_t attention_block_q = 0, attention_block_kv = 0;
  } model;

  struct ActivationCheckpoint {
    std::string mode = "none";
    std::string selective_ops = "matmul,attention";
    double memory_budget = 0.5;
  } activation_checkpoint;

  struct Data {
    std::string source = "stdlib:";
    std::string pattern;
    std::string tokenizer = "byte";
    double held_out = 0.05;
    bool document_mask = true;
    bool bigram = false;
  } data;

  struct Training {
    int64_t steps = 10000;
    int64_t num_tokens_per_microbatch_per_dp_rank = 16384;
    int64_t num_tokens_per_train_step = -1;
    int64_t sequences_per_microbatch = 0;
    int64_t sequences_per_train_step = 0;
    int64_t max_context_length = 2048;
    double max_norm = 1;
    std::string dtype = "float32";
    std::string mixed_precision_param = "bfloat16";
    std::string mixed_precision_reduce = "float32";
  } training;

  struct Loss {
    int64_t chunks = 8;
    double z_loss = 0;
  } loss;

  struct Parallelism {
    int64_t data_parallel_replicate_degree = 1, data_parallel_shard_degree = -1;
    std::string fsdp_reshard_after_forward = "default";
    int64_t tensor_parallel_degree = 1;
    bool enable_sequence_parallel = true;
    int64_t context_parallel_degree = 1, pipeline_parallel_degree = 1, expert_parallel_degree = 1;
  } parallelism;

  struct Compile {
    std::string options;
  } compile;

  struct Optimizer {
    std::string name = "AdamW";
    double lr = 8e-4, weight_decay = 0.1;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW, Adam
    double momentum = 0, dampening = 0;            // SGD
    bool nesterov = false;                         // SGD
    std::string state_dtype = "float32";
    std::vector<ParamGroup> param_groups;
  } optimizer;

  struct LrScheduler {
    int64_t warmup_steps = 200;
    std::optional<int64_t> total_steps;
    std::optional<double> decay_ratio;
    std::string decay_type = "linear";
    double min_lr_factor = 0;
  } lr_scheduler;

  struct Checkpoint {
    bool enable = false;
    std::string folder = "checkpoint";
    int64_t interval = 500;
    int64_t keep_latest_k = 10;
    int64_t load_step = -1;
    std::string initial_load_path;
    bool initial_load_in_hf = false;
    bool last_save_in_hf = false;
    bool enable_first_step_checkpoint = false;
  } checkpoint;

  struct Metrics {
    int64_t log_freq = 10;
    std::string jsonl;
    double peak_tflops = 0;
  } metrics;

  struct Validator {
    bool enable = false;
    int64_t freq = 10;
    int64_t steps = -1;
  } validator;

  struct Dataloader {
    int64_t seed = 42;
    bool shuffle = true;
  } dataloader;

  struct Sampling {
    int64_t tokens = 0;
    std::string prompt = "def ";
    double temperature = 0.8;
    int64_t seed = 0;
  } sampling;

  struct Debug {
    int64_t seed = 0;
    bool stats = false;
    bool print_config = false;
    bool state_hash = false;
    int64_t virtual_devices = 1;
  } debug;

  std::filesystem::path path;   // the file that it came from
  std::set<std::string> given;  // keys that the file or the command line set
  std::set<std::string> from_command_line;  // of these, those that the command line set
};

// One value, as TOML or the command line gives it.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<ParamGroup>>;

struct Key {
  using Slot = std::variant<bool*, int64_t*, double*, std::string*, std::optional<int64_t>*, std::optional<double>*,
                            std::vector<ParamGroup>*>;
  std::string_view name;  // "training.steps"; top-level keys have no dot
  Slot (*slot)(Config&);
  std::string_view doc;
  struct Check {
    std::string expected;  // "an integer of at least 1"; empty: whatever the type allows
    bool (*holds)(const Value& value, const Check& check);
    double bound = 0;
    std::vector<std::string> choices = {};
    int64_t most = int64_t{1} << 31;  // of an integer: products of two fit in 64 bits
    bool list = false;                // of a text: names with commas between them; a file may give a list of texts
  } check;
};

std::span<const Key> keys();

// The least number of edits that make `a` into `b`, or with `within` into any part of `b`: for naming what was probably meant.
size_t edit_distance(std::string_view a, std::string_view b, bool within = false);

// Reads a TOML file. InvalidArgument or IoError with the file, the key and a remedy.
Config load_config(const std::filesystem::path& path);

// One override of the command line: `name` as in the table; `text` is read as the key's type.
void set_from_text(Config& config, std::string_view name, std::string_view text);
// Whether the key is a bool (then the command line may leave the value out). InvalidArgument for an unknown key.
bool is_bool_key(std::string_view name);
// Whether the key is a list of names.
bool is_list_key(std::string_view name);

// What cannot be said of one key alone. InvalidArgument that names the file, the key and a remedy.
void check_config(const Config& config);

// Keys that were given and do nothing in the mode that others choose (beta1 with SGD), one line each with the reason. A key whose
// section is switched off by a key that was given too ("validator.enable = false") is not among them.
std::vector<std::string> keys_without_effect(const Config& config);

// Tokens of a step: rows of `context` tokens, `sequences` rows a microbatch (over all data-parallel ranks), `accumulation`
// microbatches a step.
struct Batching {
  int64_t context = 0, sequences = 0, accumulation = 1;
  int64_t sequences_per_step() const { return sequences * accumulation; }
  int64_t tokens_per_step() const { return context * sequences_per_step(); }
};
// The configuration says what a microbatch is for one rank; steps are the whole mesh's.
Batching batching(const Config& config, int64_t data_parallel_degree = 1);

// The patterns of model.freeze. InvalidArgument, led by the file, for what is no regular expression.
std::vector<std::string> frozen_patterns(const Config& config);
// What [model] says of attention.
nn::AttentionOptions attention_options(const Config& config);
// What [activation_checkpoint] says.
runtime::CheckpointPolicy checkpoint_policy(const Config& config);
// What [compile] says. InvalidArgument, led by the configuration's file, for what is no option.
pjrt::CompileFlags compile_options(const Config& config);

// All keys as TOML with a comment each: what `check` prints and what a run can be repeated from.
std::string to_toml(const Config& config);
// One line a key, for help texts.
std::string describe_keys();

// InvalidArgument led by the configuration's file: for faults that are found later (a model's sizes, a data source).
[[noreturn]] void raise_in_config(const Config& config, std::string_view message);

// Used by load_config for each key of a file; `origin` is "file:line".
void set_value(Config& config, std::string_view name, const Value& value, std::string_view origin);
// The same for a key within a parameter group: "pattern", or one that is checked as [optimizer]'s of the same name.
void set_in_group(ParamGroup& group, std::string_view name, const Value& value, std::string_view origin);
// `text` is a TOML array of inline tables.
std::vector<ParamGroup> parse_param_groups(std::string_view text, std::string_view origin);

}  // namespace flambeau::train
