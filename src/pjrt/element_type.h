// DType <-> PJRT_Buffer_Type. Internal to src/pjrt.
#pragma once

#include "base/dtype.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace flambeau::pjrt {

PJRT_Buffer_Type to_pjrt(DType dtype);
DType from_pjrt(PJRT_Buffer_Type type);  // NotImplemented for types that DType has no name for

}  // namespace flambeau::pjrt
