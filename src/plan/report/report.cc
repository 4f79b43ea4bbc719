#include "plan/report/report.h"

#include <fmt/format.h>

namespace flambeau::plan {
namespace {

double utilization(const Report& report, double flops) {
  const double possible = report.estimate.step_s * report.peak_flops;
  return possible > 0 ? flops / possible : 0;
}

}  // namespace

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::Parameters: return "parameters";
    case MemoryKind::Gradients: return "gradients";
    case MemoryKind::OptimizerStates: return "optimizer states";
    case MemoryKind::Batch: return "batch";
    case MemoryKind::SavedActivations: return "saved activations";
    case MemoryKind::Temporaries: return "temporaries";
    case MemoryKind::Collectives: return "collective buffers";
    case MemoryKind::Padding: return "padding";
  }
  return "";
}

std::string describe(const Keys& keys) {
  std::string text;
  for (const auto& [name, value] : keys) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", name, value);
  return text;
}

double Report::tokens_per_second_per_chip() const {
  if (estimate.step_s <= 0 || chips <= 0) return 0;
  return static_cast<double>(tokens_per_step) / estimate.step_s / static_cast<double>(chips);
}

double Report::mfu() const { return utilization(*this, model_flops); }
double Report::mfu_causal() const { return utilization(*this, model_flops_causal); }

double Report::days() const {
  if (tokens_per_step <= 0) return 0;
  return training_tokens / static_cast<double>(tokens_per_step) * estimate.step_s / 86400;
}

double Report::price() const { return days() * 24 * static_cast<double>(chips) * price_per_chip_hour.value_or(0); }

}  // namespace flambeau::plan
