// What a compiled step sends, gathered into rows of a table.
#pragma once

#include <vector>

#include "hlo/compiled/analysis.h"
#include "hlo/compiled/axes.h"
#include "plan/report.h"
#include "plan/timeline.h"

namespace flambeau::plan {

// Most bytes first. `timeline`, of the same analysis, tells what runs beside something else.
std::vector<CollectiveGroup> collective_groups(const hlo::compiled::Analysis& analysis, const hlo::compiled::MeshAxes& mesh,
                                               const Timeline& timeline);

}  // namespace flambeau::plan
