// The style of a plan's page: light and dark as the reader's system is, wide and narrow. Internal to src/plan.
#pragma once

#include <string_view>

namespace flambeau::plan {

extern const std::string_view kPageStyle;

}  // namespace flambeau::plan
