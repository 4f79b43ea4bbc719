// How long a step may take: work over what a device can do at best. An estimate, always.
#pragma once

#include "plan/report/report.h"
#include "plan/time/timeline.h"

namespace flambeau::plan {

Work work_of(const compiled::Analysis& analysis);

// From a program that was compiled: operation after operation, each as long as its products or its memory traffic take,
// whichever is longer, and what of the collectives nothing hides.
Estimate estimate(const compiled::Analysis& analysis, const Timeline& timeline, const DeviceRates& rates);

// From totals alone, where nothing was compiled: products and memory traffic beside each other, collectives (seconds of their
// own, of which `exposed_s` nothing hides) after them.
Estimate estimate(const Work& work, double communication_s, double exposed_s, const DeviceRates& rates);

// No step is shorter than what is kept in the host's memory takes to get there and back: `bytes` in all.
void add_host_traffic(Estimate& estimate, double bytes, const DeviceRates& rates);

}  // namespace flambeau::plan
