// Attributes <-> PJRT_NamedValue, and devices' descriptions. Internal to src/pjrt.
#pragma once

#include <vector>

#include "pjrt/pjrt.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace flambeau::pjrt {

// Points into `attributes`, which must live as long.
std::vector<PJRT_NamedValue> to_named_values(const Attributes& attributes);
Attributes from_named_values(const PJRT_NamedValue* values, size_t count);

// All of Device but `handle` and `addressable`.
Device describe(const PJRT_Api* api, PJRT_DeviceDescription* description);

}  // namespace flambeau::pjrt
