#include "targets/target.h"

namespace flambeau::targets {

namespace {

bool has_host_memory(const std::string& platform) { return platform == "tpu" || platform == "cuda" || platform == "rocm"; }

}  // namespace

Target Target::of(const pjrt::Client& client) {
  Target target;
  target.platform = client.platform_name();
  target.generation = client.devices().empty() ? "" : client.devices().front().kind;
  target.device_count = static_cast<int>(client.devices().size());
  target.api_version = client.plugin().version();
  // Older CPU plugins accept the registration of a handler and then fail to find it, and do not know of memory kinds. To newer
  // ones host memory is memory like any other.
  const bool new_cpu = target.is_cpu() && client.plugin().version() >= std::pair(0, 106);
  target.kernels = target.is_tpu() ? KernelForm::Mosaic : new_cpu ? KernelForm::Ffi : KernelForm::None;
  target.host_memory = new_cpu || has_host_memory(target.platform);
  return target;
}

Target Target::of(const pjrt::Topology& topology) {
  Target target;
  target.platform = topology.platform_name();
  target.generation = topology.devices().empty() ? "" : topology.devices().front().kind;
  target.device_count = static_cast<int>(topology.devices().size());
  target.kernels = target.is_tpu() ? KernelForm::Mosaic : KernelForm::None;
  target.host_memory = has_host_memory(target.platform);
  return target;
}

Target Target::ahead_of_time(const Chip& chip, int64_t device_count) {
  return {.platform = "tpu",
          .generation = std::string(chip.device_kind),
          .device_count = static_cast<int>(device_count),
          .api_version = {0, 117},  // decides options only
          .kernels = KernelForm::Mosaic,
          .host_memory = true};
}

}  // namespace flambeau::targets
