// What a plugin reads from the process's environment when it starts. Internal to src/pjrt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace flambeau::pjrt {

// Before dlopen: fewer lines on standard error (TF_CPP_MIN_LOG_LEVEL), unless the user chose.
void prepare_to_load();

// After dlopen, before the first call: adds to XLA_FLAGS what Flambeau wants of the plugin whose code holds `api`.
//
// A plugin ends the process when it meets a name in XLA_FLAGS that it does not know, so only flags whose names are
// in the library are given, and those that an earlier plugin got from us are taken away again if this one lacks them
// (each plugin reads the variable once). What the user wrote there is never touched.
void prepare_flags(const PJRT_Api* api);

struct XlaFlag {
  std::string_view name;
  std::string_view value;
};

// `current` without our flags that the plugin does not know and with those it does, unless the user has set them.
// A file's name, which XLA_FLAGS may also be, stays as it is. `ours` holds what we have added so far and is updated.
std::string merge_flags(std::string current, const std::vector<std::pair<XlaFlag, bool>>& known, std::string& ours);

}  // namespace flambeau::pjrt
