#include "models/decoder/decoder.h"

#include <cmath>

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/scope.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/feed_forward.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "spmd/sharding.h"

namespace flambeau::models {

using device::Scope;
using nn::Init;
using spmd::shard_hint;
using Tensors = std::vector<at::Tensor>;

void Decoder::Layer::declare(nn::Parameters& list, const std::string& prefix, int64_t index, const DecoderConfig& c) {
  const int64_t D = c.dim, K = c.kv_heads, G = c.heads / K, E = c.head_dim, F = c.ffn_dim;
  const std::string attention = prefix + ".attention.", feed_forward = prefix + ".feed_forward.";
  // Projections into the residual stream, and w3, start smaller the deeper the layer: variance then stays bounded.
  const double depth = 1 / std::sqrt(2.0 * static_cast<double>(index + 1));
  list.add(prefix + ".attention_norm.weight", attention_norm, {D}, Init::ones());
  list.add_fused(attention + "qkv.weight", qkv, {K, G + 2, E, D}, 1,
                 {{attention + "wq.weight", G, {K * G * E, D}},
                  {attention + "wk.weight", 1, {K * E, D}},
                  {attention + "wv.weight", 1, {K * E, D}}}, Init::normal(0.02, 2));
  if (c.qk_norm) {
    list.add(attention + "q_norm.weight", q_norm, {E}, Init::ones());
    list.add(attention + "k_norm.weight", k_norm, {E}, Init::ones());
  }
  list.add(attention + "wo.weight", wo, {D, c.heads * E}, Init::normal(0.02 * depth, 2));
  list.add(prefix + ".ffn_norm.weight", ffn_norm, {D}, Init::ones());
  Init w13_init = Init::normal(0.02, 2);
  w13_init.part_scale = {1, depth};
  list.add_fused(feed_forward + "w13.weight", w13, {2, F, D}, 0,
                 {{feed_forward + "w1.weight", 1, {F, D}}, {feed_forward + "w3.weight", 1, {F, D}}}, std::move(w13_init));
  list.add(feed_forward + "w2.weight", w2, {D, F}, Init::normal(0.02 * depth, 2));
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
    parameters_.add("lm_head.weight", head_, {config_.vocab_size, config_.dim}, head_init, {}, /*key=*/"output.weight");
  }
  parameters_.set_axes(decoder_axes());
}

