#include "nn/loss.h"

#include <ATen/ATen.h>

namespace flambeau::nn {

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}).to(at::kFloat), labels.reshape({-1}), /*weight=*/{}, at::Reduction::Sum, kIgnoredLabel);
}

at::Tensor valid_tokens(const at::Tensor& labels) {
  return labels.ne(kIgnoredLabel).to(at::kFloat).sum().clamp_min(1);
}

}  // namespace flambeau::nn
