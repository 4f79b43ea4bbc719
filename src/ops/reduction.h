// What reductions share: which dimensions go, and the shape that stays.
#pragma once

#include "ops/pointwise.h"

namespace flambeau::ops {

// The dimensions that `dims` names, in [0, rank); none named means all. Empty for rank 0: there is nothing to reduce.
Dims reduced_dims(const std::optional<Dims>& dims, int64_t rank);

// x reduced over `dims`; `keepdim` leaves them with size 1.
Value reduce_over(Builder& b, Value x, const Dims& dims, bool keepdim, hlo::Reduction kind);

// A result without the dimensions `reduced` of `dims`, or with size 1 there.
Value with_kept(Builder& b, Value reduced_value, const Dims& dims, const Dims& reduced, bool keepdim);

// x[0] + ... + x[i] along `dim`, in x's dtype.
Value running_sum(Builder& b, Value x, int64_t dim);

// How many elements of `dims` go into one result.
int64_t reduced_count(const Dims& dims, const Dims& reduced);

}  // namespace flambeau::ops
