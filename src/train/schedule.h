// Learning rates over a run: warm-up, stable, decay.
#pragma once

#include <cstdint>
#include <optional>

namespace flambeau::train {

enum class DecayType { Linear, Sqrt, Cosine };

struct ScheduleOptions {
  int64_t warmup_steps = 200;
  int64_t total_steps = 10000;
  std::optional<double> decay_ratio = {};  // none: decay begins where the warm-up ends
  DecayType decay_type = DecayType::Linear;
  double min_lr_factor = 0;
};

// With W steps of warm-up, D of decay and T in total, the factor on the learning rate at index s (step - 1):
//   (s + 1) / W                       while s < W
//   1                                 for the next S = T + 1 - W - D steps
//   m + (1 - m) f(p), p = (s + 1 - W - S) / D     after, f being 1 - p, 1 - sqrt(p) or (1 + cos(pi p)) / 2
// The extra virtual step keeps the last real one above the floor m. A warm-up longer than T is cut to T.
class Schedule {
 public:
  explicit Schedule(ScheduleOptions options);
  double factor(int64_t index) const;
  int64_t warmup() const { return warmup_; }
  int64_t stable() const { return stable_; }
  int64_t decay() const { return decay_; }

 private:
  ScheduleOptions options_;
  int64_t warmup_, stable_, decay_;
};

}  // namespace flambeau::train
