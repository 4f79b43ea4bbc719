#include "ops/tensor_util.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/ranges.h>


namespace flambeau::ops {

using hlo::Comparison;

Dims range(int64_t n) {
  Dims dims(static_cast<size_t>(n));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

int64_t element_count(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

Dims erased(Dims dims, int64_t dim) {
  dims.erase(dims.begin() + dim);
  return dims;
}

Dims replaced(Dims dims, int64_t dim, int64_t size) {
  dims[static_cast<size_t>(dim)] = size;
  return dims;
}

Dims others(int64_t rank, int64_t dim) { return erased(range(rank), dim); }

std::string shape_text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }
std::string matrix_text(const Dims& dims) { return fmt::format("{}", fmt::join(dims, "x")); }

Value spread(Builder& b, Value x, const Dims& dims, const Dims& reduced) {
  Dims kept;
  for (int64_t d = 0; d < static_cast<int64_t>(dims.size()); ++d)
    if (std::find(reduced.begin(), reduced.end(), d) == reduced.end()) kept.push_back(d);
  return b.broadcast_in_dim(x, dims, kept);
}

Value along(Builder& b, Value x, const Dims& dims, int64_t dim) { return b.broadcast_in_dim(x, dims, {dim}); }

Value zeros(Builder& b, DType dtype, const Dims& dims) { return b.broadcast(b.constant(dtype, 0), dims); }
Value filled(Builder& b, DType dtype, double value, const Dims& dims) { return b.broadcast(b.constant(dtype, value), dims); }

Value times(Builder& b, Value x, double number) { return number == 1 ? x : b.multiply(x, constant_like(b, x, number)); }
Value plus(Builder& b, Value x, double number) { return b.add(x, constant_like(b, x, number)); }
Value compare_with(Builder& b, Value x, double number, Comparison direction) {
  return b.compare(x, constant_like(b, x, number), direction);
}

Value sum(Builder& b, Value x, const Dims& dims) { return dims.empty() ? x : b.reduce(x, dims, hlo::Reduction::Sum); }

Value mean(Builder& b, Value x, const Dims& dims) {
  double count = 1;
  for (int64_t d : dims) count *= static_cast<double>(x.dim(d));
  Value s = sum(b, x, dims);
  return b.divide(s, constant_like(b, s, count));
}

Value at_least_1d(Builder& b, Value x) { return x.rank() == 0 ? b.reshape(x, {1}) : x; }

void require_index(std::string_view op, Value indices) {
  if (indices.dtype() != DType::S32 && indices.dtype() != DType::S64)
    raise<InvalidArgument>("{}(): Expected dtype int32/int64 for index", op);
}

void check_index(Builder& b, Value index, int64_t size, std::string message, bool wrap, Raises raises) {
  if (!checks_wanted()) return;
  Value low = compare_with(b, index, wrap ? -static_cast<double>(size) : 0, Comparison::GE);
  Value high = compare_with(b, index, static_cast<double>(size), Comparison::LT);
  check(b, b.logical_and(low, high), std::move(message), raises);
}

Value wrap_index(Builder& b, Value index, int64_t size) {
  Value negative = compare_with(b, index, 0, Comparison::LT);
  return b.select(negative, plus(b, index, static_cast<double>(size)), index);
}

Value take_rows(Builder& b, Value x, int64_t dim, Value index) {
  hlo::GatherDims dims;
  for (int64_t d = 0; d < x.rank(); ++d)
    if (d != dim) dims.offset_dims.push_back(d < dim ? d : d + index.rank() - 1);
  dims.collapsed_slice_dims = dims.start_index_map = {dim};
  dims.index_vector_dim = index.rank();
  return b.gather(x, index, dims, replaced(x.dims(), dim, 1));
}

Value take_along(Builder& b, Value x, int64_t dim, Value index) {
  if (index.elements() == 0) return zeros(b, x.dtype(), index.dims());
  Dims batch = others(x.rank(), dim);
  hlo::GatherDims dims{.offset_dims = {},
                       .collapsed_slice_dims = {dim},
                       .operand_batching_dims = batch,
                       .start_indices_batching_dims = batch,
                       .start_index_map = {dim},
                       .index_vector_dim = index.rank()};
  return b.gather(x, index, dims, Dims(static_cast<size_t>(x.rank()), 1));
}

bool wanted(const Dims& mask, size_t i) { return i < mask.size() && mask[i] != 0; }

}  // namespace flambeau::ops
