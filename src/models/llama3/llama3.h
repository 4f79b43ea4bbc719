// Llama 3 (Grattafiori et al., 2024): the dense decoder with Llama 3.1's scaled rotary frequencies.
#pragma once

#include <string>
#include <vector>

#include "models/decoder/decoder.h"

namespace flambeau::models {

class Llama3 final : public Decoder {
 public:
  Llama3(const std::string& flavor, const Overrides& overrides);
  static std::vector<std::string> flavors();

  std::string hugging_face_config() const override;
};

}  // namespace flambeau::models
