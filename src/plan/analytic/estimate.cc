// The time of an analytic plan: totals over rates, and what of the collectives products of the same loop may hide.
#include <algorithm>
#include <map>

#include "plan/analytic/analytic.h"
#include "plan/time/estimate.h"

namespace flambeau::plan {
namespace {

// Indices of the axes in a set.
std::vector<size_t> members(AxisSet axes, size_t count) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < count; ++i)
    if ((axes >> i & 1) != 0) indices.push_back(i);
  return indices;
}

bool in_layers(std::string_view place) { return place.starts_with("layers"); }

}  // namespace

Estimate estimate(AnalyticPlan& plan, const std::vector<hlo::MeshAxis>& mesh, const DeviceRates& rates) {
  std::map<std::string, double> seconds_at;  // of each place
  double all = 0;
  for (size_t i = 0; i < plan.collectives.size(); ++i) {
    const CollectiveGroup& group = plan.collectives[i];
    const double seconds = collective_seconds(group.kind, group.bytes, members(plan.axes[i], mesh.size()), mesh, rates);
    seconds_at[group.place] += seconds;
    all += seconds;
  }
  double exposed = 0;
  std::map<std::string, double> hidden;  // parts
  for (const auto& [place, seconds] : seconds_at) {
    const double products = plan.flops_at[place] / rates.flops;
    hidden[place] = in_layers(place) && seconds > 0 ? std::min(1.0, products / seconds) : 0;
    exposed += seconds * (1 - hidden[place]);
  }
  for (CollectiveGroup& group : plan.collectives) group.overlapped = in_layers(group.place) ? group.bytes * hidden[group.place] : 0;
  Estimate result = estimate(plan.work, all, exposed, rates);
  result.assumptions.push_back(
      "In the layers, what is sent hides behind products of the same loop as far as these take; elsewhere nothing hides it.");
  return result;
}

}  // namespace flambeau::plan
