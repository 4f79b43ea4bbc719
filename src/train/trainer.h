// A training run from its configuration to its summary.
//
// Construction reads the data, makes the model, loads a checkpoint if there is one and compiles the step programs. Trainer::run() then does
// nothing but upload batches, replay programs and read their results, so that after the first step nothing is compiled.
// One thread calls all of it; data and the engine have threads of their own.
#pragma once

#include <memory>
#include <optional>

#include "base/error.h"
#include "models/model.h"
#include "train/config.h"
#include "train/datasets.h"
#include "train/interrupt.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/parallelism.h"
#include "train/resume.h"
#include "train/schedule.h"
#include "train/step.h"

namespace flambeau::train {

// A loss, gradient or parameter that is no number any more. The state is as it was before the step that met it.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

// The device that `config.device` names, registered and with its plugin loaded.
at::Device open_device(const Config& config);

// The model of the configuration, without tensors. InvalidArgument names the file and the key.
std::unique_ptr<models::Model> make_configured_model(const Config& config);

// The mesh that the configuration makes of `devices`. InvalidArgument or NotImplemented, led by the file.
Degrees configured_degrees(const Config& config, const models::Model& model, int64_t devices);

StepOptions step_options(const Config& config);

// Trains to the last step or to a signal, which is returned (0: none came). A run that has reached its last step before says so, and
// only writes what checkpoint.last_save_in_hf asks for. NonFiniteError when a step is not finite.
int run(const Config& config);

class Trainer {
 public:
  Trainer(Config config, Beginning beginning);

  // As train::run.
  int run();

 private:
  struct Cut {  // where the run stands between two steps
    int64_t step = 0, tokens = 0;
    data::Cursor cursor;
  };

  // First values, or those of a checkpoint.
  void load();
  void resume(int64_t step);
  void prepare_programs();
  void train_step(const TokenBatch& batch, int64_t step, StepResult& result, std::optional<TokenBatch>& next);
  void log_step(int64_t step, const StepResult& result);
  void show_progress(int64_t step, const StepResult& result);
  void after_step(const StepResult& result);
  // Mean loss a token over the held-out samples, or over the first `batches` batches (-1: all). nullopt when a signal ended it.
  std::optional<double> validate(int64_t batches);
  void save();
  // What the run has to say at its end. Returns the signal that ended it, which may come only now, or 0.
  int finish();
  void print_stats(std::string_view when) const;
  std::optional<TokenBatch> next_batch();

  Config config_;
  std::unique_ptr<models::Model> model_;
  at::Device device_;
  Degrees degrees_;
  Batching batching_;
  Datasets datasets_;
  std::optional<Optimizer> optimizer_;
  std::optional<TrainStep> train_step_;
  std::optional<EvalStep> eval_step_;
  std::optional<SampleStep> sample_step_;
  std::optional<data::ValidationLoader> validation_;
  std::optional<data::Loader> loader_;
  Beginning beginning_;
  std::optional<MetricsFile> metrics_file_;
  Schedule schedule_;
  DeviceFacts device_facts_;
  StepOptions step_options_;
  nn::AttentionUse attention_;  // of the training step

  Cut at_;
  int64_t first_step_ = 1, saved_step_ = 0;
  double seconds_since_log_ = 0, seconds_total_ = 0;
  int64_t steps_since_log_ = 0;
};

}  // namespace flambeau::train
