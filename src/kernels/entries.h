// The entry of each file of kernels.
#pragma once

#include "kernels/registry.h"

namespace flambeau::kernels {

Entry flash_attention_entry();

}  // namespace flambeau::kernels
