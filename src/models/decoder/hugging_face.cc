// The decoder under Hugging Face's names. Shapes are the same, and so is the order of rows: both sides rotate head elements i and
// i + head_dim / 2 together.
#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

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

// Within a layer, and outside of the layers.
constexpr std::pair<std::string_view, std::string_view> kOfLayers[] = {
    {"attention_norm", "input_layernorm"}, {"attention.wq", "self_attn.q_proj"},     {"attention.wk", "self_attn.k_proj"},
    {"attention.wv", "self_attn.v_proj"},  {"attention.q_norm", "self_attn.q_norm"}, {"attention.k_norm", "self_attn.k_norm"},
    {"attention.wo", "self_attn.o_proj"},  {"ffn_norm", "post_attention_layernorm"}, {"feed_forward.w1", "mlp.gate_proj"},
    {"feed_forward.w3", "mlp.up_proj"},    {"feed_forward.w2", "mlp.down_proj"},
};
constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
    {"tok_embeddings", "model.embed_tokens"}, {"norm", "model.norm"}, {"lm_head", "lm_head"}};

std::string theirs(std::span<const std::pair<std::string_view, std::string_view>> table, std::string_view ours) {
  const auto found = std::ranges::find(table, ours, &std::pair<std::string_view, std::string_view>::first);
  FLAMBEAU_CHECK(found != table.end(), "each parameter has a name of Hugging Face's");
  return std::string(found->second);
}

// "layers.3.attention.wq.weight" -> "model.layers.3.self_attn.q_proj.weight"
std::string hugging_face_name(std::string_view ours) {
  constexpr std::string_view kLayers = "layers.", kWeight = ".weight";
  const std::string_view stem = ours.substr(0, ours.size() - kWeight.size());
  if (!ours.starts_with(kLayers)) return theirs(kOthers, stem) + std::string(kWeight);
  const size_t dot = stem.find('.', kLayers.size());
  return fmt::format("model.{}.{}{}", stem.substr(0, dot), theirs(kOfLayers, stem.substr(dot + 1)), kWeight);
}

}  // namespace

NamedTensors Decoder::to_hugging_face(const std::vector<at::Tensor>& like_parameters) const {
  FLAMBEAU_CHECK(like_parameters.size() == parameters_.size(), "one tensor a parameter");
  NamedTensors out;
  for (size_t i = 0; i < like_parameters.size(); ++i)
    out.emplace_back(hugging_face_name(parameters_.all()[i].name), like_parameters[i].detach());
  return out;
}

std::vector<at::Tensor> Decoder::from_hugging_face(const NamedTensors& tensors) const {
  Source source(family_, tensors);
  std::vector<at::Tensor> out;
  for (const nn::Parameter& p : parameters_) out.push_back(source.take(hugging_face_name(p.name), p.shape));
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
