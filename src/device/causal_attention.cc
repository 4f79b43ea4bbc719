#include "device/causal_attention.h"

#include <span>
#include <string_view>
#include <variant>

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

template <size_t N>
std::array<at::Tensor, N> call_row(std::string_view name, std::span<const runtime::CallArgument> arguments) {
  const ops::Row* row = ops::find_row(name);
  FLAMBEAU_CHECK(row, "the table has attention in blocks");
  const auto outputs = runtime::Engine::get().call(*row, arguments);
  std::array<at::Tensor, N> tensors;
  for (size_t i = 0; i < N; ++i) tensors[i] = make_tensor(outputs[i].storage, *outputs[i].type);
  return tensors;
}

runtime::CallArgument or_none(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::monostate{};
  return ref_of(tensor);
}

}  // namespace

std::array<at::Tensor, 2> causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& documents, const AttentionBlocks& blocks) {
  const runtime::CallArgument arguments[] = {ref_of(query), ref_of(key), ref_of(value), or_none(documents), blocks.q, blocks.kv};
  return call_row<2>("flambeau::causal_attention", arguments);
}

std::array<at::Tensor, 3> causal_attention_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, const at::Tensor& documents, const at::Tensor& output,
                                                    const at::Tensor& logsumexp, const AttentionBlocks& blocks) {
  const runtime::CallArgument arguments[] = {ref_of(gradient),   ref_of(query),  ref_of(key),       ref_of(value),
                                             or_none(documents), ref_of(output), ref_of(logsumexp), blocks.q, blocks.kv};
  return call_row<3>("flambeau::causal_attention_backward", arguments);
}

}  // namespace flambeau::device
