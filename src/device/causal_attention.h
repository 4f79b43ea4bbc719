// Causal attention on the device without the matrix of scores: as a loop over blocks (ops/attention/blocks.cc), or by kernels of a TPU
// (ops/attention/kernel.cc). Both give and take the same.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace flambeau::device {

// Lengths of a block of queries and of a block of keys; 0: chosen.
struct AttentionBlocks {
  int64_t q = 0, kv = 0;
};

struct FlashKernels;

// query [B, H, S, E], already scaled; key and value [B, K, S, E], K dividing H; documents [B, S] int32 or undefined. Gives the output,
// like query, and the logarithm of each row's sum of exponentials [B, H, S], which the gradient needs. For use within an autograd
// function: neither has a gradient of its own.
std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, const AttentionBlocks& blocks);
// Gradients of query, key and value.
std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, const AttentionBlocks& blocks);

// By kernels that were made for these shapes (device/flash_kernels.h). On a mesh: within a manual computation.
std::array<at::Tensor, 2> flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const at::Tensor& documents, const FlashKernels& kernels);
std::array<at::Tensor, 3> flash_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                   const at::Tensor& logsumexp, const FlashKernels& kernels);

}  // namespace flambeau::device
