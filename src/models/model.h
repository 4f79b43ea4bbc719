// What the trainer knows of a model: its parameters, its logits, and how much work a token is.
//
// Models are single-device code over plain at:: calls. A model owns its parameters (members listed in parameters()) and
// constant tables; it stays where it was made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/scan.h"
#include "nn/attention.h"
#include "nn/parameter.h"

namespace flambeau::models {

// One microbatch. `documents` numbers the document of each token and `positions` counts from each document's
// start; both undefined when a row is one document.
struct Inputs {
  at::Tensor tokens_BS;     // int64
  at::Tensor positions_BS;  // int64
  at::Tensor documents_BS;  // int64
};

// Tensors with names that another program gives them (Hugging Face), in file order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Looks at a named activation; see Model::forward.
using Probe = std::function<void(const std::string& name, const at::Tensor& value)>;

// Floating-point operations of one token, forward and backward, under the two conventions for attention. Training and planning
// compute MFU from these and nothing else; what is recomputed counts in neither.
struct TokenFlops {
  // TorchTitan's: 6 (N - N_embedding) + 6 L H (d_qk + d_v) context, without a discount for the causal mask.
  double standard = 0;
  // The same where a query meets only the keys up to itself: (context + 1) / 2 on average.
  double causal = 0;
};

// What a mesh must divide.
struct Sizes {
  int64_t layers = 0, dim = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab_size = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  nn::Parameters& parameters() { return parameters_; }
  const nn::Parameters& parameters() const { return parameters_; }

  // How equal layers run within a captured step: as one loop, whose backward pass recomputes what the policy does not keep, or
  // (none) written out one after another. Layers of a loop lie stacked in memory, so this comes before parameters have values.
  virtual void run_layers_as_loop(std::optional<device::CheckpointPolicy> policy) { scan_ = std::move(policy); }

  // How attention is computed; Auto unless this is called.
  void set_attention(const nn::AttentionOptions& options) { attention_ = options; }
  // How it was computed last.
  const nn::AttentionUse& attention_use() const { return attention_use_; }

  // Moves tables to `device` and makes them for contexts up to `max_context`. Parameters: parameters().initialize or allocate.
  virtual void prepare(at::Device device, int64_t max_context) = 0;

  // What the head reads, [B, S, D]: the last layer's output after its norm. Activations have dtype `compute`. `probe`, when given, is
  // shown each layer's output, for finding where a value stopped being finite.
  virtual at::Tensor hidden(const Inputs& inputs, at::ScalarType compute, const Probe& probe = {}) const = 0;
  // The weight [V, D] that makes logits of it; a tied model's is its embedding.
  virtual const nn::Weight& head() const = 0;
  // Logits [B, S, V].
  at::Tensor forward(const Inputs& inputs, at::ScalarType compute, const Probe& probe = {}) const;

  // Writes the next values of the model's buffers in place, as a part of the training step, where `apply` (a bool scalar) is true.
  virtual void update_buffers(const at::Tensor& /*apply*/) {}

  virtual Sizes sizes() const = 0;
  int64_t vocabulary() const { return sizes().vocab_size; }
  virtual int64_t max_context() const = 0;  // the longest that the position embedding is meant for
  virtual TokenFlops flops_per_token(int64_t context) const = 0;

  // All parameters, or tensors like them (gradients), under Hugging Face's names; and the inverse, which raises InvalidArgument for
  // a name that is missing, unknown or of another shape.
  virtual NamedTensors to_hugging_face(const std::vector<at::Tensor>& like_parameters) const = 0;
  virtual std::vector<at::Tensor> from_hugging_face(const NamedTensors& tensors) const = 0;
  // Hugging Face's config.json of this model.
  virtual std::string hugging_face_config() const = 0;

 protected:
  nn::Parameters parameters_;
  std::optional<device::CheckpointPolicy> scan_;
  nn::AttentionOptions attention_;
  mutable nn::AttentionUse attention_use_;  // a report of hidden()
};

// Sizes that replace those of the flavour; 0 keeps the flavour's.
struct Overrides {
  int64_t vocab_size = 0, n_layers = 0, dim = 0, n_heads = 0, n_kv_heads = 0, ffn_dim = 0;
};

// InvalidArgument for an unknown name or flavour (lists those known), or sizes that do not fit together.
std::unique_ptr<Model> make_model(const std::string& name, const std::string& flavor, const Overrides& overrides);

// "llama3: debug, 1B, 3B, 8B, 70B, 405B; qwen3: ...", for help texts.
std::string known_models();

}  // namespace flambeau::models
