// What a compiled step sends, gathered into rows of a table.
#pragma once

#include <string>
#include <vector>

#include "hlo/compiled/analysis.h"
#include "hlo/compiled/axes.h"
#include "plan/report.h"
#include "plan/timeline.h"

namespace flambeau::plan {

// Where of the step a loop of that role stands, for people: "layers, forward", "accumulation", "outside of the layers".
std::string place_of(hlo::compiled::LoopRole role);

// Most bytes first. `timeline`, of the same analysis, tells what runs beside something else.
std::vector<CollectiveGroup> collective_groups(const hlo::compiled::Analysis& analysis, const hlo::compiled::MeshAxes& mesh,
                                               const Timeline& timeline);

}  // namespace flambeau::plan
