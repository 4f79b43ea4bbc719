#include "train/sampler.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "base/philox.h"

namespace flambeau::train {
namespace {

// The length of the valid UTF-8 sequence that `text` begins with, or 0 (overlong forms, surrogates and what is beyond U+10FFFF
// are not valid).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0)) return 0;
  if ((first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90)) return 0;
  return length;
}

bool is_control(std::string_view character) {
  const auto c = static_cast<unsigned char>(character[0]);
  const bool second_set = character.size() == 2 && c == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;  // U+0080..9F
  return second_set || c == 0x7F || (c < 0x20 && c != '\n' && c != '\t');
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    out += length == 0 || is_control(character) ? std::string_view("\uFFFD") : character;
    text.remove_prefix(character.size());
  }
  return out;
}

int64_t draw(std::span<const float> logits, int64_t count, double temperature, double uniform) {
  const auto known = logits.first(static_cast<size_t>(count));
  const auto largest = std::ranges::max_element(known);
  if (temperature == 0) return largest - known.begin();
  std::vector<double> weights;
  double total = 0;
  for (const float logit : known) {
    weights.push_back(std::exp((static_cast<double>(logit) - *largest) / temperature));
    total += weights.back();
  }
  double left = uniform * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int64_t>(i);
  }
  return largest - known.begin();  // rounding: uniform was within an ulp of 1
}

std::string sample(SampleStep& step, const data::Tokenizer& tokenizer, int64_t context, const std::string& prompt,
                   const SampleOptions& options) {
  std::vector<int64_t> ids{tokenizer.bos()};
  for (const int32_t id : tokenizer.encode(prompt)) ids.push_back(id);
  const size_t begin = ids.size();
  for (int64_t i = 0; i < options.tokens; ++i) {
    const size_t first = ids.size() - std::min(ids.size(), static_cast<size_t>(context));
    const at::Tensor logits = step({ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()});
    const double uniform = philox::unit_double(philox::word64(options.seed, 0, static_cast<uint64_t>(i)));
    const int64_t next = draw({logits.data_ptr<float>(), static_cast<size_t>(logits.numel())}, tokenizer.vocab_size(),
                              options.temperature, uniform);
    if (next == tokenizer.eos()) break;
    ids.push_back(next);
  }
  return tokenizer.decode(std::span<const int64_t>(ids).subspan(begin));
}

}  // namespace flambeau::train
