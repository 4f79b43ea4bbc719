// Attention of queries to the keys of their own document, no later than themselves.
//
// Ways to compute it, with the same numbers up to rounding:
//   dense    PyTorch's scaled_dot_product_attention: the scores of all pairs exist. Faster for short rows on CPUs.
//   chunked  a loop over blocks of queries and keys (ops/attention/blocks.cc): memory grows with the row's length, not its square.
//   flash    the same by kernels for TPUs, where the registry has them for the shapes (kernels/registry.h); else chunked, their twin, which
//            is said once. Refused for other targets.
// On the CPU itself (the reference) it is always dense. On a mesh, chunked and flash attention run on each device's own batch rows
// and heads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

enum class AttentionKind { Auto, Dense, Chunked, Flash };

// How attention was computed when it was last recorded or run, for whoever reports it.
struct AttentionUse {
  AttentionKind kind = AttentionKind::Auto;  // Auto: not yet
  std::string why_not_flash;                 // flash was the choice and is computed chunked: the reason
};
// "dense"; "chunked instead of flash: no Python with JAX".
std::string describe(const AttentionUse& use);

// Lengths of a block of queries and of a block of keys; 0: chosen.
struct AttentionBlocks {
  int64_t q = 0, kv = 0;
};

struct AttentionOptions {
  AttentionKind kind = AttentionKind::Auto;
  AttentionBlocks blocks = {};
  bool chosen = false;  // the kind, by Auto: then no warning is logged here where flash becomes chunked
  std::shared_ptr<AttentionUse> use = std::make_shared<AttentionUse>();
};

// Made once a forward pass, for all layers.
class Attention {
 public:
  // For rows like tokens [B, S]. `documents` [B, S], where defined, is any numbering that changes where a document ends.
  Attention(const AttentionOptions& options, const at::Tensor& tokens_BS, const at::Tensor& documents_BS);

  // q [B, H, S, E] already scaled, k and v [B, K, S, E] with K dividing H: query head h reads key-value head h / (H / K).
  // Returns [B, S, H, E].
  at::Tensor operator()(const at::Tensor& q_BHSE, const at::Tensor& k_BKSE, const at::Tensor& v_BKSE) const;

  AttentionKind kind() const { return options_.kind; }  // never Auto

 private:
  AttentionOptions options_;
  at::Tensor documents_BS_;  // int32; undefined where rows are one document
  at::Tensor mask_B1SS_;     // of dense attention, instead
};

}  // namespace flambeau::nn
