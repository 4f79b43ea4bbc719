#include "runtime/target.h"

#include "base/hash.h"

namespace flambeau::runtime {

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
  const bool new_cpu = target.platform == "cpu" && client.plugin().version() >= std::pair(0, 106);
  target.ffi = new_cpu;
  target.host_memory = new_cpu || has_host_memory(target.platform);
  return target;
}

Target Target::of(const pjrt::Topology& topology) {
  Target target;
  target.platform = topology.platform_name();
  target.generation = topology.devices().empty() ? "" : topology.devices().front().kind;
  target.device_count = static_cast<int>(topology.devices().size());
  target.host_memory = has_host_memory(target.platform);
  return target;
}

Target Target::tpu_elsewhere(std::string_view device_kind, int64_t device_count) {
  return {.platform = "tpu",
          .generation = std::string(device_kind),
          .device_count = static_cast<int>(device_count),
          .api_version = {0, 117},  // decides options only
          .ffi = false,
          .host_memory = true};
}

uint64_t Target::hash() const {
  return Hasher().add(platform).add(generation).add(device_count).add(ffi).value();
}

}  // namespace flambeau::runtime
