// Matrix products with weights.
//
// A weight is used cast to the dtype of its input and gathered by the sharding rules (spmd/sharding.h); its gradient is float32 and laid
// out as the weight is stored. Inputs keep their leading dimensions: a mesh may split batch and sequence, so neither is merged.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/parameter.h"

namespace flambeau::nn {

// y[..., O...] = x[..., I] w[O..., I]: the result has the weight's dimensions but the last. The gradients are two products:
// dx over O..., and dw over the leading dimensions, which is float32 straight from the operands (a rounding to bfloat16 before it
// is summed over devices and microbatches would lose bits).
at::Tensor linear(const at::Tensor& x, const Weight& weight);

}  // namespace flambeau::nn
