// Memory in use while the analytic mode walks through a program (analytic.h), and what it was made of when most was.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "hlo/graph.h"
#include "plan/report/report.h"

namespace flambeau::plan {

std::string type_name(DType dtype);                            // as XLA spells it: "bf16", "s32", "pred"
std::string shape_text(DType dtype, const hlo::Dims& dims);    // "f32[6,32]"
// As an array lies in memory: two of its dimensions, the ones that the compiler loses least by, fill tiles of 8 x 128
// elements; one dimension alone fills a tile of up to 1024.
double tiled_bytes(DType dtype, const hlo::Dims& dims);

struct Held {
  uint32_t id = 0;  // of the value that it holds
  double bytes = 0;
  std::string name, shape;
  MemoryKind kind = MemoryKind::Temporaries;
};

class MemoryUse {
 public:
  void hold(Held held);
  void release(uint32_t id);  // nothing where it is not held
  void hand_over(uint32_t id, uint32_t to);
  bool holds(uint32_t id) const { return held_.contains(id); }
  const std::map<uint32_t, Held>& held() const { return held_; }
  void end_step();  // an operation of the program has run

  // Without a limit. The last call.
  Memory take();

 private:
  void remember_peak();

  std::map<uint32_t, Held> held_;
  std::vector<Held> at_peak_;
  bool is_at_peak_ = false;  // and at_peak_ does not say so yet
  double in_use_ = 0, peak_ = 0, most_in_step_ = 0;
  std::vector<int64_t> steps_;  // the most in use in each
};

}  // namespace flambeau::plan
