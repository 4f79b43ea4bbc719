#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "data/bigram.h"
#include "device/device.h"
#include "flambeau_version.h"
#include "runtime/engine.h"
#include "train/param_groups.h"
#include "train/sampler.h"
#include "train/state.h"
#include "train/summary.h"

namespace flambeau::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

DecayType decay_type(const std::string& name) {
  return name == "sqrt" ? DecayType::Sqrt : name == "cosine" ? DecayType::Cosine : DecayType::Linear;
}

ScheduleOptions schedule_options(const Config& config) {
  return {.warmup_steps = config.lr_scheduler.warmup_steps,
          .total_steps = config.lr_scheduler.total_steps.value_or(config.training.steps),
          .decay_ratio = config.lr_scheduler.decay_ratio,
          .decay_type = decay_type(config.lr_scheduler.decay_type),
          .min_lr_factor = config.lr_scheduler.min_lr_factor};
}

int64_t device_count(at::Device device) {
  return device.is_cpu() ? 1 : static_cast<int64_t>(runtime::Engine::get().client().devices().size());
}

}  // namespace

at::Device open_device(const Config& config) {
  if (config.device == "cpu") return at::kCPU;
  device::initialize({.plugin = config.plugin, .virtual_devices = static_cast<int>(config.debug.virtual_devices)}, /*start=*/true);
  runtime::Engine::get().programs().set_compile_options(compile_options(config));
  return device::tpu();
}

std::unique_ptr<models::Model> make_configured_model(const Config& config) {
  const int64_t tokenizer_vocab = make_tokenizer(config)->vocab_size();
  models::Overrides overrides = config.model.overrides;
  // A debug model has no vocabulary of its own: it takes the tokenizer's, rounded up to what matrix products like.
  if (overrides.vocab_size == 0 && config.model.flavor == "debug") overrides.vocab_size = (tokenizer_vocab + 63) / 64 * 64;
  std::unique_ptr<models::Model> model;
  try {
    model = models::make_model(config.model.name, config.model.flavor, overrides);
  } catch (const InvalidArgument& e) {
    raise_in_config(config, e.what());
  }
  model->set_attention(attention_options(config));
  freeze_parameters(config, *model);
  try {
    if (config.model.scan) model->run_layers_as_loop(checkpoint_policy(config));
  } catch (const InvalidArgument& e) {
    raise_in_config(config, e.what());
  }
  if (model->vocabulary() < tokenizer_vocab) {
    raise_in_config(config, fmt::format("model.vocab_size: expected at least the {} tokens of data.tokenizer, got {}; set it to "
                                        "0 or {}", tokenizer_vocab, model->vocabulary(), (tokenizer_vocab + 63) / 64 * 64));
  }
  if (model->max_context() < config.training.max_context_length) {
    raise_in_config(config, fmt::format("training.max_context_length: expected at most the {} of the model, got {}; lower it",
                                        model->max_context(), config.training.max_context_length));
  }
  describe_optimizer(config, *model);  // groups without parameters are found before there are tensors
  return model;
}

Degrees configured_degrees(const Config& config, const models::Model& model, int64_t devices) {
  const ParallelProblem problem{.devices = devices, .context = config.training.max_context_length, .sizes = model.sizes()};
  try {
    return resolve_parallelism(config.parallelism, problem);
  } catch (const NotImplemented& e) {
    raise<NotImplemented>("{}: {}", config.path.string(), e.what());
  } catch (const InvalidArgument& e) {
    raise_in_config(config, e.what());
  }
}

StepOptions step_options(const Config& config) {
  return {.max_norm = config.training.max_norm,
          .compute = config.training.mixed_precision_param == "bfloat16" ? at::kBFloat16 : at::kFloat,
          .documents = config.data.document_mask,
          .loss = {.chunks = config.loss.chunks, .z_loss = config.loss.z_loss}};
}

// ---- setting up -----------------------------------------------------------------------------------------------------------

