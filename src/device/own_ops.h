// Ops that PyTorch does not have: flambeau::NAME to its dispatcher, torch.ops.flambeau.NAME in Python, these functions in C++.
//
// A row of the op table brings an op's schema; its lowering runs on the device and gives the shapes of meta and fake tensors
// (definitions.cc). Kernels for the CPU and gradients are in own_ops.cc. docs/own_ops.md is the user's page.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::device {

// `x` and `y`, of one dtype, contracted over x_dims[i] of x and y_dims[i] of y (from the end where negative). The result has what is
// left of x, then what is left of y: dimensions that a mesh may split stay apart. `dtype`: float32 for float16 and bfloat16 operands,
// computed without rounding in between; none: theirs.
at::Tensor dot_general(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                       std::optional<at::ScalarType> dtype = {});

// Rounding to bfloat16 that is right in the mean (ops/stochastic_round.cc), with the same bits on the device and on the CPU. `x` float32;
// `step` int64 []; `keys` int64 [1], or one a row of x; `draw` 0 to 3. Not differentiable.
at::Tensor stochastic_round(const at::Tensor& x, const at::Tensor& step, const at::Tensor& keys, int64_t draw);

// The tensors as they are; but what uses one of them is computed after all of them. On the CPU: copies.
std::vector<at::Tensor> optimization_barrier(at::TensorList tensors);

// Causal attention without the matrix of scores. query [B, H, S, E], already scaled; key and value [B, K, S, E], K dividing H; documents
// [B, S] int32, where defined: a query sees the keys of its own document. Gives the output, like query, and the logarithm of each row's
// sum of exponentials [B, H, S], which the gradient needs and which has none. On the device alone.
//
// As a loop over blocks of so many queries and keys (0: chosen); or by kernels, whose calls the registry gives (kernels/flash_attention.cc):
// these are for one device, or within a manual computation.
std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, int64_t block_q, int64_t block_kv);
std::array<at::Tensor, 2> flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const at::Tensor& documents, const std::string& forward, const std::string& dq,
                                          const std::string& dkv);
// Gradients of query, key and value.
std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, int64_t block_q, int64_t block_kv);
std::array<at::Tensor, 3> flash_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                   const at::Tensor& logsumexp, const std::string& dq, const std::string& dkv);

}  // namespace flambeau::device
