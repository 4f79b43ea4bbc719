// Matrix products with weights.
#pragma once

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

// y_NO = x_NI w_OI^T. The weight may have more dimensions in front: [2, F, I] acts as [2 F, I]. A float32 weight is cast to
// x's dtype for the product; its gradient is computed and kept in float32. Gradients are two plain 2-D products:
// dx = g w and dw = g^T x.
at::Tensor linear(const at::Tensor& x_NI, const at::Tensor& weight);

}  // namespace flambeau::nn
