#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/log.h"

namespace flambeau::train {

Schedule::Schedule(ScheduleOptions options) : options_(options) {
  const int64_t total = options.total_steps;
  warmup_ = std::min(options.warmup_steps, total);
  if (warmup_ < options.warmup_steps) {
    log_warning("lr_scheduler.warmup_steps {} is more than the {} steps of the run; warming up for {}", options.warmup_steps,
                total, warmup_);
  }
  decay_ = total - warmup_;
  if (options.decay_ratio) {
    decay_ = std::min(total - warmup_, static_cast<int64_t>(std::llround(static_cast<double>(total) * *options.decay_ratio)));
  }
  stable_ = total + 1 - warmup_ - decay_;
}

double Schedule::factor(int64_t s) const {
  if (s < warmup_) return static_cast<double>(s + 1) / static_cast<double>(warmup_);
  if (s < warmup_ + stable_ || decay_ == 0) return 1;
  const double p = std::min(1.0, static_cast<double>(s + 1 - warmup_ - stable_) / static_cast<double>(decay_));
  double f = 0;
  switch (options_.decay_type) {
    case DecayType::Linear: f = 1 - p; break;
    case DecayType::Sqrt: f = 1 - std::sqrt(p); break;
    case DecayType::Cosine: f = (1 + std::cos(std::numbers::pi * p)) / 2; break;
  }
  return options_.min_lr_factor + (1 - options_.min_lr_factor) * f;
}

}  // namespace flambeau::train
