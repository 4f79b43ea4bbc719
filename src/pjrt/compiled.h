// What a compiled program says about itself, loaded on devices or not. Internal to src/pjrt.
#pragma once

#include <optional>
#include <string>

#include "pjrt/pjrt.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace flambeau::pjrt {

// Owns a PJRT_Executable.
class Compiled {
 public:
  Compiled(const PJRT_Api* api, PJRT_Executable* owned) : api_(api), handle_(owned) {}
  ~Compiled();
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  PJRT_Executable* handle() const { return handle_; }
  size_t num_outputs() const;
  std::string name() const;
  std::string fingerprint() const;  // empty where the plugin gives none
  MemoryStats memory_stats() const;
  std::string optimized_hlo() const;  // as Executable::optimized_hlo
  std::string serialize() const;

 private:
  const PJRT_Api* api_;
  PJRT_Executable* handle_;
};

}  // namespace flambeau::pjrt
