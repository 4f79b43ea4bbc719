// What the author of a kernel says that one call of it costs: {"custom_call_config":{...,"cost_estimate":{"flops":"123",
// "bytes_accessed":"456",...}}}, numbers with or without quotes. Nothing else tells: its body is not HLO.
#pragma once

#include <string_view>

namespace flambeau::compiled {

struct KernelCost {
  double flops = 0, bytes = 0;  // 0: not said
};

KernelCost kernel_cost(std::string_view backend_config);

}  // namespace flambeau::compiled
