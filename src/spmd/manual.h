// Code that is written for each device's own parts of global tensors, with hand-placed collectives, and its gradient.
//
// Every custom call, and every pattern that the partitioner gets wrong, lives inside of one: elsewhere the partitioner decides what
// moves. Works within a captured step on a mesh.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "hlo/graph.h"

namespace flambeau::spmd {

using ManualBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& local)>;

// Runs `body` on every device with the local parts of `inputs`: `in` says which axes of the mesh split which dimension of each; `out`
// says the same of its results, which must be equal on devices that differ along axes not named there. The body sees all axes of
// the mesh split, uses no tensor but its inputs, and draws no random numbers. Gradients pass to the inputs.
std::vector<at::Tensor> manual(const std::vector<at::Tensor>& inputs, const std::vector<hlo::Sharding>& in,
                               const std::vector<hlo::Sharding>& out, const ManualBody& body);

// Collectives over axes of the mesh, inside of a manual body. Sums have gradients; the largest is without one.
using MeshAxes = std::vector<std::string>;
at::Tensor all_reduce_sum(const at::Tensor& x, const MeshAxes& axes);
at::Tensor all_reduce_max(const at::Tensor& x, const MeshAxes& axes);
at::Tensor all_gather(const at::Tensor& x, const MeshAxes& axes, int64_t dim);      // parts one after another along `dim`
at::Tensor reduce_scatter(const at::Tensor& x, const MeshAxes& axes, int64_t dim);  // this device's part of the sum
// Each device sends part i along `split_dim` to device i of its group, and puts what it gets one after another along `concat_dim`.
at::Tensor all_to_all(const at::Tensor& x, const MeshAxes& axes, int64_t split_dim, int64_t concat_dim);

// Whether a manual computation can be recorded here: there is a mesh, a step is being captured, and no manual body is open.
bool can_be_manual();
// Whether a manual body is being recorded: values are local then, and layout hints mean nothing.
bool inside_manual();
// The axes that split any dimension, and those that split none.
MeshAxes axes_used(const hlo::Sharding& sharding);
MeshAxes axes_left(const hlo::Sharding& sharding);
// An input whose local part says where a device stands: 0, 1, ... [parts of the axes] int64; split it by `sharding_of_positions`.
at::Tensor positions(const MeshAxes& axes);
hlo::Sharding sharding_of_positions(const MeshAxes& axes);

}  // namespace flambeau::spmd