namespace {

void export_model(const Config& config, const models::Model& model) {
  const auto folder = std::filesystem::path(config.dump_folder) / "hugging_face";
  export_hugging_face(folder, model);
  log_info("Hugging Face folder {}", folder.string());
}

// On the CPU: a checkpoint of any mesh has whole parameters.
void export_step(const Config& config, const std::filesystem::path& step_folder) {
  const std::unique_ptr<models::Model> model = make_configured_model(config);
  model->parameters().allocate(at::kCPU);
  load_parameters(step_folder, *model);
  export_model(config, *model);
}

}  // namespace

int run(const Config& config) {
  check_config(config);
  Beginning beginning = choose_beginning(config);
  if (beginning.step.value_or(0) >= config.training.steps) {
    log_info("Nothing to train: the run in {} has reached step {}, and training.steps is {}; raise it to go on", config.dump_folder,
             *beginning.step, config.training.steps);
    if (config.checkpoint.last_save_in_hf) export_step(config, beginning.folder->step_path(*beginning.step));
    return 0;
  }
  return Trainer(config, std::move(beginning)).run();
}

Trainer::Trainer(Config config, Beginning beginning)
    : config_(std::move(config)), model_(make_configured_model(config_)), device_(open_device(config_)),
      degrees_(configured_degrees(config_, *model_, device_count(device_))),
      batching_(batching(config_, degrees_.data_parallel())), datasets_(load_datasets(config_)), beginning_(std::move(beginning)), schedule_(schedule_options(config_)),
      device_facts_(device_facts(device_, config_.metrics.peak_tflops)) {
  if (!device_.is_cpu()) {
    spmd::use_sharding_rules(spmd::ShardingRules(degrees_, spmd::standard_rules(config_.parallelism.enable_sequence_parallel)));
    const runtime::DeviceMesh* mesh = runtime::Engine::get().mesh();
    if (mesh != nullptr && mesh->positions.size() != mesh->device_ids.size()) {
      raise<NotImplemented>("training with devices of several processes is not built yet (signals and checkpoints are decided by each on "
                            "its own), and this mesh has {} devices of which {} are this process's; use a plugin that shows one "
                            "process's devices only", mesh->device_ids.size(), mesh->positions.size());
    }
  } else if (spmd::sharding_rules() != nullptr) {
    spmd::use_sharding_rules(std::nullopt);
  }
  step_options_ = step_options(config_);
  log_info("flambeau {}", FLAMBEAU_VERSION);
  log_info("device: {}, peak {}", device_facts_.name,
           device_facts_.peak_tflops ? fmt::format("{} TFLOPS", *device_facts_.peak_tflops) : "unknown");
  if (config_.debug.print_config) log_info("{}", to_toml(config_));

  const int64_t context = batching_.context;
  model_->prepare(device_, context);
  load();
  // A step's rows are its microbatches one after another, each of which lies alike.
  const std::vector<bool> rows = spmd::held("batch", batching_.sequences);
  std::vector<bool> held;
  for (int64_t i = 0; i < batching_.accumulation; ++i) held.insert(held.end(), rows.begin(), rows.end());
  loader_.emplace(*datasets_.train, data::LoaderOptions{.global_batch = std::ssize(held), .held = held}, at_.cursor);
  if (!config_.metrics.jsonl.empty()) metrics_file_.emplace(config_.metrics.jsonl, at_.step);

  log_info("data: {} training tokens in {} documents, {} held out", with_commas(datasets_.train->corpus().tokens()),
           with_commas(datasets_.train->corpus().documents()),
           with_commas(datasets_.held_out ? datasets_.held_out->corpus().tokens() : 0));
  prepare_programs();
  const SummaryFacts facts{.degrees = degrees_, .batching = batching_, .warmup_steps = schedule_.warmup(),
                           .parameters_per_device = parameters_per_device(model_->parameters()),
                           .attention = nn::describe(attention_),
                           .argument_bytes = train_step_->argument_bytes(), .temporary_bytes = train_step_->temporary_bytes()};
  log_info("{}", format_table(summary_rows(config_, *model_, facts), wants_colour(2)));
}

