// The decoder under Hugging Face's names and shapes.
//
// Both sides turn head elements i and i + head_dim / 2 together, so rows keep their order; only the fused projections are
// taken apart: qkv [K, G + 2, E, D] into q [H E, D], k and v [K E, D], and w13 [2, F, D] into gate and up.
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/decoder/decoder.h"

namespace flambeau::models {
namespace {

// Takes tensors out of a named list, with checks.
class Source {
 public:
  Source(std::string family, const NamedTensors& tensors) : family_(std::move(family)) {
    for (const auto& [name, tensor] : tensors) tensors_[name] = tensor;
  }

  at::Tensor take(const std::string& name, std::vector<int64_t> shape) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      raise<InvalidArgument>("[{}] expected a tensor named {}, found none; is this a checkpoint of the same flavour?", family_,
                             name);
    }
    const at::Tensor tensor = found->second;
    if (tensor.sizes() != at::IntArrayRef(shape)) {
      raise<InvalidArgument>("[{}] expected {} of shape [{}], got [{}]; choose the flavour of the checkpoint", family_, name,
                             fmt::join(shape, ", "), fmt::join(tensor.sizes(), ", "));
    }
    tensors_.erase(found);
    return tensor.to(at::kFloat);
  }

  void expect_empty(bool tied) {
    std::erase_if(tensors_, [&](const auto& entry) {
      return entry.first.ends_with("rotary_emb.inv_freq") || (tied && entry.first == "lm_head.weight");
    });
    if (!tensors_.empty()) {
      raise<InvalidArgument>("[{}] unexpected tensor {} in the checkpoint; choose the flavour of the checkpoint", family_,
                             tensors_.begin()->first);
    }
  }

 private:
  std::string family_;
  std::map<std::string, at::Tensor> tensors_;
};

std::string layer_name(int64_t index) { return fmt::format("model.layers.{}.", index); }

}  // namespace

NamedTensors Decoder::to_hugging_face(const std::vector<at::Tensor>& like_parameters) const {
  FLAMBEAU_CHECK(like_parameters.size() == parameters_.size(), "one tensor a parameter");
  const int64_t D = config_.dim, G = config_.heads / config_.kv_heads;
  size_t next = 0;
  const auto take = [&] { return like_parameters[next++].detach(); };
  const auto matrix = [&](const at::Tensor& t) { return t.reshape({-1, D}); };

  NamedTensors out;
  out.emplace_back("model.embed_tokens.weight", take());
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::string name = layer_name(i);
    out.emplace_back(name + "input_layernorm.weight", take());
    const at::Tensor qkv = take();
    out.emplace_back(name + "self_attn.q_proj.weight", matrix(qkv.narrow(1, 0, G)));
    out.emplace_back(name + "self_attn.k_proj.weight", matrix(qkv.select(1, G)));
    out.emplace_back(name + "self_attn.v_proj.weight", matrix(qkv.select(1, G + 1)));
    if (config_.qk_norm) {
      out.emplace_back(name + "self_attn.q_norm.weight", take());
      out.emplace_back(name + "self_attn.k_norm.weight", take());
    }
    out.emplace_back(name + "self_attn.o_proj.weight", take());
    out.emplace_back(name + "post_attention_layernorm.weight", take());
    const at::Tensor w13 = take();
    out.emplace_back(name + "mlp.gate_proj.weight", w13.select(0, 0));
    out.emplace_back(name + "mlp.up_proj.weight", w13.select(0, 1));
    out.emplace_back(name + "mlp.down_proj.weight", take());
  }
  out.emplace_back("model.norm.weight", take());
  if (!config_.tied) out.emplace_back("lm_head.weight", take());
  return out;
}

std::vector<at::Tensor> Decoder::from_hugging_face(const NamedTensors& tensors) const {
  const int64_t D = config_.dim, K = config_.kv_heads, G = config_.heads / K, E = config_.head_dim, F = config_.ffn_dim;
  Source source(family_, tensors);
  std::vector<at::Tensor> out;
  out.push_back(source.take("model.embed_tokens.weight", {config_.vocab_size, D}));
  for (int64_t i = 0; i < config_.layers; ++i) {
    const std::string name = layer_name(i);
    out.push_back(source.take(name + "input_layernorm.weight", {D}));
    out.push_back(at::cat({source.take(name + "self_attn.q_proj.weight", {K * G * E, D}).view({K, G, E, D}),
                           source.take(name + "self_attn.k_proj.weight", {K * E, D}).view({K, 1, E, D}),
                           source.take(name + "self_attn.v_proj.weight", {K * E, D}).view({K, 1, E, D})}, 1));
    if (config_.qk_norm) {
      out.push_back(source.take(name + "self_attn.q_norm.weight", {E}));
      out.push_back(source.take(name + "self_attn.k_norm.weight", {E}));
    }
    out.push_back(source.take(name + "self_attn.o_proj.weight", {D, K * G * E}));
    out.push_back(source.take(name + "post_attention_layernorm.weight", {D}));
    out.push_back(at::stack({source.take(name + "mlp.gate_proj.weight", {F, D}),
                             source.take(name + "mlp.up_proj.weight", {F, D})}));
    out.push_back(source.take(name + "mlp.down_proj.weight", {D, F}));
  }
  out.push_back(source.take("model.norm.weight", {D}));
  if (!config_.tied) out.push_back(source.take("lm_head.weight", {config_.vocab_size, D}));
  source.expect_empty(config_.tied);
  return out;
}

nlohmann::ordered_json Decoder::common_hugging_face_config() const {
  return {
      {"hidden_size", config_.dim},
      {"intermediate_size", config_.ffn_dim},
      {"num_hidden_layers", config_.layers},
      {"num_attention_heads", config_.heads},
      {"num_key_value_heads", config_.kv_heads},
      {"head_dim", config_.head_dim},
      {"vocab_size", config_.vocab_size},
      {"max_position_embeddings", config_.max_context},
      {"rms_norm_eps", config_.norm_epsilon},
      {"rope_theta", config_.rope.theta},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"tie_word_embeddings", config_.tied},
      {"torch_dtype", "float32"},
  };
}

}  // namespace flambeau::models
