#include "plan/report/facts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "plan/report/format.h"

namespace flambeau::plan {
namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

double or_zero(double value) { return is_known(value) ? value : 0; }

std::string mesh_text(const Report& report) {
  std::string text;
  for (const auto& [axis, degree] : report.mesh)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis, format_count(as_double(degree)));
  if (text.empty()) text = "none";
  return fmt::format("{} ({})", text, count_of(report.devices, "device", "devices"));
}

std::string tokens_text(const Report& report) {
  std::string text = count_of(report.tokens_per_step, "token", "tokens");
  if (report.sequences_per_device > 0) {
    text += fmt::format(": {} of {} a device", count_of(report.sequences_per_device, "sequence", "sequences"),
                        format_count(as_double(report.context)));
  } else {
    text += fmt::format(" in sequences of {}", format_count(as_double(report.context)));
  }
  if (report.accumulation > 1) text += fmt::format(", {} microbatches", format_count(as_double(report.accumulation)));
  return text;
}

}  // namespace

bool is_known(double value) { return std::isfinite(value) && value > 0; }

std::string verdict_word(const Report& report) {
  if (report.memory.limit <= 0) return "limit not known";
  return report.memory.fits() ? "fits" : "does not fit";
}

std::string verdict_memory(const Report& report) {
  const double total = as_double(report.memory.total), limit = as_double(report.memory.limit);
  if (limit <= 0) return format_bytes(total) + " HBM";
  const Unit unit = byte_unit(std::max(total, limit));
  return fmt::format("{} of {} {} HBM ({})", in_unit(total, unit), in_unit(limit, unit), unit.name,
                     format_percent(total / limit));
}

std::string step_text(const Report& report) {
  return is_known(report.estimate.step_s) ? format_seconds(report.estimate.step_s) : "unknown";
}

std::string mfu_text(const Report& report) {
  const bool known = is_known(report.estimate.step_s) && is_known(report.peak_flops);
  return known ? fmt::format("{} (causal {})", format_percent(report.mfu()), format_percent(report.mfu_causal())) : "unknown";
}

std::string rate_text(const Report& report) {
  return is_known(report.estimate.step_s) && report.chips > 0 ? format_count(report.tokens_per_second_per_chip())
                                                              : "unknown";
}

std::vector<std::pair<std::string, std::string>> planned_rows(const Report& report) {
  std::string pod = report.pod;
  if (!report.device_kind.empty()) pod += ", " + report.device_kind;
  if (report.slices > 1) pod += ", " + count_of(report.slices, "slice", "slices");
  std::vector<std::pair<std::string, std::string>> rows = {
      {"config", report.config},
      {"model", fmt::format("{}, {} parameters", report.model, format_count(as_double(report.parameters)))},
      {"pod", pod},
      {"mesh", mesh_text(report)},
      {"step", tokens_text(report)},
      {"checkpointing", report.activation_checkpoint},
      {"attention", report.attention},
      {"source", report.source}};
  if (is_known(report.planned_s)) rows.back().second += "; planned in " + format_seconds(report.planned_s);
  std::erase_if(rows, [](const auto& row) { return row.second.empty(); });
  return rows;
}

double memory_scale(const Memory& memory) { return as_double(std::max<int64_t>({memory.limit, memory.total, 1})); }

std::pair<double, int64_t> peak_of(const Memory& memory) {
  std::pair<double, int64_t> peak{0, 0};
  for (const auto& sample : memory.over_step) {
    if (sample.second > peak.second) peak = sample;
  }
  peak.first = std::isfinite(peak.first) ? std::clamp(peak.first, 0.0, 1.0) : 0;
  return peak;
}

