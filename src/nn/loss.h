// The training loss, from what the model's head reads to one number.
//
// There is one normalisation whatever the mesh and the accumulation: the sum of token losses divided by the count of all valid tokens
// of the step. Sums add up over microbatches and devices; nothing is ever averaged.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "nn/parameter.h"

namespace flambeau::nn {

inline constexpr int64_t kIgnoredLabel = -100;

// How the logit of a token's label, which must be in [0, V) or kIgnoredLabel, is found. Gather reads it; Mask sums a comparison with the
// vocabulary's indices, which needs no communication but a sum where a mesh splits the vocabulary.
enum class LabelLookup { Gather, Mask };

struct LossOptions {
  int64_t chunks = 8;  // pieces of the sequence: the logits of one piece exist at a time
  double z_loss = 0;   // coefficient of the squared log of the softmax's denominator (PaLM, Chowdhery et al., 2022)
  std::optional<LabelLookup> lookup = {};  // none: Mask where the rules split the vocabulary, else Gather
};

struct Loss {
  at::Tensor total;  // cross-entropy and z-loss: what is optimised
  at::Tensor z;      // the z-loss part, without a gradient
};

// x [B, S, D], head [V, D] float32, labels [B, S] int64; `divisor` is a scalar. The product has x's dtype and float32 results, all
// else is float32:
//   total = sum over tokens of (logsumexp(logits) - logits[label] + z_loss logsumexp(logits)^2) / divisor
// Tokens whose label is kIgnoredLabel count nothing. Where gradients are wanted they are made in the same pass, piece by piece (of x
// in its dtype, of the head in float32), so that logits are computed once and never kept. Chunks that do not divide S leave a
// shorter last piece.
Loss linear_cross_entropy(const at::Tensor& x_BSD, const Weight& head, const at::Tensor& labels_BS, const at::Tensor& divisor,
                          const LossOptions& options);

// How many labels are valid, as a float32 scalar of at least 1 (no valid token: loss 0, not NaN).
at::Tensor valid_tokens(const at::Tensor& labels);

}  // namespace flambeau::nn
