// Reading by index: rows (index_select, embedding), elements along a dimension (gather), NumPy's indexing (index.Tensor);
// and the writes that mirror NumPy's indexing (index_put). Other writes by index are in scatter.cc.
//
// An index out of range is reported through check(); without a listener reads clamp it and writes drop it, as XLA does.
#include <algorithm>

#include <fmt/ranges.h>

#include "ops/check.h"
#include "ops/scatter.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

Value index_select(Builder& b, Value self, int64_t dim, Value index) {
  dim = wrap_dim(dim, self.rank());
  require_index("index_select", index);
  if (index.rank() > 1)
    raise<OutOfRange>("index_select(): Index is supposed to be a vector, but got dim: {} with type: {}", index.rank(),
                           torch_name(index.dtype()));
  if (self.rank() == 0) {
    if (index.elements() != 1)
      raise<OutOfRange>("index_select(): Index to scalar can have only 1 value, got {} value(s)", index.elements());
    check_index(b, index, 1, "index out of range in self");
    return self;
  }
  check_index(b, index, self.dim(dim), "index out of range in self");
  return take_rows(b, self, dim, at_least_1d(b, index));
}

Value embedding(Builder& b, Value weight, Value indices, int64_t, bool, bool sparse) {
  if (weight.rank() != 2) raise<InvalidArgument>("'weight' must be 2-D");
  require_index("embedding", indices);
  if (sparse) raise<NotImplemented>("[embedding] sparse gradients are not supported; use sparse=False");
  check_index(b, indices, weight.dim(0), "index out of range in self");
  return take_rows(b, weight, 0, indices);
}

Value embedding_dense_backward(Builder& b, Value grad, Value indices, int64_t num_weights, int64_t padding_idx,
                               bool scale_by_freq) {
  require_index("embedding_backward", indices);
  int64_t count = indices.elements(), width = grad.dims().back();
  if (grad.elements() != count * width)
    raise<InvalidArgument>("[embedding_backward] expected a gradient of {} rows, got shape {}", count,
                           shape_text(grad.dims()));
  DType t = compute_type(grad.dtype());
  Value updates = convert(b, b.reshape(grad, {count, width}), t);
  Value rows = b.reshape(indices, {count});
  if (padding_idx >= 0) {  // to a row behind the last one: dropped
    Value padding = compare_with(b, rows, static_cast<double>(padding_idx), hlo::Comparison::EQ);
    rows = b.select(padding, filled(b, rows.dtype(), static_cast<double>(num_weights), rows.dims()), rows);
  }
  if (scale_by_freq) {
    Value counts = add_rows(b, zeros(b, t, {num_weights}), 0, rows, filled(b, t, 1, {count}));
    updates = b.divide(updates, along(b, take_rows(b, counts, 0, rows), updates.dims(), 0));
  }
  return convert(b, add_rows(b, zeros(b, t, {num_weights, width}), 0, rows, updates), grad.dtype());
}

// ---- elements
// -------------------------------------------------------------------------------------------------------------

Value gather(Builder& b, Value self, int64_t dim, Value index, bool sparse_grad) {
  if (sparse_grad) raise<NotImplemented>("[gather] sparse gradients are not supported; use sparse_grad=False");
  dim = wrap_dim(dim, self.rank());
  require_index("gather", index);
  if (index.elements() == 0) return zeros(b, self.dtype(), index.dims());  // of any rank
  Value x = at_least_1d(b, self), i = at_least_1d(b, index);
  if (x.rank() != i.rank()) raise<InvalidArgument>("Index tensor must have the same number of dimensions as input tensor");
  Dims limit = replaced(i.dims(), dim, x.dim(dim));
  for (int64_t d = 0; d < x.rank(); ++d)
    if (i.dim(d) > x.dim(d) && d != dim)
      raise<InvalidArgument>(
          "Size does not match at dimension {} expected index {} to be no larger than self {} apart from dimension {}", d,
          shape_text(i.dims()), shape_text(x.dims()), dim);
  check_index(b, i, x.dim(dim), fmt::format("index is out of bounds for dimension {} with size {}", dim, x.dim(dim)), false,
              Raises::RuntimeError);
  if (limit != x.dims()) x = b.slice(x, Dims(limit.size(), 0), limit);
  return b.reshape(take_along(b, x, dim, i), index.dims());
}

Value take(Builder& b, Value self, Value index) {
  if (index.dtype() != DType::S64)
    raise<InvalidArgument>("take(): Expected a long tensor for index, but got {}", torch_name(index.dtype()));
  check_index(b, index, self.elements(), "index out of range: tried to access a tensor by a flat index", true);
  return take_rows(b, b.reshape(self, {self.elements()}), 0, wrap_index(b, index, self.elements()));
}

// ---- NumPy's indexing
// -------------------------------------------------------------------------------------------------------

using Indices = std::vector<std::optional<Value>>;

// Which dimensions are indexed, by what, and where the indices' dimensions go in the result.
struct Advanced {
  Dims indexed;       // dimensions of self
  Dims kept;          // the others
  Value coordinates;  // [batch..., number of indexed dimensions]
  Dims batch;         // the shape that the indices broadcast to
  int64_t position;   // of the batch dimensions among the result's
  Dims result;

  Dims kept_positions() const {  // of the kept dimensions in the result
    Dims at;
    int64_t count = static_cast<int64_t>(batch.size());
    for (int64_t i = 0; i < static_cast<int64_t>(kept.size()); ++i) at.push_back(i < position ? i : i + count);
    return at;
  }
};

