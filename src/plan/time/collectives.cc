#include "plan/time/collectives.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace flambeau::plan {

using compiled::Collective;

std::vector<CollectiveGroup> collective_groups(const compiled::Analysis& analysis, const LoopRoles& roles, const compiled::MeshAxes& mesh,
                                               const Timeline& timeline) {
  std::map<std::tuple<std::string, std::string, int64_t, std::string, std::string>, CollectiveGroup> groups;
  for (size_t i = 0; i < analysis.collectives.size(); ++i) {
    const Collective& c = analysis.collectives[i];
    const CollectiveTime& time = timeline.collectives.at(i);
    const std::string axes = compiled::axes_name(time.axes, mesh), place(place_of(roles.of(c.loop)));
    CollectiveGroup& group = groups[{c.kind, axes, c.group_size, c.type, place}];
    if (group.count == 0)
      group = {.kind = c.kind, .axes = axes, .group_size = c.group_size, .type = c.type, .place = place};
    const double runs = analysis.runs(c.loop), bytes = static_cast<double>(c.bytes()) * runs;
    group.count += runs;
    group.bytes += bytes;
    if (time.seconds > 0) group.overlapped += bytes * (1 - time.exposed / time.seconds);
  }
  std::vector<CollectiveGroup> sorted;
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  std::sort(sorted.begin(), sorted.end(), [](const CollectiveGroup& a, const CollectiveGroup& b) {
    return std::tie(b.bytes, a.kind, a.axes, a.place) < std::tie(a.bytes, b.kind, b.axes, b.place);
  });
  return sorted;
}

}  // namespace flambeau::plan
