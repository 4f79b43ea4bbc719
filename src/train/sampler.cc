#include "train/sampler.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "base/philox.h"

namespace flambeau::train {

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
