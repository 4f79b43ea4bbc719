#include "spmd/together.h"

#include "device/device.h"
#include "runtime/internal_ops.h"
#include "spmd/manual.h"

namespace flambeau::spmd {

std::array<at::Tensor, 2> together(const at::Tensor& x, const at::Tensor& y) {
  if (!can_be_manual() || !device::is_tpu(x) || !device::is_tpu(y)) return {x, y};
  const runtime::CallArgument arguments[] = {device::ref_of(x), device::ref_of(y)};
  const auto outputs = runtime::Engine::get().call(runtime::kTogether, arguments);
  return {device::make_tensor(outputs[0].storage, *outputs[0].type), device::make_tensor(outputs[1].storage, *outputs[1].type)};
}

}  // namespace flambeau::spmd
