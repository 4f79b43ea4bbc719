// Qwen3's config.json. Its tensors have the decoder's names.
#include <nlohmann/json.hpp>

#include "models/qwen3/qwen3.h"

namespace flambeau::models {

std::string Qwen3::hugging_face_config() const {
  nlohmann::ordered_json config = {{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}};
  config.update(common_hugging_face_config());
  return config.dump(2) + "\n";
}

}  // namespace flambeau::models
