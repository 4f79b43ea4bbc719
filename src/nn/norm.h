// Normalisation layers.
#pragma once

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

// y = x / sqrt(mean(x^2) + epsilon) * w over the last dimension (Zhang and Sennrich, 2019). Computed in float32
// whatever the dtype of x_ND; the result has x's dtype.
at::Tensor rms_norm(const at::Tensor& x_ND, const at::Tensor& weight_D, double epsilon);

}  // namespace flambeau::nn
