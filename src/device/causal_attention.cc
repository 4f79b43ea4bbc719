#include "device/causal_attention.h"

#include <algorithm>
#include <span>
#include <string_view>

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/device.h"
#include "device/flash_kernels.h"
#include "ops/flash_attention.h"

namespace flambeau::device {
namespace {

const ops::Row& row_named(std::string_view name) {
  const ops::Row* row = ops::find_row(name);
  FLAMBEAU_CHECK(row, "the table has attention in blocks");
  return *row;
}

template <size_t N>
std::array<at::Tensor, N> call(const ops::Row& row, std::span<const runtime::CallArgument> arguments) {
  std::array<at::Tensor, N> results;
  std::ranges::move(call_all(row, arguments), results.begin());
  return results;
}

}  // namespace

std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, const AttentionBlocks& blocks) {
  const runtime::CallArgument arguments[] = {ref_of(query), ref_of(key), ref_of(value), ref_or_none(documents), blocks.q, blocks.kv};
  static const ops::Row& row = row_named("flambeau::causal_attention");
  return call<2>(row, arguments);
}

std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, const AttentionBlocks& blocks) {
  const runtime::CallArgument arguments[] = {ref_of(gradient),   ref_of(query),  ref_of(key),       ref_of(value),
                                             ref_or_none(documents), ref_of(output), ref_of(logsumexp), blocks.q, blocks.kv};
  static const ops::Row& row = row_named("flambeau::causal_attention_backward");
  return call<3>(row, arguments);
}

std::array<at::Tensor, 2> flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const at::Tensor& documents, const FlashKernels& kernels) {
  const runtime::CallArgument arguments[] = {ref_of(query), ref_of(key), ref_of(value), ref_or_none(documents), kernels.forward};
  return call<2>(ops::kFlashAttention, arguments);
}

std::array<at::Tensor, 3> flash_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                   const at::Tensor& logsumexp, const FlashKernels& kernels) {
  const runtime::CallArgument arguments[] = {ref_of(gradient),   ref_of(query),  ref_of(key),       ref_of(value),
                                             ref_or_none(documents), ref_of(output), ref_of(logsumexp), kernels.dq, kernels.dkv};
  return call<3>(ops::kFlashAttentionBackward, arguments);
}

}  // namespace flambeau::device
