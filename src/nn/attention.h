// Attention of queries to the keys of their own document, no later than themselves.
#pragma once

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

// Which keys a query may see, besides "not later": with documents [B, S] (any numbering that changes where a document ends)
// only keys of the same document. Returns a bool mask [B, 1, S, S].
at::Tensor document_mask(const at::Tensor& documents_BS);

// q [B, H, S, E] already scaled, k and v [B, K, S, E] with K dividing H: query head h reads key-value head h / (H / K).
// `mask` as document_mask makes it; undefined means plain causal attention. Returns [B, S, H, E].
at::Tensor attention(const at::Tensor& q_BHSE, const at::Tensor& k_BKSE, const at::Tensor& v_BKSE, const at::Tensor& mask);

}  // namespace flambeau::nn
