// Causal attention by kernels of the target: custom calls that somebody else has made (device/flash_kernels.h).
//
// A kernel is described by a JSON text: what is called, with which operands, and what the results are. The top of
// python/flambeau/tpu_attention.py says how. Whatever stands there, types are checked; the kernel itself is opaque. On a mesh these
// ops must be within a manual computation: the partitioner knows nothing of custom calls.
#pragma once

#include <string_view>

#include "ops/op.h"

namespace flambeau::ops {

// (query [B, H, S, E], scaled already, key and value [B, K, S, E], documents [B, S] int32 or none, str kernel)
//   -> (output like query, logsumexp [B, H, S] float32)
extern const Row kFlashAttention;
// (gradient, query, key, value, documents, output, logsumexp, str dq_kernel, str dkv_kernel) -> gradients of query, key, value
extern const Row kFlashAttentionBackward;

}  // namespace flambeau::ops