Advanced plan(Builder& b, Value self, const Indices& indices) {
  if (static_cast<int64_t>(indices.size()) > self.rank())
    raise<OutOfRange>("too many indices for tensor of dimension {} (got {})", self.rank(), indices.size());
  Advanced a;
  for (int64_t d = 0; d < self.rank(); ++d) {
    bool given = d < static_cast<int64_t>(indices.size()) && indices[static_cast<size_t>(d)];
    (given ? a.indexed : a.kept).push_back(d);
  }
  if (a.indexed.empty()) raise<InvalidArgument>("at least one index must be given");
  std::vector<Value> parts;
  for (int64_t d : a.indexed) {
    Value i = *indices[static_cast<size_t>(d)];
    if (i.dtype() == DType::Pred || i.dtype() == DType::U8)
      raise<NotImplemented>(
          "[index] a mask selects as many elements as it has true ones, and programs have fixed shapes; use "
          "torch.where(mask, x, y), or torch.nonzero_static(mask, size=n) as the index");
    if (i.dtype() != DType::S32 && i.dtype() != DType::S64)
      raise<OutOfRange>("tensors used as indices must be long, int, byte or bool tensors");
    check_index(b, i, self.dim(d), fmt::format("index is out of bounds for dimension {} with size {}", d, self.dim(d)),
                true);
    parts.push_back(wrap_index(b, b.convert(i, DType::S64), self.dim(d)));
    try {
      a.batch = broadcast_dims(a.batch, i.dims());
    } catch (const InvalidArgument&) {
      std::vector<std::string> shapes;
      for (int64_t so_far : a.indexed)
        if (so_far <= d) shapes.push_back(shape_text(indices[static_cast<size_t>(so_far)]->dims()));
      raise<OutOfRange>("shape mismatch: indexing tensors could not be broadcast together with shapes {}", fmt::join(shapes, ", "));
    }
  }
  Dims column = a.batch;
  column.push_back(1);
  for (Value& p : parts) p = b.reshape(b.broadcast(p, a.batch), column);
  a.coordinates = parts.size() == 1 ? parts[0] : b.concatenate(parts, static_cast<int64_t>(a.batch.size()));
  // Indices side by side stay where they are; indices apart go to the front.
  bool adjacent = a.indexed.back() - a.indexed.front() + 1 == static_cast<int64_t>(a.indexed.size());
  a.position = adjacent ? a.indexed.front() : 0;
  for (int64_t d : a.kept) a.result.push_back(self.dim(d));
  a.result.insert(a.result.begin() + a.position, a.batch.begin(), a.batch.end());
  return a;
}

Value index_tensor(Builder& b, Value self, Indices indices) {
  Advanced a = plan(b, self, indices);
  Dims slice = self.dims();
  for (int64_t d : a.indexed) slice[static_cast<size_t>(d)] = std::min<int64_t>(1, self.dim(d));
  hlo::GatherDims dims;
  dims.offset_dims = a.kept_positions();
  dims.collapsed_slice_dims = dims.start_index_map = a.indexed;
  dims.index_vector_dim = static_cast<int64_t>(a.batch.size());
  return b.gather(self, a.coordinates, dims, slice);
}

Value index_put(Builder& b, Value self, Indices indices, Value values, bool accumulate) {
  if (self.dtype() != values.dtype())
    raise<InvalidArgument>(
        "Index put requires the source and destination dtypes match, got {} for the destination and {} for the source.",
        torch_name(self.dtype()), torch_name(values.dtype()));
  auto given = [](const std::optional<Value>& i) { return i.has_value(); };
  auto first = std::find_if(indices.begin(), indices.end(), given);
  bool alone = std::count_if(indices.begin(), indices.end(), given) == 1;
  if (alone && ((*first)->dtype() == DType::Pred || (*first)->dtype() == DType::U8))
    return put_at_mask(b, self, **first, first - indices.begin(), values, accumulate);
  Advanced a = plan(b, self, indices);
  if (broadcast_dims(values.dims(), a.result) != a.result)
    raise<InvalidArgument>("shape mismatch: value tensor of shape {} cannot be broadcast to indexing result of shape {}",
                           shape_text(values.dims()), shape_text(a.result));
  hlo::ScatterDims dims;
  dims.update_window_dims = a.kept_positions();
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = a.indexed;
  dims.index_vector_dim = static_cast<int64_t>(a.batch.size());
  Value updates = b.broadcast(values, a.result);
  return scatter_into(b, self, a.coordinates, updates, dims, accumulate ? std::optional(hlo::Reduction::Sum) : std::nullopt);
}

Value index_put_impl(Builder& b, Value self, Indices indices, Value values, bool accumulate, bool) {
  return index_put(b, self, std::move(indices), values, accumulate);
}

constexpr Row kRows[] = {
    row("aten::index_select", lower<&index_select>()),
    row("aten::embedding", lower<&embedding>()),
    row("aten::embedding_dense_backward", lower<&embedding_dense_backward>()),
    row("aten::gather", lower<&gather>()),
    row("aten::take", lower<&take>()),
    row("aten::index.Tensor", lower<&index_tensor>()),
    row("aten::_unsafe_index.Tensor", lower<&index_tensor>()),
    row("aten::index_put", lower<&index_put>()),
    row("aten::_unsafe_index_put", lower<&index_put>()),
    row("aten::_index_put_impl", lower<&index_put_impl>()),
};

}  // namespace

std::span<const Row> indexing_rows() { return kRows; }

}  // namespace flambeau::ops
