// Ops that PyTorch composes of others, but of others than those that the device has.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/register.h"

namespace flambeau::device {
namespace {

// PyTorch's own would call _weight_norm_interface, an op with kernels for the CPU and CUDA alone. Differentiable through its parts.
at::Tensor weight_norm(const at::Tensor& v, const at::Tensor& g, int64_t dim) { return v * (g / at::norm_except_dim(v, 2, dim)); }

}  // namespace

void register_composites() {
  for (const auto key : {c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradPrivateUse1}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);  // for the process's life
    library->impl("_weight_norm", TORCH_FN(weight_norm));
  }
}

}  // namespace flambeau::device