void Trainer::load() {
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  generator.set_current_seed(static_cast<uint64_t>(config_.debug.seed));
  const bool has_weights = beginning_.step || !config_.checkpoint.initial_load_path.empty();
  if (has_weights) model_->parameters().allocate(device_);
  else model_->parameters().initialize(static_cast<uint64_t>(config_.debug.seed), device_);
  optimizer_.emplace(make_optimizer(config_, *model_));
  if (beginning_.step) return resume(*beginning_.step);
  if (!has_weights) return;
  try {
    load_initial(config_, *model_);
  } catch (const Error& e) {
    raise_in_config(config_, fmt::format("checkpoint.initial_load_path: {}", e.what()));
  }
  log_info("initial weights from {}", config_.checkpoint.initial_load_path);
}

void Trainer::resume(int64_t step) {
  const std::filesystem::path path = beginning_.folder->step_path(step);
  const checkpoint::State state = checkpoint::load(path);
  if (state.step != step) {
    raise<InvalidArgument>("{}: expected the state of step {}, got that of step {}; rename the folder to step-{}", path.string(),
                           step, state.step, state.step);
  }
  restore_state(state, path, config_, *model_, *optimizer_, device_);
  try {
    at_ = {state.step, state.tokens_seen, datasets_.train->load_cursor(state.data_cursor)};
  } catch (const InvalidArgument& e) {
    raise<InvalidArgument>("{}: {}", path.string(), e.what());
  }
  first_step_ = at_.step + 1;
  saved_step_ = at_.step;
  log_info("continuing from {}", path.string());
  if (const std::vector<std::string> aside = beginning_.folder->abandon_after(step); !aside.empty()) {
    log_warning("going back to step {}: the checkpoints after it are set aside as {}; nothing continues or deletes them", step,
                fmt::join(aside, ", "));
  }
}

void Trainer::prepare_programs() {
  const Clock::time_point start = Clock::now();
  // The trainer's programs are recorded on batches of the right shape; what these hold does not matter.
  const auto example = [&](int64_t microbatches) {
    data::Batch batch(batching_.sequences * std::max<int64_t>(1, microbatches), batching_.context);
    return to_tensors(batch, microbatches, step_options_.documents);
  };
  train_step_.emplace(*model_, *optimizer_, device_, step_options_);
  train_step_->prepare(example(batching_.accumulation));
  attention_ = device_.is_cpu() ? nn::AttentionUse{.kind = nn::AttentionKind::Dense, .why_not_flash = {}} : model_->attention_use();
  const bool evaluates = datasets_.held_out && (config_.validator.enable || config_.data.bigram);
  if (evaluates) {
    validation_.emplace(*datasets_.held_out, batching_.sequences, spmd::held("batch", batching_.sequences));
    eval_step_.emplace(*model_, device_, step_options_);
    eval_step_->prepare(example(0));
  }
  if (config_.sampling.tokens > 0) {
    sample_step_.emplace(*model_, device_, step_options_, batching_.context);
    sample_step_->prepare();
  }
  if (!device_.is_cpu()) log_info("programs compiled in {:.1f} s", seconds_since(start));
  // Where flash was asked for, nn has said so.
  if (const std::string& why = attention_.why_not_flash; !why.empty() && config_.model.attention != "flash")
    log_warning("attention is chunked instead of flash, the choice for TPUs: {}; model.attention = \"chunked\" says so without this warning", why);
}

// ---- running --------------------------------------------------------------------------------------------------------------

int Trainer::run() {
  const InterruptGuard interrupt;
  if (config_.debug.stats) {
    log_info("stats: first parameters {:016x}", checksum_of(collect_state(config_, *model_, *optimizer_, device_).parameters));
  }
  log_info("Training starts at step {}", first_step_);
  std::optional<TokenBatch> batch = next_batch();
  while (at_.step < config_.training.steps && !interrupted()) {
    const int64_t step = at_.step + 1;
    const data::Cursor after = loader_->cursor();
    StepResult result;
    std::optional<TokenBatch> next;
    train_step(*batch, step, result, next);
    at_ = {step, at_.tokens + batching_.tokens_per_step(), after};
    after_step(result);
    batch = std::move(next);
  }
  set_status_line("");
  return finish();
}

