// Writing by index, for the files that need it.
#pragma once

#include "ops/op.h"

namespace flambeau::ops {

// Builder::scatter, except that sums of float16 and bfloat16 are kept in float32 and rounded once.
Value scatter_into(Builder& b, Value x, Value indices, Value updates, const hlo::ScatterDims& dims,
                   std::optional<hlo::Reduction> combine);

// updates[.. i ..] combined into x[.. index[i] ..] along `dim`; `index` is a vector. An index out of range is dropped.
Value put_rows(Builder& b, Value x, int64_t dim, Value index, Value updates, std::optional<hlo::Reduction> combine);
inline Value add_rows(Builder& b, Value x, int64_t dim, Value index, Value updates) {
  return put_rows(b, x, dim, index, updates, hlo::Reduction::Sum);
}

// self[.., mask, ..] = values, or += values: the mask stands for the dimensions from `first` on. The k-th true place takes row k of
// `values`, so nothing depends on how many there are (masks.cc).
Value put_at_mask(Builder& b, Value self, Value mask, int64_t first, Value values, bool accumulate);

}  // namespace flambeau::ops
