// An order among values of a program that nothing else orders (stablehlo.optimization_barrier).
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

namespace flambeau::spmd {

// Both as they are, but what uses either is computed after both. On a mesh, where a compiler that is free to do so may leave a sum over
// devices to the end of the step and keep what it sums until then; without one the tensors themselves.
std::array<at::Tensor, 2> optimization_barrier(const at::Tensor& x, const at::Tensor& y);

}  // namespace flambeau::spmd
