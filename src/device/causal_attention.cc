#include "device/causal_attention.h"

#include <span>
#include <string_view>
#include <variant>

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/device.h"
#include "device/flash_kernels.h"
#include "ops/flash_attention.h"

namespace flambeau::device {
namespace {

template <size_t N>
std::array<at::Tensor, N> call_row(const ops::Row& row, std::span<const runtime::CallArgument> arguments) {
  const auto outputs = runtime::Engine::get().call(row, arguments);
  std::array<at::Tensor, N> tensors;
  for (size_t i = 0; i < N; ++i) tensors[i] = make_tensor(outputs[i].storage, *outputs[i].type);
  return tensors;
}

const ops::Row& row_named(std::string_view name) {
  const ops::Row* row = ops::find_row(name);
  FLAMBEAU_CHECK(row, "the table has attention in blocks");
  return *row;
}

runtime::CallArgument or_none(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::monostate{};
  return ref_of(tensor);
}

}  // namespace

std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, const AttentionBlocks& blocks) {
  const runtime::CallArgument arguments[] = {ref_of(query), ref_of(key), ref_of(value), or_none(documents), blocks.q, blocks.kv};
  return call_row<2>(row_named("flambeau::causal_attention"), arguments);
}

std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, const AttentionBlocks& blocks) {
  const runtime::CallArgument arguments[] = {ref_of(gradient),   ref_of(query),  ref_of(key),       ref_of(value),
                                             or_none(documents), ref_of(output), ref_of(logsumexp), blocks.q, blocks.kv};
  return call_row<3>(row_named("flambeau::causal_attention_backward"), arguments);
}

std::array<at::Tensor, 2> flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const at::Tensor& documents, const FlashKernels& kernels) {
  const runtime::CallArgument arguments[] = {ref_of(query), ref_of(key), ref_of(value), or_none(documents), kernels.forward};
  return call_row<2>(ops::kFlashAttention, arguments);
}

std::array<at::Tensor, 3> flash_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                   const at::Tensor& logsumexp, const FlashKernels& kernels) {
  const runtime::CallArgument arguments[] = {ref_of(gradient),   ref_of(query),  ref_of(key),       ref_of(value),
                                             or_none(documents), ref_of(output), ref_of(logsumexp), kernels.dq, kernels.dkv};
  return call_row<3>(ops::kFlashAttentionBackward, arguments);
}

}  // namespace flambeau::device
