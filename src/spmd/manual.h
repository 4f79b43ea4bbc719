// Code that is written for each device's own parts of global tensors, with hand-placed collectives, and its gradient.
//
// A manual computation is over some axes of the mesh: its body sees tensors split by these, and the partitioner splits what is left by
// the other axes. One may stand inside another, over axes that are left there. Every custom call, and every pattern that the partitioner
// gets wrong, lives inside of one over all axes. Works within a captured step on a mesh.
//
// In a computation over some axes, XLA's partitioner ends the process when an indexed dimension of a gather is split by another axis:
// keep that dimension whole with shard_hint, or look it up in a manual computation over the other axes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "hlo/graph.h"
#include "spmd/sharding_rules.h"

namespace flambeau::spmd {

using ManualBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& local)>;

// Runs `body` on every device with the local parts of `inputs`: `in` says which of `axes` split which dimension of each; `out`
// says the same of its results, which must be equal on devices that differ along those of `axes` that are not named there. The body
// uses no tensor but its inputs, and draws no random numbers. Gradients pass to the inputs. `axes`: all that are left unless given.
std::vector<at::Tensor> manual(const std::vector<at::Tensor>& inputs, const std::vector<hlo::Sharding>& in,
                               const std::vector<hlo::Sharding>& out, const ManualBody& body, std::optional<MeshAxes> axes = {});

// Collectives inside of a manual body, over axes that it or one around it is over. All but the largest value have gradients.
at::Tensor all_reduce_sum(const at::Tensor& x, const MeshAxes& axes);
at::Tensor all_reduce_max(const at::Tensor& x, const MeshAxes& axes);
at::Tensor all_gather(const at::Tensor& x, const MeshAxes& axes, int64_t dim);      // parts one after another along `dim`
at::Tensor reduce_scatter(const at::Tensor& x, const MeshAxes& axes, int64_t dim);  // this device's part of the sum
// Each device sends part i along `split_dim` to device i of its group, and puts what it gets one after another along `concat_dim`.
at::Tensor all_to_all(const at::Tensor& x, const MeshAxes& axes, int64_t split_dim, int64_t concat_dim);
// Device `source` of a group sends x to device `target`, for each pair (source, target); a device that gets nothing has zeros. No device
// is a source or a target twice.
using DevicePairs = std::vector<std::pair<int64_t, int64_t>>;
at::Tensor collective_permute(const at::Tensor& x, const MeshAxes& axes, const DevicePairs& pairs);
// Each device of a group sends to the one `shift` places on, the last ones to the first.
DevicePairs ring(const MeshAxes& axes, int64_t shift = 1);

// Whether a manual computation can be recorded here: a step is being captured, on a mesh of which axes are left.
bool can_be_manual();
// The axes that split any dimension.
MeshAxes axes_used(const hlo::Sharding& sharding);
// An input whose local part says where a device stands: 0, 1, ... [parts of the axes] int64; split it by `sharding_of_positions`.
at::Tensor positions(const MeshAxes& axes);
hlo::Sharding sharding_of_positions(const MeshAxes& axes);

}  // namespace flambeau::spmd
