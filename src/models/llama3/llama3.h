// Llama 3 (Grattafiori et al., 2024): pre-norm transformer with grouped-query attention, half-split RoPE and SwiGLU.
//
// Projections that read the same input are fused, with the fused parts on a dimension of their own:
// qkv [K, G + 2, E, D] (for each key-value head its G query heads, the key, the value) and w13 [2, F, D] (gate, up).
//
// Legend of shape suffixes: B batch, S sequence, N = B S tokens, D width, H query heads, K key-value heads, G = H / K, E head
// width, F feed-forward width, V vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "nn/rope.h"
#include "nn/stack.h"

namespace flambeau::models {

struct Llama3Config {
  int64_t layers = 6, dim = 256, heads = 8, kv_heads = 4, ffn_dim = 768, vocab_size = 320;
  bool tied = false;  // the head shares the embedding's weight
  double norm_epsilon = 1e-5;
  nn::RopeOptions rope = {.theta = 500000, .factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4,
                          .original_context = 8192};
  int64_t max_context = 131072;

  int64_t head_dim() const { return dim / heads; }
  // InvalidArgument that names the field and a legal value.
  void check() const;
};

// The flavour with overrides applied and checked. InvalidArgument for an unknown flavour.
Llama3Config llama3_config(const std::string& flavor, const Overrides& overrides);
std::vector<std::string> llama3_flavors();

class Llama3 final : public Model {
 public:
  explicit Llama3(Llama3Config config);

  const Llama3Config& config() const { return config_; }
  void prepare(at::Device device, int64_t max_context) override;
  at::Tensor forward(const Inputs& inputs, at::ScalarType compute, const Probe& probe = {}) const override;
  int64_t vocabulary() const override { return config_.vocab_size; }
  int64_t max_context() const override { return config_.max_context; }
  double flops_per_token(int64_t context) const override;
  double causal_flops_per_token(int64_t context) const override;
  NamedTensors to_hugging_face(const std::vector<at::Tensor>& like_parameters) const override;
  std::vector<at::Tensor> from_hugging_face(const NamedTensors& tensors) const override;
  std::string hugging_face_config() const override;

 private:
  struct Layer {
    at::Tensor attention_norm, qkv, wo, ffn_norm, w13, w2;
    void declare(nn::Parameters& list, const std::string& prefix, int64_t index, const Llama3Config& config);
  };

  at::Tensor attention_block(const Layer& layer, const at::Tensor& x_ND, const at::Tensor& table, const at::Tensor& mask,
                             int64_t batch) const;
  at::Tensor feed_forward_block(const Layer& layer, const at::Tensor& x_ND) const;

  Llama3Config config_;
  at::Tensor embedding_, norm_, head_;
  nn::Stack<Layer> layers_;
  at::Tensor rope_table_;  // [2, context, E / 2]
};

}  // namespace flambeau::models
