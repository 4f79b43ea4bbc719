// Llama 3's config.json. Its tensors have the decoder's names.
#include <nlohmann/json.hpp>

#include "models/llama3/llama3.h"

namespace flambeau::models {

std::string Llama3::hugging_face_config() const {
  nlohmann::ordered_json config = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}};
  config.update(common_hugging_face_config());
  config["mlp_bias"] = false;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", config_.rope.factor},
                            {"low_freq_factor", config_.rope.low_frequency_factor},
                            {"high_freq_factor", config_.rope.high_frequency_factor},
                            {"original_max_position_embeddings", config_.rope.original_context}};
  return config.dump(2) + "\n";
}

}  // namespace flambeau::models