void Decoder::run_layers_as_loop(std::optional<device::CheckpointPolicy> policy) {
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

namespace {

// The residual stream between blocks, and the way in and out of products that split heads, feed-forward width or vocabulary: with
// sequence parallelism the sequence is gathered going in and scattered coming out, and its gradient the other way round (Korthikanti
// et al., 2022).
const spmd::Axes kBlock{"batch", "sequence_block", ""}, kWhole{"batch", "sequence", ""};
at::Tensor residual(const at::Tensor& x_BSD) { return shard_hint(x_BSD, kBlock); }
at::Tensor split_input(const at::Tensor& x_BSD) { return shard_hint(x_BSD, kWhole, kBlock); }
at::Tensor summed_output(const at::Tensor& x_BSD) { return shard_hint(x_BSD, kBlock, kWhole); }

at::Tensor project(std::string_view name, const at::Tensor& x, const nn::Weight& weight) {
  const Scope scope(name);
  return nn::linear(x, weight);
}

}  // namespace

at::Tensor Decoder::attention_block(const Layer& layer, const at::Tensor& x_BSD, const at::Tensor& table,
                                    const nn::Attention& attention) const {
  const Scope scope("attention");
  const at::Tensor h_BSD = split_input(nn::rms_norm(x_BSD, layer.attention_norm, config_.norm_epsilon));
  const at::Tensor qkv_BSKPE = shard_hint(project("wq_wk_wv", h_BSD, layer.qkv), {"batch", "sequence", "kv_heads", "", ""});
  const double scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  const auto [q, k, v] = config_.qk_norm
                             ? nn::split_qkv_norm_rope(qkv_BSKPE, layer.q_norm, layer.k_norm, config_.norm_epsilon, table, scale)
                             : nn::split_qkv_rope(qkv_BSKPE, table, scale);
  const at::Tensor heads_BSHE = shard_hint(attention(q, k, v), {"batch", "sequence", "heads", ""});
  return summed_output(project("wo", heads_BSHE.flatten(2), layer.wo));
}

at::Tensor Decoder::feed_forward_block(const Layer& layer, const at::Tensor& x_BSD) const {
  const Scope scope("feed_forward");
  const at::Tensor h_BSD = split_input(nn::rms_norm(x_BSD, layer.ffn_norm, config_.norm_epsilon));
  const at::Tensor h_BS2F = shard_hint(project("w1_w3", h_BSD, layer.w13), {"batch", "sequence", "", "ffn"});
  return summed_output(project("w2", nn::swiglu(h_BS2F), layer.w2));
}

at::Tensor Decoder::embed(const at::Tensor& tokens_BS, at::ScalarType compute) const {
  const Scope scope("tok_embeddings");
  return summed_output(nn::embedding(tokens_BS, embedding_, compute));
}

at::Tensor Decoder::hidden(const Inputs& inputs, at::ScalarType compute, const Probe& probe) const {
  const int64_t S = inputs.tokens_BS.size(1);
  FLAMBEAU_CHECK(rope_table_.defined() && S <= rope_table_.size(0), "prepare() was called for this context length");
  const at::Tensor table = inputs.positions_BS.defined() ? at::embedding(rope_table_, inputs.positions_BS) : rope_table_.narrow(0, 0, S);
  const nn::Attention attention(attention_, inputs.tokens_BS, inputs.documents_BS, &attention_use_);
  const auto show = [&](const std::string& name, const at::Tensor& value) {
    if (probe) probe(name, value);
  };

  at::Tensor x_BSD = embed(inputs.tokens_BS, compute);
  show("tok_embeddings", x_BSD);
  const auto attend = [&](const Layer& layer, const at::Tensor& x) { return residual(x + attention_block(layer, x, table, attention)); };
  const auto feed = [&](const Layer& layer, const at::Tensor& x) { return residual(x + feed_forward_block(layer, x)); };
  {
    const Scope scope("layers");
    if (scan_ && !probe) {
      const auto body = [&](const Layer& layer, const Tensors& x) -> device::ScanValues { return {{feed(layer, attend(layer, x[0]))}}; };
      x_BSD = layers_.scan({x_BSD}, *scan_, body).carry[0];
    } else {
      const auto body = [&](const Layer& layer, const Tensors& carry, int64_t index) -> device::ScanValues {
        at::Tensor x = attend(layer, carry[0]);
        show("layers." + std::to_string(index) + ".attention", x);
        x = feed(layer, x);
        show("layers." + std::to_string(index) + ".feed_forward", x);
        return {{x}};
      };
      x_BSD = layers_.apply({x_BSD}, body).carry[0];
    }
  }
  const Scope scope("norm");
  return split_input(nn::rms_norm(x_BSD, norm_, config_.norm_epsilon));
}

Sizes Decoder::sizes() const {
  return {.layers = config_.layers, .dim = config_.dim, .heads = config_.heads, .kv_heads = config_.kv_heads,
          .ffn_dim = config_.ffn_dim, .vocab_size = config_.vocab_size};
}

TokenFlops Decoder::flops_per_token(int64_t context) const {
  const int64_t embedding = config_.vocab_size * config_.dim;
  // A tied embedding is also the head's matrix and is multiplied by; an untied one is only looked up.
  const int64_t multiplied = parameters_.elements() - (config_.tied ? 0 : embedding);
  const double matrices = 6.0 * static_cast<double>(multiplied);
  const double pair = 6.0 * static_cast<double>(config_.layers * config_.heads * 2 * config_.head_dim);  // of a query and a key
  return {.standard = matrices + pair * static_cast<double>(context), .causal = matrices + pair * static_cast<double>(context + 1) / 2};
}

}  // namespace flambeau::models
