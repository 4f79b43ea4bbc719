// Contractions of any dimensions, which keep those that a mesh may split apart.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace flambeau::device {

// `x` and `y`, of one dtype, contracted over x_dims[i] of x and y_dims[i] of y (from the end where negative). The result has what is
// left of x, then what is left of y. `dtype`: float32 for float16 and bfloat16 operands, computed without rounding in between; none:
// theirs. For use within an autograd function: on `tpu` it has no gradient of its own.
at::Tensor dot_general(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                       std::optional<at::ScalarType> dtype = {});

}  // namespace flambeau::device
