// Index tensors of x[i, j] and x[i, j] = y.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace flambeau::device {

// Brings index tensors that lie on the CPU to the device of `self`, as CUDA does; masks there become indices first. `list`: Tensor?[].
void bring_indices(const at::Tensor& self, c10::IValue& list);

}  // namespace flambeau::device
