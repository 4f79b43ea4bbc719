// Normalisation layers.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/parameter.h"

namespace flambeau::nn {

// y = x / sqrt(mean(x^2) + epsilon) * w over the last dimension of x [..., D] (Zhang and Sennrich, 2019), weight [D]. Computed in
// float32 whatever the dtype of x; the result has x's dtype.
at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, double epsilon);

}  // namespace flambeau::nn
