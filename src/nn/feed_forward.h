// Gated feed-forward activations.
#pragma once

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

// silu(gate) * up (Shazeer, 2020), where x_N2F holds gate and up side by side: [N, 2, F] to [N, F].
// The gradient comes back as one [N, 2, F] tensor.
at::Tensor swiglu(const at::Tensor& x_N2F);

}  // namespace flambeau::nn
