// Sorting and selecting by rank. NaN counts as the greatest value, as in PyTorch.
#include <limits>

#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using Pair = std::array<Value, 2>;  // values, indices

// x comes before y. Rank 0 or any other shape.
Value precedes(Builder& b, Value x, Value y, bool descending) {
  Value plain = b.compare(x, y, descending ? Comparison::GT : Comparison::LT);
  if (!is_float(x.dtype())) return plain;
  Value x_nan = is_nan(b, x), y_nan = is_nan(b, y);
  Value by_nan = descending ? b.logical_and(x_nan, b.logical_not(y_nan)) : b.logical_and(b.logical_not(x_nan), y_nan);
  return b.logical_or(plain, by_nan);
}

void refuse_complex(std::string_view op, Value x) {
  if (is_complex(x.dtype())) raise<InvalidArgument>("{}(): does not support complex inputs", op);
}

// Values with S32 indices; always stable, which costs XLA nothing.
Pair sorted(Builder& b, Value x, int64_t dim, bool descending) {
  Value index = b.iota({DType::S32, x.dims()}, dim);
  auto out = b.sort(std::array{x, index}, dim, true, [&](Builder& in, std::span<const Value> v) {
    return std::vector<Value>{precedes(in, v[0], v[1], descending)};
  });
  return {out[0], out[1]};
}

// A rank-0 tensor is its own order.
Pair single(Builder& b, Value self) { return {self, b.constant(DType::S64, 0)}; }

Pair sort_stable(Builder& b, Value self, std::optional<bool>, int64_t dim, bool descending) {
  refuse_complex("sort", self);
  dim = wrap_dim(dim, self.rank());
  if (self.rank() == 0) return single(b, self);
  auto [values, index] = sorted(b, self, dim, descending);
  return {values, b.convert(index, DType::S64)};
}

Pair sort(Builder& b, Value self, int64_t dim, bool descending) { return sort_stable(b, self, true, dim, descending); }

// ---- the k greatest
// --------------------------------------------------------------------------------------------------------------

constexpr int64_t kFewRounds = 8;

// The first in order of (value, index), over `dim`.
Pair first_of(Builder& b, Value x, Value index, int64_t dim, bool largest) {
  // What every element precedes: the index lies behind the last.
  Value worst = largest               ? b.lowest(x.dtype())
                : is_float(x.dtype()) ? b.constant(x.dtype(), std::numeric_limits<double>::quiet_NaN())
                                      : b.highest(x.dtype());
  Value behind = b.constant(DType::S32, x.dim(dim));
  auto out = b.reduce(std::array{x, index}, std::array{worst, behind}, {dim}, [&](Builder& in, std::span<const Value> v) {
    Value before = precedes(in, v[0], v[2], largest), after = precedes(in, v[2], v[0], largest);
    Value tie = in.logical_not(in.logical_or(before, after));
    Value keep = in.logical_or(before, in.logical_and(tie, in.compare(v[1], v[3], Comparison::LT)));
    return std::vector<Value>{in.select(keep, v[0], v[2]), in.select(keep, v[1], v[3])};
  });
  return {out[0], out[1]};
}

// k rounds, each of which takes the first of what comes after the last one taken. For the few experts of a token this is far
// cheaper than sorting all of them.
Pair select_few(Builder& b, Value x, int64_t k, int64_t dim, bool largest) {
  Dims column = replaced(x.dims(), dim, 1);
  Value index = b.iota({DType::S32, x.dims()}, dim);
  Value behind = b.broadcast(b.constant(DType::S32, x.dim(dim)), x.dims());
  Value candidate = index;  // `behind` where taken
  std::vector<Value> values, indices;
  for (int64_t round = 0; round < k; ++round) {
    Value worst = largest               ? b.lowest(x.dtype(), x.dims())
                  : is_float(x.dtype()) ? constant_like(b, x, std::numeric_limits<double>::quiet_NaN())
                                        : b.highest(x.dtype(), x.dims());
    Value left = round == 0 ? x : b.select(b.compare(candidate, behind, Comparison::EQ), worst, x);
    auto [value, at] = first_of(b, left, candidate, dim, largest);
    values.push_back(b.reshape(value, column));
    indices.push_back(b.reshape(at, column));
    candidate = b.select(b.compare(index, spread(b, at, x.dims(), {dim}), Comparison::EQ), behind, candidate);
  }
  if (k == 1) return {values[0], indices[0]};
  return {b.concatenate(values, dim), b.concatenate(indices, dim)};
}

