// Index tensors of x[i, j] and x[i, j] = y.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace flambeau::device {

// Makes the indices of `self` (`list`, Tensor?[]) ones that a row takes: those that lie on the CPU come to the device, as with CUDA, and
// masks become the places where they are true, for which the host waits. `takes_mask`: a mask on the device that is the only index stays.
void prepare_indices(const at::Tensor& self, c10::IValue& list, bool takes_mask);

}  // namespace flambeau::device
