// Rows of a table by number.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/parameter.h"

namespace flambeau::nn {

// Rows of weight [V, D] as `dtype`: tokens [B, S] int64 to [B, S, D]. The gradient of the table is float32.
//
// On a mesh the vocabulary may be split (each device looks up what it has, and the parts are summed), and the gradient is added up
// where the table is stored: tokens travel, not tables.
at::Tensor embedding(const at::Tensor& tokens_BS, const Weight& weight, at::ScalarType dtype);

}  // namespace flambeau::nn
