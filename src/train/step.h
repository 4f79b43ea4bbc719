// The programs of a run: one training step, one evaluation step, one sampling step. Each is captured, so that on `tpu` it is one
// compiled program; on the CPU the same functions run as plain PyTorch.
//
// Numbers that change from step to step (tokens, learning rate, bias corrections, sampling position) are inputs; parameters and
// optimizer states are the state that the training step updates in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/capture.h"
#include "models/model.h"
#include "nn/loss.h"
#include "train/optimizer.h"

namespace flambeau::train {

// Batches as they are uploaded: int64 on the CPU. For training [A, B, S] (A microbatches), for evaluation [B, S].
struct TokenBatch {
  at::Tensor tokens, labels;
  at::Tensor positions, documents;  // undefined: each row is one document

  std::vector<at::Tensor> on(at::Device device) const;
};

struct StepOptions {
  double max_norm = 1;
  at::ScalarType compute = at::kFloat;
  bool documents = false;  // batches have positions and documents
  nn::LossOptions loss = {};
};

struct StepResult {
  double loss = 0;       // sum of token losses / valid tokens of the step, without the z-loss
  double z_loss = 0;     // that part of what is optimised
  double grad_norm = 0;  // before clipping
  bool finite = true;    // false: the program withheld the update
  at::Tensor squares;    // on the device: the sum of squares of each trained tensor's gradient, in the order of the physical
                         // tensors and their rows
};

class TrainStep {
 public:
  // All live as long as this.
  TrainStep(models::Model& model, Optimizer& optimizer, at::Device device, StepOptions options);

  // Records and compiles for batches like `example`; runs nothing.
  void prepare(const TokenBatch& example);

  // Starts step `step` (from 1) with the schedule's factor on the learning rates; on `tpu` this returns before it has run.
  void start(const TokenBatch& batch, double lr_factor, int64_t step);
  // Waits for the step that was started.
  StepResult finish();

  // What prepare() made; null before, and on the CPU.
  const runtime::StepProgram* program() const { return capture_.program(); }
  // Bytes of the program on a device, as compiled: parameters, states and batches; and temporaries. 0 on the CPU.
  int64_t argument_bytes() const { return capture_.argument_bytes(); }
  int64_t temporary_bytes() const { return capture_.temporary_bytes(); }

 private:
  std::vector<at::Tensor> record(const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> loss_and_gradients(const std::vector<at::Tensor>& batch);
  std::vector<at::Tensor> inputs(const TokenBatch& batch, double lr_factor, int64_t step) const;

  models::Model& model_;
  Optimizer& optimizer_;
  at::Device device_;
  StepOptions options_;
  std::vector<at::Tensor> pending_;
  device::Capture capture_;
};

class EvalStep {
 public:
  EvalStep(const models::Model& model, at::Device device, StepOptions options);
  void prepare(const TokenBatch& example);
  struct Result {
    double loss_sum = 0, tokens = 0;
  };
  Result operator()(const TokenBatch& batch);

 private:
  at::Device device_;
  device::Capture capture_;
};

// Logits of the next token after a prefix.
class SampleStep {
 public:
  SampleStep(const models::Model& model, at::Device device, StepOptions options, int64_t context);
  void prepare();
  // `prefix` has 1 to `context` tokens. Returns [V] float32 on the CPU.
  at::Tensor operator()(const std::vector<int64_t>& prefix);

 private:
  std::vector<at::Tensor> inputs(const std::vector<int64_t>& prefix) const;
  at::Device device_;
  int64_t context_;
  device::Capture capture_;
};

// The name of what stopped being finite first: a parameter, an activation (in the order of the forward pass), the loss, or
// a gradient. Runs the forward pass op by op on the state and batch of the failed step.
std::string first_non_finite(const models::Model& model, at::Device device, const StepOptions& options,
                             const TokenBatch& batch, const StepResult& result);

}  // namespace flambeau::train
