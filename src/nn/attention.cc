#include "nn/attention.h"

#include <ATen/ATen.h>

namespace flambeau::nn {

at::Tensor document_mask(const at::Tensor& documents_BS) {
  const at::Tensor positions = at::arange(documents_BS.size(1), documents_BS.options().dtype(at::kLong));
  const at::Tensor causal_SS = positions.unsqueeze(1) >= positions.unsqueeze(0);
  const at::Tensor same_BSS = documents_BS.unsqueeze(2) == documents_BS.unsqueeze(1);
  return same_BSS.logical_and(causal_SS).unsqueeze(1);
}

at::Tensor attention(const at::Tensor& q_BHSE, const at::Tensor& k_BKSE, const at::Tensor& v_BKSE,
                     const at::Tensor& mask) {
  const bool causal = !mask.defined();
  const at::Tensor out_BHSE = at::scaled_dot_product_attention(
      q_BHSE, k_BKSE, v_BKSE, causal ? std::nullopt : std::make_optional(mask), /*dropout_p=*/0.0, causal,
      /*scale=*/1.0, /*enable_gqa=*/q_BHSE.size(1) != k_BKSE.size(1));
  return out_BHSE.transpose(1, 2);
}

}  // namespace flambeau::nn
