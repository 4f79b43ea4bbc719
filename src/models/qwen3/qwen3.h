// Qwen3 (Yang et al., 2025), the dense sizes: the decoder with heads of 128 whatever the width, an RMSNorm of each query and
// key head, and plain rotary frequencies. Small sizes share the embedding with the head.
#pragma once

#include <string>
#include <vector>

#include "models/decoder/decoder.h"

namespace flambeau::models {

class Qwen3 final : public Decoder {
 public:
  Qwen3(const std::string& flavor, const Overrides& overrides);
  static std::vector<std::string> flavors();

  std::string hugging_face_config() const override;
};

}  // namespace flambeau::models
