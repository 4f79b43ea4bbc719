#include "device/indices.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/native/IndexingUtils.h>

namespace flambeau::device {

void bring_indices(const at::Tensor& self, c10::IValue& list) {
  c10::ArrayRef<c10::IValue> given = list.toListRef();
  if (std::none_of(given.begin(), given.end(), [](const c10::IValue& index) { return index.isTensor() && index.toTensor().is_cpu(); })) return;
  const auto indices = list.to<c10::List<std::optional<at::Tensor>>>();
  c10::List<std::optional<at::Tensor>> brought;
  for (const at::Tensor& index : at::native::expandTensors(self, at::IOptTensorListRef(indices)))
    brought.push_back(!index.defined() ? std::nullopt : std::optional(index.is_cpu() ? index.to(self.device()) : index));
  list = c10::IValue(std::move(brought));
}

}  // namespace flambeau::device
