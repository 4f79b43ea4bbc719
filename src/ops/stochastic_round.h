// Rounding to bfloat16 that is right in the mean: up or down at random, each with the probability that the distance gives. A sum
// that grows by less than half of a bfloat16's last place would stay where it is under rounding to nearest.
#pragma once

#include "ops/op.h"

namespace flambeau::ops {

// (tensor float32, step int64 [], keys int64 [n], int draw) -> bfloat16 of the same shape. `keys` has one key for the whole tensor, or one
// for each row of dimension 0. The noise of an element depends on (its key, its index within what the key is for, step, draw) alone, not
// on how the tensor is stacked or split over a mesh: Philox under the key, with (index, step) as the counter, and `draw`, 0 to 3, the word.
// Values that are no finite number are rounded to nearest.
extern const Row kStochasticRound;

}  // namespace flambeau::ops
