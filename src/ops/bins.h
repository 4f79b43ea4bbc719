// Contiguous ranges along a dimension, each with a result of its own: adaptive pooling, and gradients of what repeats elements.
#pragma once

#include "ops/tensor_util.h"

namespace flambeau::ops {

// Half-open ranges of a dimension; begins and ends do not decrease.
struct Bins {
  Dims begin, end;
  int64_t count() const { return static_cast<int64_t>(begin.size()); }
  Dims lengths() const;
};

// `out` ranges that cover `in` elements; neighbours share an element where `out` does not divide.
Bins adaptive_bins(int64_t in, int64_t out);

// For each of `in` elements the bins that hold it.
Bins holders(const Bins& bins, int64_t in);

// For each of `count` numbers where it stands in `sorted`.
Bins places_of(const Dims& sorted, int64_t count);

// Dimension `dim` of x as [bins, longest bin]; `fill` where a bin is shorter.
Value in_bins(Builder& b, Value x, int64_t dim, const Bins& bins, Value fill);

// The sum of each bin of dimension `dim`.
Value bin_sums(Builder& b, Value x, int64_t dim, const Bins& bins);

}  // namespace flambeau::ops
