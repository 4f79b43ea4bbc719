// Gated feed-forward activations.
#pragma once

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

// silu(gate) * up (Shazeer, 2020), where x holds gate and up side by side: [..., 2, F] to [..., F].
// The gradient comes back as one [..., 2, F] tensor.
at::Tensor swiglu(const at::Tensor& x);

}  // namespace flambeau::nn