std::vector<double> resampled(std::span<const std::pair<double, int64_t>> over_step, size_t count) {
  if (over_step.empty() || count == 0) return {};
  std::vector<double> most(count, -1);
  std::vector<double> last(count, -1);  // in use when a part ends
  for (const auto& [at, bytes] : over_step) {
    if (!std::isfinite(at)) continue;
    const auto part =
        std::min(count - 1, static_cast<size_t>(std::clamp(at, 0.0, 1.0) * as_double(static_cast<int64_t>(count))));
    most[part] = std::max(most[part], as_double(bytes));
    last[part] = as_double(bytes);
  }
  // What is in use stays so until the next sample.
  double held = as_double(over_step.front().second);
  for (size_t part = 0; part < count; ++part) {
    if (most[part] < 0) most[part] = held;
    else held = last[part];
  }
  return most;
}

std::vector<CollectiveGroup> largest_first(std::vector<CollectiveGroup> groups) {
  // Not numbers go last: with them, `>` alone is no order.
  std::ranges::stable_sort(groups, std::ranges::greater{}, [](const CollectiveGroup& g) { return or_zero(g.bytes); });
  return groups;
}

CollectiveGroup sum_of(std::span<const CollectiveGroup> groups) {
  CollectiveGroup sum;
  for (const CollectiveGroup& group : groups) {
    sum.count += group.count;
    sum.bytes += group.bytes;
    sum.overlapped += group.overlapped;
  }
  return sum;
}

std::string axes_text(const CollectiveGroup& group) {
  return group.group_size > 0 ? fmt::format("{} ({})", group.axes, format_count(as_double(group.group_size))) : group.axes;
}

double overlapped_part(const CollectiveGroup& group) {
  return is_known(group.bytes) ? std::clamp(or_zero(group.overlapped) / group.bytes, 0.0, 1.0) : 0;
}

StepParts step_parts(const Report& report) {
  const Estimate& estimate = report.estimate;
  StepParts parts{.compute = or_zero(estimate.compute_s),
                  .exposed = or_zero(estimate.exposed_s),
                  .hbm_bound = or_zero(estimate.hbm_s),
                  .link_bound = or_zero(estimate.communication_s),
                  .host_bound = or_zero(estimate.host_s)};
  parts.memory = std::max(0.0, or_zero(estimate.step_s) - parts.compute - parts.exposed);
  if (is_known(report.peak_flops)) parts.flops_bound = or_zero(report.work.flops / report.peak_flops);
  return parts;
}

std::vector<Cost> costs_of(const Report& report) {
  std::vector<Cost> costs;
  if (report.training_tokens > 0) {
    costs.push_back({fmt::format("{} tokens", format_scaled(report.training_tokens, "")),
                     is_known(report.days()) ? format_days(report.days()) : "unknown", ""});
  }
  if (!report.price_per_chip_hour) return costs;
  const double hourly = *report.price_per_chip_hour;
  const std::string basis =
      fmt::format("{} at {} an hour each", count_of(report.chips, "chip", "chips"), format_price(hourly));
  if (report.training_tokens > 0) {
    costs.push_back({"price", is_known(report.days()) ? format_price(report.price()) : "unknown", basis});
  } else {
    const double rate = report.tokens_per_second_per_chip();
    costs.push_back(
        {"price of a billion tokens", is_known(rate) ? format_price(1e9 / rate / 3600 * hourly) : "unknown", basis});
  }
  return costs;
}

bool was_compiled(const Report& report) { return !report.source.starts_with("analytic"); }

std::string changes_title(const Report& report) {
  return fmt::format("{}, each {}", report.memory.fits() ? "Other configurations" : "What would make it smaller",
                     was_compiled(report) ? "compiled" : "computed by the analytic mode");
}

std::vector<std::string> warnings_of(const Report& report) {
  std::vector<std::string> warnings = report.warnings;
  if (!report.exact) {
    warnings.emplace_back(
        "the program has loops whose trip count is not known; their content counts as run once, so FLOPs, "
        "traffic, collectives and times are lower bounds");
  }
  return warnings;
}

}  // namespace flambeau::plan
