#include "plan/time/estimate.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::plan {
namespace {

void check(const DeviceRates& rates) {
  if (!(rates.flops > 0) || !(rates.hbm_bytes > 0))
    raise<InvalidArgument>("[plan.estimate] expected a device that multiplies and has memory, got {} FLOP/s and {} bytes/s",
                           rates.flops, rates.hbm_bytes);
}

// ": 100 GB/s along shard, 50 GB/s along tensor"
std::string speeds_of_axes(const DeviceRates& rates) {
  std::string text;
  for (size_t i = 0; i < rates.ici_axes.size(); ++i)
    text += fmt::format("{}{:.0f} GB/s along {}", i == 0 ? ": " : ", ", rates.ici_bytes_over.at(size_t{1} << i) / 1e9, rates.ici_axes[i]);
  return text;
}

std::vector<std::string> assumptions_on(const DeviceRates& rates) {
  std::vector<std::string> sentences = {
      "Every time is an estimate: none was measured on a TPU.",
      fmt::format("Matrix products run at the published peak of a device, {:.0f} TFLOP/s; real programs reach less.",
                  rates.flops / 1e12),
      fmt::format("Memory is read and written at the published {:.0f} GB/s; what stays on the chip costs nothing.",
                  rates.hbm_bytes / 1e9),
      fmt::format("A collective sends over the links of the dimensions of the torus that its axes lie along, {:.0f} GB/s where these are "
                  "all{}; nothing else shares them, and starting it takes no time.",
                  rates.ici_bytes / 1e9, speeds_of_axes(rates))};
  if (!rates.dcn_axes.empty()) {
    sentences.push_back(fmt::format("Over {} what is sent crosses the data-centre network at {:.1f} GB/s a device.",
                                    fmt::join(rates.dcn_axes, ", "), rates.dcn_bytes / 1e9));
  }
  return sentences;
}

// Nothing is faster than its products or its memory traffic allow.
void bound(Estimate& estimate) { estimate.step_s = std::max({estimate.step_s, estimate.compute_s, estimate.hbm_s}); }

}  // namespace

Work work_of(const compiled::Analysis& analysis) {
  Work work{.flops = analysis.flops(), .hbm_bytes = analysis.hbm_bytes()};
  for (const auto& c : analysis.collectives) work.collective_bytes += static_cast<double>(c.bytes()) * analysis.runs(c.loop);
  return work;
}

Estimate estimate(const compiled::Analysis& analysis, const Timeline& timeline, const DeviceRates& rates) {
  check(rates);
  Estimate estimate{.compute_s = analysis.flops() / rates.flops,
                    .hbm_s = analysis.hbm_bytes() / rates.hbm_bytes,
                    .step_s = timeline.step_s,
                    .assumptions = assumptions_on(rates)};
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const double runs = analysis.runs(analysis.collectives[i].loop);
    estimate.communication_s += timeline.collectives[i].seconds * runs;
    estimate.exposed_s += timeline.collectives[i].exposed * runs;
  }
  bound(estimate);
  estimate.assumptions.insert(
      estimate.assumptions.end(),
      {"Operations follow each other as the compiler scheduled them, each as long as its products or its memory traffic take, "
       "whichever is longer; element-wise arithmetic is hidden.",
       "Copies onto the chip that the compiler starts ahead hide behind products that leave memory idle.",
       "A collective hides behind what the schedule runs between its start and its end; collectives queue for the links."});
  if (!analysis.exact()) {
    estimate.assumptions.push_back("The program has loops whose trip count is not known; they are counted once.");
  }
  return estimate;
}

Estimate estimate(const Work& work, double communication_s, double exposed_s, const DeviceRates& rates) {
  check(rates);
  Estimate estimate{.compute_s = work.flops / rates.flops,
                    .hbm_s = work.hbm_bytes / rates.hbm_bytes,
                    .communication_s = communication_s,
                    .exposed_s = exposed_s,
                    .assumptions = assumptions_on(rates)};
  estimate.step_s = std::max(estimate.compute_s, estimate.hbm_s) + exposed_s;
  estimate.assumptions.push_back(
      "Products and memory traffic of the step run beside each other; collectives that are not hidden come on top.");
  return estimate;
}

void add_host_traffic(Estimate& estimate, double bytes, const DeviceRates& rates) {
  if (!(rates.host_bytes > 0))
    raise<InvalidArgument>("[plan.estimate] expected a positive rate to the host's memory, got {} bytes/s", rates.host_bytes);
  estimate.host_s = bytes / rates.host_bytes;
  estimate.step_s = std::max(estimate.step_s, estimate.host_s);
  estimate.assumptions.push_back(fmt::format(
      "What is kept in the host's memory goes there and back at {:.0f} GB/s a device; all else hides it as far as that takes.",
      rates.host_bytes / 1e9));
}

}  // namespace flambeau::plan
