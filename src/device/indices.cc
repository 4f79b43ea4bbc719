#include "device/indices.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/native/IndexingUtils.h>

namespace flambeau::device {
namespace {

bool is_given(const c10::IValue& index) { return index.isTensor() && index.toTensor().defined(); }
bool is_on_cpu(const c10::IValue& index) { return is_given(index) && index.toTensor().is_cpu(); }
bool is_mask(const c10::IValue& index) {
  return is_given(index) && (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
}

}  // namespace

void prepare_indices(const at::Tensor& self, c10::IValue& list, bool takes_mask) {
  const c10::ArrayRef<c10::IValue> given = list.toListRef();
  const bool expands = std::ranges::any_of(given, is_mask) && !(takes_mask && std::ranges::count_if(given, is_given) == 1);
  if (!expands && std::ranges::none_of(given, is_on_cpu)) return;
  const auto indices = list.to<c10::List<std::optional<at::Tensor>>>();
  c10::List<std::optional<at::Tensor>> prepared;
  for (const at::Tensor& index : at::native::expandTensors(self, at::IOptTensorListRef(indices)))
    prepared.push_back(!index.defined() ? std::nullopt : std::optional(index.is_cpu() ? index.to(self.device()) : index));
  list = c10::IValue(std::move(prepared));
}

}  // namespace flambeau::device
