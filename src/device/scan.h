// A scan over equal layers: one body, recorded once, run trip_count times in a loop of the captured program, with its gradient.
//
// Within a capture the body is recorded together with its gradient, and the joint graph is split into a forward and a backward loop
// (runtime/partition.h): compile time does not grow with the number of layers, and the policy says what of the forward pass is
// kept for the backward one (activation checkpointing). Outside of a capture, and on the CPU, it is a plain loop under autograd,
// with the same numbers up to rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/checkpoint_policy.h"

namespace flambeau::device {

// What the forward pass keeps for the backward one.
using runtime::CheckpointPolicy;

// What an iteration gives: the carry's next values, and outputs of its own. What a scan gives: the last carry, and each output of
// all iterations, [trip_count, ...].
struct ScanValues {
  std::vector<at::Tensor> carry;
  std::vector<at::Tensor> outputs = {};
};

// From (index [], carry, row `index` of each stacked tensor, constants). May draw random numbers and read tensors from outside that
// need no gradient; may not write to these, to the carry or to the rows.
using ScanBody = std::function<ScanValues(const at::Tensor& index, const std::vector<at::Tensor>& carry,
                                          const std::vector<at::Tensor>& rows, const std::vector<at::Tensor>& constants)>;

// `stacked`: [trip_count, ...] each. `constants`: the same in each iteration. Gradients pass to the carry, the stacked tensors and the
// constants, from the last carry and the outputs. The carry keeps its shapes and dtypes.
ScanValues scan(int64_t trip_count, const std::vector<at::Tensor>& carry, const std::vector<at::Tensor>& stacked,
                const std::vector<at::Tensor>& constants, const ScanBody& body, const CheckpointPolicy& policy);

}  // namespace flambeau::device
