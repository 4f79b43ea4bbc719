#include "nn/stream_sum.h"

#include <algorithm>

#include "spmd/sharding_rules.h"

namespace flambeau::nn {

StreamSum::StreamSum(const std::vector<int64_t>& shape_BSD, spmd::MeshAxes axes)
    : axes_(std::move(axes)), sharding_(spmd::sharding_rules()->sharding_where_it_divides({"batch", "sequence_block", ""}, shape_BSD)) {
  // Within the parts that other axes make of the sequence, these axes must be the ones that split it further.
  const spmd::MeshAxes& sequence = sharding_.dims[1].axes;
  scatters_ = !axes_.empty() && axes_.size() <= sequence.size() && std::equal(axes_.rbegin(), axes_.rend(), sequence.rbegin());
  if (!scatters_) sharding_ = spmd::sharding_rules()->sharding_where_it_divides({"batch", "sequence", ""}, shape_BSD);
}

at::Tensor StreamSum::operator()(const at::Tensor& part_bsD) const {
  return scatters_ ? spmd::reduce_scatter(part_bsD, axes_, 1) : spmd::all_reduce_sum(part_bsD, axes_);
}

}  // namespace flambeau::nn
