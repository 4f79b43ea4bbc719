// Weights within the autograd functions of this folder.
//
// The functions take a weight twice: its value, which autograd follows, and the Weight, for its axes. What they keep for the
// backward pass is the weight as it was used; whether that is kept or recomputed is the checkpoint policy's choice (device/scan.h).
#pragma once

#include <cstddef>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "spmd/sharding.h"

namespace flambeau::nn {

// `value` as `dtype`, gathered.
inline at::Tensor used_weight(torch::autograd::AutogradContext* ctx, const at::Tensor& value, const spmd::Axes& axes, at::ScalarType dtype) {
  ctx->saved_data["axes"] = axes;
  return spmd::gather_weight(value.to(dtype), axes);
}

// The gradient of a weight, laid out as the weight is stored.
inline at::Tensor as_stored(torch::autograd::AutogradContext* ctx, const at::Tensor& gradient) {
  return spmd::shard_hint(gradient, ctx->saved_data["axes"].to<spmd::Axes>());
}

// The same of what `gradient()` computes for the function's input of that number; undefined where that is frozen.
template <class Gradient>
at::Tensor weight_gradient(torch::autograd::AutogradContext* ctx, size_t input, Gradient&& gradient) {
  return ctx->needs_input_grad(input) ? as_stored(ctx, gradient()) : at::Tensor();
}

}  // namespace flambeau::nn
