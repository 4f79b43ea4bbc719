#include "nn/loss.h"

#include <ATen/ATen.h>

namespace flambeau::nn {

at::Tensor cross_entropy_sum(const at::Tensor& logits_NV, const at::Tensor& labels_N) {
  return at::cross_entropy_loss(logits_NV.to(at::kFloat), labels_N, /*weight=*/{}, at::Reduction::Sum, kIgnoredLabel);
}

at::Tensor valid_tokens(const at::Tensor& labels) {
  return labels.ne(kIgnoredLabel).to(at::kFloat).sum().clamp_min(1);
}

}  // namespace flambeau::nn
