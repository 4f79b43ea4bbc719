// Text from a model: one token after another.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer.h"
#include "train/step.h"

namespace flambeau::train {

struct SampleOptions {
  int64_t tokens = 256;
  double temperature = 0.8;  // 0: always the likeliest token
  uint64_t seed = 0;
};

// The index that `uniform` in [0, 1) falls on in softmax(logits / temperature), among the first `count` logits.
int64_t draw(std::span<const float> logits, int64_t count, double temperature, double uniform);

// `text` as UTF-8 that a terminal can be given: what is not valid, and control characters but newline and tab, become U+FFFD.
std::string printable(std::string_view text);

// The continuation of `prompt`, up to `tokens` tokens or the document's end. The same seed gives the same text.
std::string sample(SampleStep& step, const data::Tokenizer& tokenizer, int64_t context, const std::string& prompt,
                   const SampleOptions& options);

}  // namespace flambeau::train
