// What a program is compiled for: all that a lowering, a kernel or a key may ask about the machine that will run it. It comes from a client
// (to run), or from a topology whose devices are not attached (ahead of time).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "pjrt/pjrt.h"
#include "targets/chips.h"

namespace flambeau::targets {

// How a program calls code that StableHLO does not describe (src/kernels).
enum class KernelForm {
  None,
  Mosaic,  // TPUs: the program carries the kernel, a Mosaic module in a custom call's configuration
  Ffi,     // the program names a handler, a function of this process that was registered with the plugin
};

struct Target {
  std::string platform;    // "cpu", "tpu", "cuda"
  std::string generation;  // the device kind: "cpu", "TPU v5 lite"
  int device_count = 1;
  std::pair<int, int> api_version = {};  // of the plugin's PJRT C API
  KernelForm kernels = KernelForm::None;
  bool host_memory = false;  // programs may keep values in the host's memory, kind "pinned_host" (hlo::Builder::in_memory)

  static Target of(const pjrt::Client& client);
  static Target of(const pjrt::Topology& topology);
  // Ahead of time, for a topology of so many devices, as the pinned libtpu would describe it.
  static Target ahead_of_time(const Chip& chip, int64_t device_count);

  bool is_cpu() const { return platform == "cpu"; }
  bool is_tpu() const { return platform == "tpu"; }
  friend bool operator==(const Target&, const Target&) = default;
};

}  // namespace flambeau::targets
