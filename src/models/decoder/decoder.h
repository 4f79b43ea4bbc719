// The dense decoder that families share: a pre-norm transformer with grouped-query attention, half-split RoPE and SwiGLU.
// A family is a configuration (and its Hugging Face config.json) on top of it; what differs between families is a field.
//
// Projections that read the same input are fused, with the fused parts on a dimension of their own:
// qkv [K, G + 2, E, D] (for each key-value head its G query heads, the key, the value) and w13 [2, F, D] (gate, up).
//
// Legend of shape suffixes: B batch, S sequence, D width, H query heads, K key-value heads, G = H / K,
// E head width, F feed-forward width, V vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/model.h"
#include "nn/rope.h"
#include "nn/stack.h"

namespace flambeau::models {

struct DecoderConfig {
  int64_t layers = 0, dim = 0, heads = 0, kv_heads = 0;
  int64_t head_dim = 0;  // in a flavour 0 stands for dim / heads
  int64_t ffn_dim = 0, vocab_size = 0;
  bool tied = false;     // the head shares the embedding's weight
  bool qk_norm = false;  // queries and keys pass an RMSNorm per head before RoPE
  double norm_epsilon = 1e-5;
  nn::RopeOptions rope = {};
  int64_t max_context = 0;

  // InvalidArgument that names the field and a legal value.
  void check() const;
};

struct Flavor {
  const char* name;
  DecoderConfig config;
};

// The flavour with overrides applied and checked. InvalidArgument for an unknown flavour.
DecoderConfig choose_flavor(std::span<const Flavor> flavors, const std::string& name, const Overrides& overrides);
std::vector<std::string> flavor_names(std::span<const Flavor> flavors);

// What the dimensions of each parameter are called (logical_axes.cc).
std::span<const nn::AxesRule> decoder_axes();

class Decoder : public Model {
 public:
  // `family` begins messages.
  Decoder(std::string family, DecoderConfig config);

  void run_layers_as_loop(std::optional<device::CheckpointPolicy> policy) override;
  void prepare(at::Device device, int64_t max_context) override;
  at::Tensor hidden(const Inputs& inputs, at::ScalarType compute, const Probe& probe = {}) const override;
  const nn::Weight& head() const override { return config_.tied ? embedding_ : head_; }
  Sizes sizes() const override;
  int64_t max_context() const override { return config_.max_context; }
  TokenFlops flops_per_token(int64_t context) const override;
  NamedTensors to_hugging_face(const std::vector<at::Tensor>& like_parameters) const override;
  std::vector<at::Tensor> from_hugging_face(const NamedTensors& tensors) const override;

 protected:
  // The part of config.json that families have in common.
  nlohmann::ordered_json common_hugging_face_config() const;

  const DecoderConfig config_;

 private:
  struct Layer {
    nn::Weight attention_norm, qkv, wo, ffn_norm, w13, w2;
    nn::Weight q_norm, k_norm;  // [E]; undefined without qk_norm
    static constexpr nn::Weight Layer::*kWeights[] = {&Layer::attention_norm, &Layer::qkv, &Layer::wo, &Layer::ffn_norm,
                                                      &Layer::w13, &Layer::w2, &Layer::q_norm, &Layer::k_norm};
    void declare(nn::Parameters& list, const std::string& prefix, int64_t index, const DecoderConfig& config);
  };

  at::Tensor embed(const at::Tensor& tokens_BS, at::ScalarType compute) const;
  at::Tensor attention_block(const Layer& layer, const at::Tensor& x_BSD, const at::Tensor& table,
                             const nn::Attention& attention) const;
  at::Tensor feed_forward_block(const Layer& layer, const at::Tensor& x_BSD) const;

  std::string family_;
  nn::Weight embedding_, norm_, head_;
  nn::Stack<Layer> layers_;
  at::Tensor rope_table_;  // [context, E]
};

}  // namespace flambeau::models
