#include "runtime/target.h"

#include "base/hash.h"

namespace flambeau::runtime {

Target Target::of(const pjrt::Client& client) {
  Target target;
  target.platform = client.platform_name();
  target.generation = client.devices().empty() ? "" : client.devices().front().kind;
  target.device_count = static_cast<int>(client.devices().size());
  // Older CPU plugins accept a registration and then fail to find the handler.
  target.ffi = target.platform == "cpu" && client.plugin().version() >= std::pair(0, 106);
  return target;
}

Target Target::of(const pjrt::Topology& topology) {
  Target target;
  target.platform = topology.platform_name();
  target.generation = topology.devices().empty() ? "" : topology.devices().front().kind;
  target.device_count = static_cast<int>(topology.devices().size());
  return target;
}

uint64_t Target::hash() const {
  return Hasher().add(platform).add(generation).add(device_count).add(ffi).value();
}

}  // namespace flambeau::runtime
