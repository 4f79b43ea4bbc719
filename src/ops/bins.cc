#include "ops/bins.h"

#include <algorithm>

namespace flambeau::ops {

Dims Bins::lengths() const {
  Dims n;
  for (size_t i = 0; i < begin.size(); ++i) n.push_back(end[i] - begin[i]);
  return n;
}

Bins adaptive_bins(int64_t in, int64_t out) {
  Bins bins;
  for (int64_t o = 0; o < out; ++o) {
    bins.begin.push_back(o * in / out);
    bins.end.push_back(((o + 1) * in + out - 1) / out);
  }
  return bins;
}

Bins holders(const Bins& bins, int64_t in) {
  Bins out;
  for (int64_t j = 0; j < in; ++j) {
    out.begin.push_back(std::upper_bound(bins.end.begin(), bins.end.end(), j) - bins.end.begin());
    out.end.push_back(std::upper_bound(bins.begin.begin(), bins.begin.end(), j) - bins.begin.begin());
  }
  return out;
}

Bins places_of(const Dims& sorted, int64_t count) {
  Bins out;
  for (int64_t j = 0; j < count; ++j) {
    auto [begin, end] = std::equal_range(sorted.begin(), sorted.end(), j);
    out.begin.push_back(begin - sorted.begin());
    out.end.push_back(end - sorted.begin());
  }
  return out;
}

Value in_bins(Builder& b, Value x, int64_t dim, const Bins& bins, Value fill) {
  const Dims lengths = bins.lengths();
  const int64_t longest = std::max<int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  Dims indices, inside;
  for (size_t i = 0; i < lengths.size(); ++i)
    for (int64_t k = 0; k < longest; ++k) {
      indices.push_back(std::min(bins.begin[i] + k, x.dim(dim) - 1));
      inside.push_back(k < lengths[i]);
    }
  Dims split = replaced(x.dims(), dim, bins.count());
  split.insert(split.begin() + dim + 1, longest);
  if (indices == range(x.dim(dim))) return b.reshape(x, split);
  Value taken = b.reshape(take_rows(b, x, dim, b.index_vector(indices)), split);
  Value mask = compare_with(b, b.reshape(b.index_vector(inside), {bins.count(), longest}), 0, hlo::Comparison::NE);
  return b.select(b.broadcast_in_dim(mask, split, {dim, dim + 1}), taken, b.broadcast(fill, split));
}

Value bin_sums(Builder& b, Value x, int64_t dim, const Bins& bins) {
  return sum(b, in_bins(b, x, dim, bins, b.constant(x.dtype(), 0)), {dim + 1});
}

}  // namespace flambeau::ops