std::optional<TokenBatch> Trainer::next_batch() {
  return to_tensors(loader_->next().value(), batching_.accumulation, step_options_.documents);
}

void Trainer::train_step(const TokenBatch& batch, int64_t step, StepResult& result, std::optional<TokenBatch>& next) {
  const Clock::time_point start = Clock::now();
  train_step_->start(batch, schedule_.factor(step - 1), step);
  if (step < config_.training.steps) next = next_batch();  // while the device works
  result = train_step_->finish();
  const double seconds = seconds_since(start);
  seconds_since_log_ += seconds;
  seconds_total_ += seconds;
  ++steps_since_log_;
  if (result.finite) return;
  set_status_line("");
  const std::string culprit = first_non_finite(*model_, device_, step_options_, batch, result);
  // The state is that of the step before: worth keeping, unless it is itself what is broken.
  if (beginning_.folder && at_.step > 0 && !culprit.starts_with("parameter ")) save();
  raise<NonFiniteError>("step {}: not finite: {} (loss {}, grad_norm {}); the update was withheld and the run stopped; lower "
                        "optimizer.lr, or look at the data of this step", step,
                        culprit, result.loss, result.grad_norm);
}

void Trainer::after_step(const StepResult& result) {
  const int64_t step = at_.step;
  const bool first = step == 1, last = step == config_.training.steps;
  if (step == first_step_ || last || step % config_.metrics.log_freq == 0) log_step(step, result);
  const bool due = step % config_.checkpoint.interval == 0 || (first && config_.checkpoint.enable_first_step_checkpoint);
  if (beginning_.folder && due) save();
  if (config_.validator.enable && !last && (first || step % config_.validator.freq == 0) && !interrupted()) {
    const std::optional<double> loss = validate(config_.validator.steps);
    if (loss) log_info("validate step: {:2}  loss: {:8.5f}", step, *loss);
  }
  if (step == first_step_) print_stats("after the first step");
  show_progress(step, result);
}

void Trainer::log_step(int64_t step, const StepResult& result) {
  const double n = static_cast<double>(steps_since_log_);
  StepMetrics m;
  m.step = step;
  m.loss = result.loss;
  if (config_.loss.z_loss > 0) m.z_loss = result.z_loss;
  m.grad_norm = result.grad_norm;
  m.lr = config_.optimizer.lr * schedule_.factor(step - 1);
  m.tps = n * static_cast<double>(batching_.tokens_per_step()) / (seconds_since_log_ * static_cast<double>(degrees_.devices()));
  m.step_time_s = seconds_since_log_ / n;
  const models::TokenFlops flops = model_->flops_per_token(batching_.context);
  m.tflops = flops.standard * m.tps / 1e12;
  if (const std::optional<double> peak = device_facts_.peak_tflops) {
    m.mfu = 100 * m.tflops / *peak;
    m.mfu_causal = 100 * flops.causal * m.tps / 1e12 / *peak;
  }
  // On a mesh storages are global; what one device needs is what its program was compiled to.
  const int64_t bytes =
      degrees_.devices() > 1 ? train_step_->argument_bytes() + train_step_->temporary_bytes() : peak_memory_bytes(device_);
  m.memory_gib = static_cast<double>(bytes) / (1 << 30);
  m.attention = nn::describe(attention_);
  log_line(LogLevel::Info, console_line(m));
  if (metrics_file_) metrics_file_->write(m);
  seconds_since_log_ = 0;
  steps_since_log_ = 0;
}

