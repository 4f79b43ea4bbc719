// What the text and the page derive from a report, so that both say the same. Internal to src/plan.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/report/report.h"

namespace flambeau::plan {

// A finite number above 0: what a time, a rate or a size must be for figures to be made of it.
bool is_known(double value);

// "fits", "does not fit", "limit not known".
std::string verdict_word(const Report& report);
// "13.21 of 15.75 GiB HBM (83.9%)".
std::string verdict_memory(const Report& report);
// The step's time, MFU, tokens per second and chip: "unknown" without an estimated step or a known peak.
std::string step_text(const Report& report);
std::string mfu_text(const Report& report);
std::string rate_text(const Report& report);

// Names and values: what was planned, on what, and how it was found out.
std::vector<std::pair<std::string, std::string>> planned_rows(const Report& report);

// Against what bytes of memory are drawn: the limit, or the total where it is more or no limit is known; at least 1.
double memory_scale(const Memory& memory);
// When most is in use, 0..1; and how much.
std::pair<double, int64_t> peak_of(const Memory& memory);
// The most in use within each of `count` equal parts of the schedule. Empty without samples.
std::vector<double> resampled(std::span<const std::pair<double, int64_t>> over_step, size_t count);

// The largest first; and their sum, with empty names.
std::vector<CollectiveGroup> largest_first(std::vector<CollectiveGroup> groups);
CollectiveGroup sum_of(std::span<const CollectiveGroup> groups);
std::string axes_text(const CollectiveGroup& group);   // "shard (16)"
double overlapped_part(const CollectiveGroup& group);  // 0..1

// The estimated step, cut into what stacks up to it; and what it cannot be shorter than. Seconds; 0 where not known.
struct StepParts {
  double compute = 0;  // matrix products
  double memory = 0;   // the rest: memory traffic that nothing hides
  double exposed = 0;  // communication that nothing hides
  double flops_bound = 0, hbm_bound = 0, link_bound = 0, host_bound = 0;
};
StepParts step_parts(const Report& report);

// "price", "1,234", and what it is of.
struct Cost {
  std::string title, figure, basis;
};
// The training's days; a price where one was asked for: of the whole training, or else of a billion tokens.
std::vector<Cost> costs_of(const Report& report);

bool was_compiled(const Report& report);  // else it was computed by the analytic mode
std::string changes_title(const Report& report);
// The report's own, and one where figures are lower bounds only.
std::vector<std::string> warnings_of(const Report& report);

}  // namespace flambeau::plan
