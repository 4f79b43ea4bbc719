// Rounding to bfloat16 that is right in the mean (ops/stochastic_round.h), on either device with the same bits.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace flambeau::device {

// `x` float32; `step` int64 []; `keys` int64 [1], or one a row of x; `draw` 0 to 3.
at::Tensor stochastic_round(const at::Tensor& x, const at::Tensor& step, const at::Tensor& keys, int64_t draw);

}  // namespace flambeau::device
