#include "models/decoder/decoder.h"

#include <cmath>

#include <ATen/ATen.h>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/feed_forward.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace flambeau::models {

using nn::Init;

void Decoder::Layer::declare(nn::Parameters& list, const std::string& prefix, int64_t index, const DecoderConfig& c) {
  const int64_t G = c.heads / c.kv_heads, E = c.head_dim;
  // Projections into the residual stream, and w3, start smaller the deeper the layer: variance then stays bounded.
  const double depth = 1 / std::sqrt(2.0 * static_cast<double>(index + 1));
  list.add(prefix + ".attention_norm.weight", attention_norm, {c.dim}, Init::ones());
  list.add(prefix + ".attention.qkv.weight", qkv, {c.kv_heads, G + 2, E, c.dim}, Init::normal(0.02, 2));
  if (c.qk_norm) {
    list.add(prefix + ".attention.q_norm.weight", q_norm, {E}, Init::ones());
    list.add(prefix + ".attention.k_norm.weight", k_norm, {E}, Init::ones());
  }
  list.add(prefix + ".attention.wo.weight", wo, {c.dim, c.heads * E}, Init::normal(0.02 * depth, 2));
  list.add(prefix + ".ffn_norm.weight", ffn_norm, {c.dim}, Init::ones());
  Init w13_init = Init::normal(0.02, 2);
  w13_init.part_scale = {1, depth};
  list.add(prefix + ".feed_forward.w13.weight", w13, {2, c.ffn_dim, c.dim}, std::move(w13_init));
  list.add(prefix + ".feed_forward.w2.weight", w2, {c.dim, c.ffn_dim}, Init::normal(0.02 * depth, 2));
}

Decoder::Decoder(std::string family, DecoderConfig config)
    : config_(std::move(config)), family_(std::move(family)), layers_(config_.layers) {
  config_.check();
  const double head_std = 1 / std::sqrt(static_cast<double>(config_.dim));
  const Init head_init = Init::normal(head_std, 3 * head_std);
  // As a head, an embedding of standard deviation 1 would begin with logits of standard deviation sqrt(D).
  parameters_.add("tok_embeddings.weight", embedding_, {config_.vocab_size, config_.dim},
                  config_.tied ? head_init : Init::normal(1));
  layers_.declare(parameters_, "layers", config_);
  parameters_.add("norm.weight", norm_, {config_.dim}, Init::ones());
  if (!config_.tied) {
    parameters_.add("output.weight", head_, {config_.vocab_size, config_.dim}, head_init);
  }
  parameters_.set_axes(decoder_axes());
}

void Decoder::run_layers_as_loop(std::optional<device::KeepPolicy> policy) {
  scan_ = std::move(policy);
  if (scan_) layers_.lay_out_stacked(parameters_);
}

void Decoder::prepare(at::Device device, int64_t max_context) {
  if (max_context > config_.max_context) {
    raise<InvalidArgument>("[{}] expected a context of at most {} tokens, got {}; lower training.max_context_length",
                           family_, config_.max_context, max_context);
  }
  rope_table_ = nn::rope_table(config_.rope, max_context, config_.head_dim).to(device);
}

at::Tensor Decoder::attention_block(const Layer& layer, const at::Tensor& x_ND, const at::Tensor& table,
                                    const at::Tensor& mask, int64_t batch) const {
  const int64_t N = x_ND.size(0), K = config_.kv_heads, G = config_.heads / K, E = config_.head_dim;
  const at::Tensor h_ND = nn::rms_norm(x_ND, layer.attention_norm.value, config_.norm_epsilon);
  const at::Tensor qkv = nn::linear(h_ND, layer.qkv.value).view({batch, N / batch, K, G + 2, E});
  const double scale = 1 / std::sqrt(static_cast<double>(E));
  const auto [q, k, v] = config_.qk_norm
                             ? nn::split_qkv_norm_rope(qkv, layer.q_norm.value, layer.k_norm.value, config_.norm_epsilon, table, scale)
                             : nn::split_qkv_rope(qkv, table, scale);
  return nn::linear(nn::attention(q, k, v, mask).reshape({N, config_.heads * E}), layer.wo.value);
}

at::Tensor Decoder::feed_forward_block(const Layer& layer, const at::Tensor& x_ND) const {
  const at::Tensor h_ND = nn::rms_norm(x_ND, layer.ffn_norm.value, config_.norm_epsilon);
  return nn::linear(nn::swiglu(nn::linear(h_ND, layer.w13.value).view({x_ND.size(0), 2, config_.ffn_dim})), layer.w2.value);
}

at::Tensor Decoder::forward(const Inputs& inputs, at::ScalarType compute, const Probe& probe) const {
  const int64_t B = inputs.tokens_BS.size(0), S = inputs.tokens_BS.size(1);
  FLAMBEAU_CHECK(rope_table_.defined() && S <= rope_table_.size(1), "prepare() was called for this context length");
  const at::Tensor table = inputs.positions_BS.defined()
                               ? rope_table_.index_select(1, inputs.positions_BS.reshape({B * S})).view({2, B, S, -1})
                               : rope_table_.narrow(1, 0, S);
  const at::Tensor mask = inputs.documents_BS.defined() ? nn::document_mask(inputs.documents_BS) : at::Tensor();
  const auto show = [&](const std::string& name, const at::Tensor& value) {
    if (probe) probe(name, value);
  };

  at::Tensor x_ND = at::embedding(embedding_.value, inputs.tokens_BS.reshape({B * S})).to(compute);
  show("tok_embeddings", x_ND);
  const auto attend = [&](const Layer& layer, const at::Tensor& x) { return x + attention_block(layer, x, table, mask, B); };
  const auto feed = [&](const Layer& layer, const at::Tensor& x) { return x + feed_forward_block(layer, x); };
  if (scan_ && !probe) {
    x_ND = layers_.scan(x_ND, *scan_, [&](const Layer& layer, const at::Tensor& x) { return feed(layer, attend(layer, x)); });
  } else {
    x_ND = layers_.apply(x_ND, [&](const Layer& layer, at::Tensor x, int64_t index) {
      x = attend(layer, x);
      show("layers." + std::to_string(index) + ".attention", x);
      x = feed(layer, x);
      show("layers." + std::to_string(index) + ".feed_forward", x);
      return x;
    });
  }
  x_ND = nn::rms_norm(x_ND, norm_.value, config_.norm_epsilon);
  const at::Tensor logits_NV = nn::linear(x_ND, (config_.tied ? embedding_ : head_).value);
  show("output", logits_NV);
  return logits_NV;
}

Sizes Decoder::sizes() const {
  return {.layers = config_.layers, .dim = config_.dim, .heads = config_.heads, .kv_heads = config_.kv_heads,
          .ffn_dim = config_.ffn_dim, .vocab_size = config_.vocab_size};
}

double Decoder::flops_per_token(int64_t context) const {
  const int64_t embedding = config_.vocab_size * config_.dim;
  // A tied embedding is also the head's matrix and is multiplied by; an untied one is only looked up.
  const int64_t multiplied = parameters_.elements() - (config_.tied ? 0 : embedding);
  return 6.0 * static_cast<double>(multiplied) +
         6.0 * static_cast<double>(config_.layers * config_.heads * 2 * config_.head_dim) * static_cast<double>(context);
}

double Decoder::causal_flops_per_token(int64_t context) const {
  const double dense = flops_per_token(0);
  return dense + (flops_per_token(context) - dense) * static_cast<double>(context + 1) / (2.0 * static_cast<double>(context));
}

}  // namespace flambeau::models
