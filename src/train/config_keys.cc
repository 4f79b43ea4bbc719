// The table of keys: of each its name, its place in Config, its meaning and its legal values.
#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "train/config.h"

namespace flambeau::train {
namespace {

using Check = Key::Check;

bool always(const Value&, const Check&) { return true; }

double number(const Value& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
  return std::get<double>(value);
}

Check any() { return {"", &always}; }
Check at_least(int64_t bound) {
  return {fmt::format("an integer of at least {}", bound),
          [](const Value& v, const Check& c) { return number(v) >= c.bound; }, static_cast<double>(bound)};
}
Check positive() {
  return {"a positive number", [](const Value& v, const Check&) { return number(v) > 0; }};
}
Check not_negative() {
  return {"a number of at least 0", [](const Value& v, const Check&) { return number(v) >= 0; }};
}
Check below_one() {
  return {"a number from 0 to below 1", [](const Value& v, const Check&) { return number(v) >= 0 && number(v) < 1; }};
}
Check up_to_one() {
  return {"a number from 0 to 1", [](const Value& v, const Check&) { return number(v) >= 0 && number(v) <= 1; }};
}
Check all_or_positive() {
  return {"-1 or an integer of at least 1", [](const Value& v, const Check&) { return number(v) == -1 || number(v) >= 1; }};
}
Check degree() {
  Check check = at_least(1);
  check.most = 1 << 20;  // products of three fit in 64 bits
  return check;
}
Check degree_or_rest() {
  Check check = all_or_positive();
  check.most = 1 << 20;
  return check;
}
Check seed() {
  Check check = at_least(0);
  check.most = std::numeric_limits<int64_t>::max();
  return check;
}
Check virtual_count() {
  Check check = at_least(1);
  check.most = 256;
  return check;
}
Check one_of(std::vector<std::string> choices) {
  return {fmt::format("one of \"{}\"", fmt::join(choices, "\", \"")),
          [](const Value& v, const Check& c) { return std::ranges::count(c.choices, std::get<std::string>(v)) > 0; }, 0,
          std::move(choices)};
}
Check float32_sums() {
  Check check = one_of({"float32"});
  check.expected = "\"float32\" (rounding gradients to bfloat16 before they are summed over devices and microbatches loses bits)";
  return check;
}
Check not_empty() {
  return {"a text that is not empty", [](const Value& v, const Check&) { return !std::get<std::string>(v).empty(); }};
}
Check names() {
  Check check = not_empty();
  check.expected = "a list of names";
  check.list = true;
  return check;
}
Check entries() {
  Check check = any();
  check.expected = "a list of texts";
  check.list = true;
  return check;
}
Check keep_count() {
  return {"0 (keep all) or an integer of at least 2",
          [](const Value& v, const Check&) { return number(v) == 0 || number(v) >= 2; }};
}

#define SLOT(member) [](Config& c) -> Key::Slot { return &c.member; }

}  // namespace

std::span<const Key> keys() {
  static const std::vector<Key> rows = {
      {"device", SLOT(device), "where to run: tpu (through a PJRT plugin) or cpu (plain PyTorch, the reference)", one_of({"tpu", "cpu"})},
      {"plugin", SLOT(plugin), "PJRT plugin: a path, or cpu, xla-cpu, tpu; empty: FLAMBEAU_PLUGIN, else the first one installed", any()},
      {"dump_folder", SLOT(dump_folder), "folder for everything that a run writes", not_empty()},

      {"model.name", SLOT(model.name), "model family", not_empty()},
      {"model.flavor", SLOT(model.flavor), "size within the family", not_empty()},
      {"model.vocab_size", SLOT(model.overrides.vocab_size), "0: the tokenizer's, rounded up to 64, for debug; else the flavour's", at_least(0)},
      {"model.n_layers", SLOT(model.overrides.n_layers), "0: the flavour's", at_least(0)},
      {"model.dim", SLOT(model.overrides.dim), "0: the flavour's", at_least(0)},
      {"model.n_heads", SLOT(model.overrides.n_heads), "0: the flavour's", at_least(0)},
      {"model.n_kv_heads", SLOT(model.overrides.n_kv_heads), "0: the flavour's", at_least(0)},
      {"model.ffn_dim", SLOT(model.overrides.ffn_dim), "0: the flavour's", at_least(0)},

      {"model.freeze", SLOT(model.freeze), "parameters that are not trained: regular expressions that are searched for in their names, with commas between them", entries()},
      {"model.scan", SLOT(model.scan), "run the layers as one loop of the program: compile time does not grow with their number", any()},
      {"model.attention", SLOT(model.attention), "how attention is computed: dense (the scores of all pairs exist), chunked (a loop over blocks that holds no such square), flash (TPU kernels, made with JAX where it is installed, else chunked), or auto (dense for short rows on CPU, flash on TPU, else chunked)", one_of({"auto", "dense", "chunked", "flash"})},
      {"model.attention_block_q", SLOT(model.attention_block_q), "queries of a block of chunked or flash attention; with flash a multiple of 128 that divides the row; 0: chosen", at_least(0)},
      {"model.attention_block_kv", SLOT(model.attention_block_kv), "keys of such a block; 0: chosen", at_least(0)},

      {"activation_checkpoint.mode", SLOT(activation_checkpoint.mode), "what the backward pass recomputes, with model.scan: none; selective (all but the outputs of selective_ops); offload (the same, kept in host memory); budget (what is cheapest to recompute for the memory it takes); or full (all but each layer's input)", one_of({"none", "selective", "offload", "budget", "full"})},
      {"activation_checkpoint.selective_ops", SLOT(activation_checkpoint.selective_ops), "ops whose outputs are kept in modes selective and offload: matmul, mm, bmm, attention, or PyTorch's names of ops (silu)", names()},
      {"activation_checkpoint.memory_budget", SLOT(activation_checkpoint.memory_budget), "in mode budget, the share of the activation memory of mode none to use: 0 is full, 1 is none", up_to_one()},

      {"data.source", SLOT(data.source), "text to train on: a file, a folder, or stdlib: (this machine's Python standard library)", not_empty()},
      {"data.pattern", SLOT(data.pattern), "which files of a folder count, for example *.txt; empty: all", any()},
      {"data.tokenizer", SLOT(data.tokenizer), "how text becomes tokens", one_of({"byte"})},
      {"data.held_out", SLOT(data.held_out), "fraction of the documents kept for validation", below_one()},
      {"data.document_mask", SLOT(data.document_mask), "tokens attend within their own document only", any()},
      {"data.bigram", SLOT(data.bigram), "compare the last validation loss with a bigram model of the same split", any()},

      {"training.steps", SLOT(training.steps), "optimizer steps of the whole run", at_least(1)},
      {"training.num_tokens_per_microbatch_per_dp_rank", SLOT(training.num_tokens_per_microbatch_per_dp_rank), "tokens of one forward and backward pass, a data-parallel rank", at_least(1)},
      {"training.num_tokens_per_train_step", SLOT(training.num_tokens_per_train_step), "tokens of one optimizer step, of all ranks; -1: one microbatch each", all_or_positive()},
      {"training.sequences_per_microbatch", SLOT(training.sequences_per_microbatch), "rows of one pass a data-parallel rank, instead of tokens; 0: from tokens", at_least(0)},
      {"training.sequences_per_train_step", SLOT(training.sequences_per_train_step), "rows of one optimizer step, of all ranks, instead of tokens; 0: from tokens", at_least(0)},
      {"training.max_context_length", SLOT(training.max_context_length), "tokens of a row", at_least(1)},
      {"training.max_norm", SLOT(training.max_norm), "gradients are clipped to this global norm", positive()},
      {"training.dtype", SLOT(training.dtype), "dtype of parameters", one_of({"float32"})},
      {"training.mixed_precision_param", SLOT(training.mixed_precision_param), "dtype of activations and matrix products", one_of({"float32", "bfloat16"})},
      {"training.mixed_precision_reduce", SLOT(training.mixed_precision_reduce), "dtype that gradients are made and summed in", float32_sums()},

      {"loss.chunks", SLOT(loss.chunks), "pieces of a row whose logits exist one at a time; 1: all at once", at_least(1)},
      {"loss.z_loss", SLOT(loss.z_loss), "coefficient of the squared log of the softmax's denominator, added to the loss", not_negative()},

      {"parallelism.data_parallel_replicate_degree", SLOT(parallelism.data_parallel_replicate_degree), "copies of the model: data parallel, parameters whole", degree()},
      {"parallelism.data_parallel_shard_degree", SLOT(parallelism.data_parallel_shard_degree), "devices that data, parameters and optimizer states are split over; -1: the rest", degree_or_rest()},
      {"parallelism.fsdp_reshard_after_forward", SLOT(parallelism.fsdp_reshard_after_forward), "whether gathered weights are given up after the forward pass and gathered again; default: with model.scan, yes", one_of({"default", "always", "never"})},
      {"parallelism.tensor_parallel_degree", SLOT(parallelism.tensor_parallel_degree), "devices that heads, feed-forward width and vocabulary are split over", degree()},
      {"parallelism.enable_sequence_parallel", SLOT(parallelism.enable_sequence_parallel), "between tensor-parallel products, rows are split over the same devices", any()},
      {"parallelism.context_parallel_degree", SLOT(parallelism.context_parallel_degree), "devices that a row is split over; only 1 is built", degree()},
      {"parallelism.pipeline_parallel_degree", SLOT(parallelism.pipeline_parallel_degree), "devices that the layers are split over; only 1 is built", degree()},
      {"parallelism.expert_parallel_degree", SLOT(parallelism.expert_parallel_degree), "devices that experts are split over; only 1 is built", degree()},

      {"compile.options", SLOT(compile.options), "options of XLA for every program, name=value each, before those that Flambeau prefers for the TPU", entries()},

      {"optimizer.name", SLOT(optimizer.name), "optimizer", one_of({"AdamW", "Adam", "SGD"})},
      {"optimizer.lr", SLOT(optimizer.lr), "peak learning rate", not_negative()},
      {"optimizer.weight_decay", SLOT(optimizer.weight_decay), "weight decay: apart from the gradient with AdamW, added to it with Adam and SGD", not_negative()},
      {"optimizer.beta1", SLOT(optimizer.beta1), "AdamW, Adam: decay of the mean of gradients", below_one()},
      {"optimizer.beta2", SLOT(optimizer.beta2), "AdamW, Adam: decay of the mean of squared gradients", below_one()},
      {"optimizer.eps", SLOT(optimizer.eps), "AdamW, Adam: added to the root of the second mean", not_negative()},
      {"optimizer.momentum", SLOT(optimizer.momentum), "SGD: decay of the sum of gradients; 0: the gradient alone", below_one()},
      {"optimizer.dampening", SLOT(optimizer.dampening), "SGD: part of the gradient that momentum leaves out", up_to_one()},
      {"optimizer.nesterov", SLOT(optimizer.nesterov), "SGD: Nesterov's momentum", any()},
      {"optimizer.state_dtype", SLOT(optimizer.state_dtype), "dtype that optimizer states are kept in; arithmetic is float32, and bfloat16 is rounded to stochastically", one_of({"float32", "bfloat16"})},
      {"optimizer.param_groups", SLOT(optimizer.param_groups), "an optimizer (name) and values for the parameters whose names a regular expression (pattern) is found in; the first that matches counts", any()},

      {"lr_scheduler.warmup_steps", SLOT(lr_scheduler.warmup_steps), "steps of linear warm-up", at_least(0)},
      {"lr_scheduler.total_steps", SLOT(lr_scheduler.total_steps), "steps that the schedule is made for; unset: training.steps", at_least(1)},
      {"lr_scheduler.decay_ratio", SLOT(lr_scheduler.decay_ratio), "part of the steps that decays; unset: all after the warm-up", up_to_one()},
      {"lr_scheduler.decay_type", SLOT(lr_scheduler.decay_type), "shape of the decay", one_of({"linear", "sqrt", "cosine"})},
      {"lr_scheduler.min_lr_factor", SLOT(lr_scheduler.min_lr_factor), "floor, as a factor on the peak", up_to_one()},

      {"checkpoint.enable", SLOT(checkpoint.enable), "save the run's state and continue from the newest one", any()},
      {"checkpoint.folder", SLOT(checkpoint.folder), "folder under dump_folder", not_empty()},
      {"checkpoint.interval", SLOT(checkpoint.interval), "steps between saves", at_least(1)},
      {"checkpoint.keep_latest_k", SLOT(checkpoint.keep_latest_k), "older ones are deleted; 0: keep all", keep_count()},
      {"checkpoint.load_step", SLOT(checkpoint.load_step), "the step to begin from, where a run has gone no further; on the command line also to go back to: later checkpoints are then set aside, once; -1: the newest", all_or_positive()},
      {"checkpoint.initial_load_path", SLOT(checkpoint.initial_load_path), "weights to begin with when there is no checkpoint yet: a step folder or a Hugging Face folder", any()},
      {"checkpoint.initial_load_in_hf", SLOT(checkpoint.initial_load_in_hf), "initial_load_path is a Hugging Face folder", any()},
      {"checkpoint.last_save_in_hf", SLOT(checkpoint.last_save_in_hf), "also write the final model as a Hugging Face folder", any()},
      {"checkpoint.enable_first_step_checkpoint", SLOT(checkpoint.enable_first_step_checkpoint), "also save after step 1", any()},

      {"metrics.log_freq", SLOT(metrics.log_freq), "steps between lines", at_least(1)},
      {"metrics.jsonl", SLOT(metrics.jsonl), "file that gets one JSON object a logged step", any()},
      {"metrics.peak_tflops", SLOT(metrics.peak_tflops), "peak of the device for MFU; 0: by the device's name", not_negative()},

      {"validator.enable", SLOT(validator.enable), "evaluate on the held-out documents", any()},
      {"validator.freq", SLOT(validator.freq), "steps between evaluations (also at step 1 and the last)", at_least(1)},
      {"validator.steps", SLOT(validator.steps), "batches of an evaluation; -1: all", all_or_positive()},

      {"dataloader.seed", SLOT(dataloader.seed), "seed of the order of samples", seed()},
      {"dataloader.shuffle", SLOT(dataloader.shuffle), "a new order of samples each epoch", any()},

      {"sampling.tokens", SLOT(sampling.tokens), "tokens to sample when training ends", at_least(0)},
      {"sampling.prompt", SLOT(sampling.prompt), "text to continue", any()},
      {"sampling.temperature", SLOT(sampling.temperature), "0: the likeliest token", not_negative()},
      {"sampling.seed", SLOT(sampling.seed), "seed of the draws", seed()},

      {"debug.seed", SLOT(debug.seed), "seed of the first parameters", seed()},
      {"debug.stats", SLOT(debug.stats), "print a checksum of the first parameters, and what was compiled and run after the run's first step and at the end", any()},
      {"debug.print_config", SLOT(debug.print_config), "print the resolved configuration first", any()},
      {"debug.state_hash", SLOT(debug.state_hash), "print checksums of the parameters and of the optimizer's states at the end", any()},
      {"debug.virtual_devices", SLOT(debug.virtual_devices), "devices of the CPU plugin, all in this process", virtual_count()},
  };
  return rows;
}
#undef SLOT

}  // namespace flambeau::train
