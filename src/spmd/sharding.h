// How tensors lie on a mesh of devices: what model code says, and nothing more.
//
// Model code names the dimensions of its weights and activations by logical axes ("embed", "kv_heads", "batch", "sequence",
// "vocab"; "" is never split). The sharding rules (sharding_rules.h) say which axes of the mesh split a logical axis.
// Without rules everything here does nothing, and the same code runs on one device.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::spmd {

// One logical axis a dimension.
using Axes = std::vector<std::string>;

// `x`, which the partitioner is told to lay out by the rules; its gradient is laid out alike. An axis of the mesh that does not
// divide a dimension is left out: a batch of one row is on every device.
at::Tensor shard_hint(const at::Tensor& x, const Axes& axes);
// The same with another layout for the gradient, where it enters or leaves a part of the model that is split otherwise.
at::Tensor shard_hint(const at::Tensor& x, const Axes& axes, const Axes& gradient_axes);

// A weight as it is used: gathered over the data-parallel axes of the mesh that split it where it is stored (fully sharded data
// parallelism), still split over the others. Its gradient is reduced in the weight's dtype and split as the weight is stored.
at::Tensor gather_weight(const at::Tensor& weight, const Axes& axes);

}  // namespace flambeau::spmd
