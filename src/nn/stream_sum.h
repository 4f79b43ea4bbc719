// Sums over devices of parts of the residual stream, inside of a manual computation (spmd/manual.h).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "spmd/manual.h"

namespace flambeau::nn {

// Adds up parts of [B, S, D] over axes of the mesh. Where sequence parallelism splits the stream by the same axes, the sum is
// scattered over the sequence; elsewhere every device has it whole.
class StreamSum {
 public:
  StreamSum(const std::vector<int64_t>& shape_BSD, spmd::MeshAxes axes);
  const hlo::Sharding& sharding() const { return sharding_; }  // of the sum
  at::Tensor operator()(const at::Tensor& part_bsD) const;

 private:
  spmd::MeshAxes axes_;
  hlo::Sharding sharding_;
  bool scatters_;
};

}  // namespace flambeau::nn
