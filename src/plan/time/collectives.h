// What a compiled step sends, gathered into rows of a table.
#pragma once

#include <vector>

#include "compiled/analysis.h"
#include "compiled/axes.h"
#include "plan/loop_roles.h"
#include "plan/report/report.h"
#include "plan/time/timeline.h"

namespace flambeau::plan {

// Most bytes first. `timeline`, of the same analysis, tells what runs beside something else.
std::vector<CollectiveGroup> collective_groups(const compiled::Analysis& analysis, const LoopRoles& roles, const compiled::MeshAxes& mesh,
                                               const Timeline& timeline);

}  // namespace flambeau::plan
