// The fused calls of nn.MultiheadAttention and nn.TransformerEncoder(Layer) in eval mode without gradients, out of ops of the table.
// They compute what PyTorch's CPU kernels of the same names do.
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <torch/library.h>

#include "base/error.h"
#include "device/device.h"
#include "device/edge.h"
#include "device/register.h"

namespace flambeau::device {
namespace {

// [B, S, H * E] -> [B, H, S, E]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) { return x.unflatten(-1, {heads, x.size(-1) / heads}).transpose(1, 2); }

enum MaskType : int64_t { kQueryKey = 0, kKeyPadding = 1, kFull = 2 };

// True where a score is left out; broadcasts to [B, H, S, T].
at::Tensor left_out(const at::Tensor& mask, int64_t type) {
  const at::Tensor flags = mask.to(at::kBool);  // of a float mask, PyTorch takes every element but 0 for a mark
  return type == kKeyPadding ? flags.view({flags.size(0), 1, 1, flags.size(1)}) : flags;
}

std::tuple<at::Tensor, at::Tensor> multi_head_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                                        int64_t embed_dim, int64_t heads, const at::Tensor& qkv_weight,
                                                        const at::Tensor& qkv_bias, const at::Tensor& proj_weight,
                                                        const at::Tensor& proj_bias, const std::optional<at::Tensor>& mask,
                                                        bool need_weights, bool average_weights, std::optional<int64_t> mask_type) {
  if (query.dim() != 3 || query.size(2) != embed_dim || embed_dim % heads != 0)
    raise<InvalidArgument>("[_native_multi_head_attention] expected a query [batch, sequence, {}] and an embedding that {} heads divide, "
                           "got {}-D of size {}", embed_dim, heads, query.dim(), query.size(-1));
  const std::vector<at::Tensor> weights = qkv_weight.chunk(3), biases = qkv_bias.chunk(3);
  const auto projected = [&](const at::Tensor& x, size_t i) { return split_heads(at::linear(x, weights[i], biases[i]), heads); };
  const at::Tensor q = projected(query, 0) / std::sqrt(static_cast<double>(embed_dim / heads));
  at::Tensor scores = at::matmul(q, projected(key, 1).transpose(-2, -1));
  if (mask && mask->defined())
    scores = scores.masked_fill(left_out(*mask, mask_type.value_or(kFull)), -std::numeric_limits<double>::infinity());
  const at::Tensor probabilities = at::softmax(scores, -1);
  const at::Tensor context = at::matmul(probabilities, projected(value, 2)).transpose(1, 2).flatten(2);
  at::Tensor shown;
  if (need_weights) shown = average_weights ? probabilities.mean(1) : probabilities;
  return {at::linear(context, proj_weight, proj_bias), shown};
}

at::Tensor addmm_activation(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                            const at::Scalar& alpha, bool use_gelu) {
  const at::Tensor sum = at::addmm(self, mat1, mat2, beta, alpha);
  return use_gelu ? at::gelu(sum) : at::relu(sum);
}

// The device has no nested tensors: nn.TransformerEncoder asks this before it makes one, and masks the padding instead.
bool nested_tensor_would_do(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace

void register_transformer() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  serve<"_native_multi_head_attention", &multi_head_attention>(*library);
  library->impl("_transformer_encoder_layer_fwd", TORCH_FN(at::native::transformer_encoder_layer_forward));
  library->impl("_addmm_activation", TORCH_FN(addmm_activation));
  library->impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_tensor_would_do));
}

}  // namespace flambeau::device
