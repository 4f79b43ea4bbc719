// Rotary position embeddings (Su et al., 2021), half-split: element i of a head rotates with element i + head_dim / 2.
// Checkpoints of Hugging Face have this order; those with interleaved pairs are permuted when they are loaded.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "nn/parameter.h"

namespace flambeau::nn {

struct RopeOptions {
  double theta = 500000;
  // Llama 3.1's frequency scaling; factor 1 is none.
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_context = 8192;
};

// cos, then sin of position x frequency, [positions, head_dim] float32 on the CPU, by the same float32 arithmetic as Hugging Face's,
// so that the tables have the same bits.
at::Tensor rope_table(const RopeOptions& options, int64_t positions, int64_t head_dim);

// Splits a fused projection and rotates the queries and keys.
//   qkv   [B, S, K, G + 2, E]: for each of K key-value heads G query heads, the key, the value
//   table [S, E], or [B, S, E] where each token has a position of its own: rows of rope_table
// Returns q [B, K G, S, E] multiplied by `scale`, k [B, K, S, E], v [B, K, S, E]. The gradient is one concatenation.
std::array<at::Tensor, 3> split_qkv_rope(const at::Tensor& qkv_BSKPE, const at::Tensor& table, double scale);

// The same with an RMSNorm of each query and key head (weights [E]) before the rotation. Norm and rotation are computed in float32 and
// rounded once; q and k share one pass over them, forward and backward, which keeps nothing but qkv and a number a head.
std::array<at::Tensor, 3> split_qkv_norm_rope(const at::Tensor& qkv_BSKPE, const Weight& q_norm_E, const Weight& k_norm_E,
                                              double epsilon, const at::Tensor& table, double scale);

}  // namespace flambeau::nn