Pair topk(Builder& b, Value self, int64_t k, int64_t dim, bool largest, bool) {
  refuse_complex("topk", self);
  if (self.dtype() == DType::Pred) raise<NotImplemented>("topk does not support bool dtypes");
  dim = wrap_dim(dim, self.rank());
  if (k < 0 || k > (self.rank() > 0 ? self.dim(dim) : 1)) raise<InvalidArgument>("selected index k out of range");
  if (self.rank() == 0) {
    if (k == 1) return single(b, self);
    return {zeros(b, self.dtype(), {0}), zeros(b, DType::S64, {0})};
  }
  if (k == 0) {
    Dims none = replaced(self.dims(), dim, 0);
    return {zeros(b, self.dtype(), none), zeros(b, DType::S64, none)};
  }
  auto [values, index] =
      k <= kFewRounds && k < self.dim(dim) ? select_few(b, self, k, dim, largest) : sorted(b, self, dim, largest);
  return {b.slice_dim(values, dim, 0, k), b.convert(b.slice_dim(index, dim, 0, k), DType::S64)};
}

// ---- one element by rank
// ------------------------------------------------------------------------------------------------------------

Pair at_rank(Builder& b, Value self, int64_t position, int64_t dim, bool keepdim) {
  auto [values, index] = sorted(b, self, dim, false);
  Dims dims = keepdim ? replaced(self.dims(), dim, 1) : erased(self.dims(), dim);
  auto pick = [&](Value v) { return b.reshape(b.slice_dim(v, dim, position, position + 1), dims); };
  return {pick(values), b.convert(pick(index), DType::S64)};
}

Pair kthvalue(Builder& b, Value self, int64_t k, int64_t dim, bool keepdim) {
  refuse_complex("kthvalue", self);
  dim = wrap_dim(dim, self.rank());
  if (k < 1 || k > (self.rank() > 0 ? self.dim(dim) : 1))
    raise<InvalidArgument>("kthvalue(): selected number k out of range for dimension {}", dim);
  return self.rank() == 0 ? single(b, self) : at_rank(b, self, k - 1, dim, keepdim);
}

// The lower of two middle elements; a NaN where there is one (it sorts last, so the greatest tells).
Pair median_dim(Builder& b, Value self, int64_t dim, bool keepdim) {
  refuse_complex("median", self);
  dim = wrap_dim(dim, self.rank());
  if (self.rank() == 0) return single(b, self);
  int64_t n = self.dim(dim);
  if (n == 0) raise<OutOfRange>("median(): Expected reduction dim {} to have non-zero size.", dim);
  auto [middle, middle_at] = at_rank(b, self, (n - 1) / 2, dim, keepdim);
  if (!is_float(self.dtype())) return {middle, middle_at};
  // Among NaNs PyTorch answers the first: in a stable ascending order that one follows all numbers.
  Value nan = is_nan(b, self);
  Value index = b.iota({DType::S64, self.dims()}, dim);
  Value first =
      b.reduce(b.select(nan, index, b.broadcast(b.constant(DType::S64, n), self.dims())), {dim}, hlo::Reduction::Min);
  first = b.reshape(first, middle_at.dims());
  Value any = b.compare(first, b.broadcast(b.constant(DType::S64, n), first.dims()), Comparison::LT);
  return {b.select(any, constant_like(b, middle, std::numeric_limits<double>::quiet_NaN()), middle),
          b.select(any, first, middle_at)};
}

Value median(Builder& b, Value self) {
  int64_t n = self.elements();
  if (n == 0) {
    if (!is_float(self.dtype())) raise<NotImplemented>("[median] the median of no integers is unspecified");
    return b.constant(self.dtype(), std::numeric_limits<double>::quiet_NaN());
  }
  return median_dim(b, b.reshape(self, {n}), 0, false)[0];
}

constexpr Row kRows[] = {
    row("aten::sort", lower<&sort>()),     row("aten::sort.stable", lower<&sort_stable>()),
    row("aten::topk", lower<&topk>()),     row("aten::kthvalue", lower<&kthvalue>()),
    row("aten::median", lower<&median>()), row("aten::median.dim", lower<&median_dim>()),
};

}  // namespace

std::span<const Row> sorting_rows() { return kRows; }

}  // namespace flambeau::ops
