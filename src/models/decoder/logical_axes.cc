// What the dimensions of the decoder's parameters are called. The sharding rules of the run (spmd) say which axes of the mesh split them.
//
// The fused parts of qkv [K, G + 2, E, D] and w13 [2, F, D] have dimensions of their own that are never split, so that a part of the
// heads or of the feed-forward width is a whole layer, only narrower.
#include "models/decoder/decoder.h"

namespace flambeau::models {

std::span<const nn::AxesRule> decoder_axes() {
  static const std::vector<nn::AxesRule> rules = {
      {"tok_embeddings.weight", {"vocab", "embed"}},
      {"layers.*.attention_norm.weight", {"embed"}},
      {"layers.*.attention.qkv.weight", {"kv_heads", "", "", "embed"}},
      {"layers.*.attention.q_norm.weight", {""}},
      {"layers.*.attention.k_norm.weight", {""}},
      {"layers.*.attention.wo.weight", {"embed", "heads"}},  // K G E, by whole key-value heads
      {"layers.*.ffn_norm.weight", {"embed"}},
      {"layers.*.feed_forward.w13.weight", {"", "ffn", "embed"}},
      {"layers.*.feed_forward.w2.weight", {"embed", "ffn"}},
      {"norm.weight", {"embed"}},
      {"lm_head.weight", {"vocab", "embed"}},
  };
  return rules;
}

}  // namespace flambeau::models
