// torch.autocast("tpu"): PyTorch's own lists of ops, each under its policy.
//
// A listed op is caught before autograd sees it: its arguments are cast (a parameter's cast is kept until the outermost region ends) and
// the op runs again without autocast. Every other op falls through.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "device/device.h"
#include "device/register.h"

namespace flambeau::device {
namespace {

at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
              "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
              "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
              "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
              "safe to autocast.");
}

}  // namespace

void register_autocast() {
  static auto* all = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  all->fallback(torch::CppFunction::makeFallthrough());

  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  torch::Library& m = *aten;  // PyTorch's macros want these names
  using at::IntArrayRef, at::Scalar, at::ScalarType, at::Tensor;
#define LOWER_PRECISION_FP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION_FP)
#undef LOWER_PRECISION_FP
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(FP32)
#undef FP32
#define FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(FP32_SET_OPT_DTYPE)
#undef FP32_SET_OPT_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(PROMOTE)
#undef PROMOTE
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));

  // float32's range: no loss scale is needed. PyTorch keeps the choice a thread; other threads begin with its float16.
  at::autocast::set_autocast_dtype(kDeviceType, at::kBFloat16);
}

}  // namespace flambeau::device
