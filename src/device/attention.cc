// Scaled dot product attention: PyTorch asks a stub which implementation a device has. Ours is the fused op of the table, whose two
// integer results no row can give. What that op does not take (3-D inputs, batches that broadcast, heads that differ without
// enable_gqa) PyTorch composes of other ops, and refuses what is wrong in its own words.
#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include "base/error.h"
#include "device/device.h"
#include "device/edge.h"
#include "device/register.h"

namespace flambeau::device {
namespace {

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask, double,
               bool is_causal, std::optional<double>, bool enable_gqa) {
  const auto fits = [&](const at::Tensor& x) {
    return x.dim() == 4 && x.size(0) == query.size(0) && x.scalar_type() == query.scalar_type() && is_tpu(x) && x.size(1) > 0 &&
           (enable_gqa ? query.size(1) % x.size(1) == 0 : query.size(1) == x.size(1));
  };
  const bool fused = at::globalContext().userEnabledOverrideableSDP() && fits(query) && fits(key) && fits(value) &&
                     key.size(1) == value.size(1) && key.size(2) == value.size(2) && key.size(3) == query.size(3) &&
                     !(is_causal && mask && mask->defined());
  return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

Results fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& bias,
                        double dropout_p, bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  static const ops::Row* row = ops::find_row("aten::_scaled_dot_product_fused_attention_overrideable");
  FLAMBEAU_CHECK(row, "the table has attention");
  runtime::CallArgument arguments[] = {ref_of(query), ref_of(key), ref_of(value), ref_or_none(bias), dropout_p, is_causal,
                                       return_debug_mask, scale ? runtime::CallArgument(*scale) : std::monostate{}};
  auto outputs = runtime::Engine::get().call(*row, arguments, {}, &random_source(std::nullopt));
  auto tensor = [&](size_t i) { return outputs[i].type ? make_tensor(outputs[i].storage, *outputs[i].type) : at::Tensor(); };
  return {tensor(0), tensor(1), tensor(2), tensor(3), query.sym_size(2), key.sym_size(2), tensor(6), tensor(7), tensor(8)};
}

}  // namespace

void register_attention() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  serve<"_scaled_dot_product_fused_attention_overrideable", &fused_attention>(*library);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
}

}  // namespace flambeau::device
