// What is compiled for: everything that a lowering, a kernel or a cache key may ask about the machine that will run a program.
// It comes from a client (to run) or from a topology (to plan); nothing else asks "the client".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "pjrt/pjrt.h"

namespace flambeau::runtime {

struct Target {
  std::string platform;    // "cpu", "tpu", "cuda"
  std::string generation;  // the device kind: "cpu", "TPU v5 lite"
  int device_count = 1;
  std::pair<int, int> api_version = {};  // of the plugin's PJRT C API
  bool ffi = false;        // custom calls to handlers of this process run inside programs
  bool host_memory = false;  // values of a program can be put into the host's memory (hlo::Builder::in_memory)

  static Target of(const pjrt::Client& client);
  static Target of(const pjrt::Topology& topology);
  // TPUs of a device kind ("TPU v5 lite") that are not here, as the libtpu that is pinned would tell of them.
  static Target tpu_elsewhere(std::string_view device_kind, int64_t device_count);
  uint64_t hash() const;
  friend bool operator==(const Target&, const Target&) = default;
};

}  // namespace flambeau::runtime
