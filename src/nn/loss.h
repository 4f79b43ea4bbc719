// The training loss.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

inline constexpr int64_t kIgnoredLabel = -100;

// Logits [..., V], labels [...] int64. The sum over tokens of -log softmax(logits)[label], in float32; tokens whose label is kIgnoredLabel count nothing.
// Sums, not means: they add up over microbatches and devices, and are divided once by the count of all valid tokens.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels);

// How many labels are valid, as a float32 scalar of at least 1 (no valid token: loss 0, not NaN).
at::Tensor valid_tokens(const at::Tensor& labels);

}  // namespace flambeau::nn
