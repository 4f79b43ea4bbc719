// Causal attention in blocks on the device (ops/block_attention.cc): the matrix of scores never exists.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace flambeau::device {

// Lengths of a block of queries and of a block of keys; 0: chosen.
struct AttentionBlocks {
  int64_t q = 0, kv = 0;
};

// query [B, H, S, E], already scaled; key and value [B, K, S, E], K dividing H; documents [B, S] int32 or undefined. Gives the output,
// like query, and the logarithm of each row's sum of exponentials [B, H, S], which the gradient needs. For use within an autograd
// function: neither has a gradient of its own.
std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, const AttentionBlocks& blocks);
// Gradients of query, key and value.
std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, const AttentionBlocks& blocks);

}  // namespace flambeau::device