void Trainer::show_progress(int64_t step, const StepResult& result) {
  const double done = static_cast<double>(step - first_step_ + 1);
  const double left = static_cast<double>(config_.training.steps - step) * seconds_total_ / done;
  set_status_line(fmt::format("step {}/{} ({:.0f}%)  loss {:.3f}  {} left", step, config_.training.steps,
                              100.0 * static_cast<double>(step) / static_cast<double>(config_.training.steps), result.loss,
                              duration(left)));
}

std::optional<double> Trainer::validate(int64_t batches) {
  EvalStep::Result sum;
  validation_->restart();
  for (int64_t i = 0; i != batches; ++i) {
    const std::optional<data::Batch> batch = validation_->next();
    if (!batch) break;
    if (interrupted()) return std::nullopt;
    const EvalStep::Result part = (*eval_step_)(to_tensors(*batch, 0, step_options_.documents));
    sum.loss_sum += part.loss_sum;
    sum.tokens += part.tokens;
  }
  return sum.loss_sum / std::max(1.0, sum.tokens);
}

void Trainer::save() {
  if (saved_step_ == at_.step) return;
  saved_step_ = at_.step;
  const Clock::time_point start = Clock::now();
  checkpoint::State state = collect_state(config_, *model_, *optimizer_, device_);
  state.step = at_.step;
  state.tokens_seen = at_.tokens;
  state.data_cursor = datasets_.train->save_cursor(at_.cursor);
  state.went_back_to = beginning_.went_back_to;
  beginning_.folder->save(state, config_.checkpoint.keep_latest_k);
  log_info("checkpoint {} in {:.2f} s", beginning_.folder->step_path(at_.step).string(), seconds_since(start));
}

// ---- ending ---------------------------------------------------------------------------------------------------------------

int Trainer::finish() {
  if (beginning_.folder && at_.step > 0) save();
  if (const std::optional<double> loss = !interrupted() && validation_ ? validate(-1) : std::nullopt) {
    log_info("validate step: {:2}  loss: {:8.5f}  (nats a token, all held-out samples)", at_.step, *loss);
    if (config_.data.bigram) {
      const double bigram = data::Bigram(datasets_.train->corpus()).cross_entropy(datasets_.held_out->corpus());
      log_info("held-out loss {:.4f}, bigram model {:.4f} nats a token: better by {:.4f}", *loss, bigram, bigram - *loss);
    }
  }
  if (!interrupted() && sample_step_) {
    const SampleOptions options{.tokens = config_.sampling.tokens, .temperature = config_.sampling.temperature,
                                .seed = static_cast<uint64_t>(config_.sampling.seed)};
    const std::string text = sample(*sample_step_, *datasets_.tokenizer, batching_.context, config_.sampling.prompt, options);
    fmt::print("{}\n", printable(config_.sampling.prompt + text));
    std::fflush(stdout);
  }
  if (!interrupted() && config_.checkpoint.last_save_in_hf) export_model(config_, *model_);
  print_stats("at the end");
  const int signal = received_signal();
  const std::string why = signal == 0 ? "Training completed" : fmt::format("Stopped by {}", signal == SIGINT ? "SIGINT" : "SIGTERM");
  log_info("{}: step {} of {}, {} tokens seen, {} in steps{}", why, at_.step, config_.training.steps, with_commas(at_.tokens),
           duration(seconds_total_),
           config_.debug.state_hash ? "; " + state_checksums(collect_state(config_, *model_, *optimizer_, device_)) : "");
  return signal;
}

void Trainer::print_stats(std::string_view when) const {
  if (!config_.debug.stats) return;
  if (!runtime::Engine::started()) return log_info("stats {}: no programs, the device is cpu", when);
  const runtime::Counters& c = runtime::Engine::get().counters();
  log_info("stats {}: programs_compiled {}, programs_reused {}, ops_recorded {}, executions {}, compile_s {:.2f}", when,
           c.programs_compiled.load(), c.programs_reused.load(), c.ops_recorded.load(), c.executions.load(),
           static_cast<double>(c.compile_microseconds.load()) / 1e6);
}

}  // namespace flambeau::train
