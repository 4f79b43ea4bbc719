// Writing by index: scatter and its reductions, index_add, index_copy, index_fill, put.
//
// XLA scatters one update after the other, on the CPU at some 50 ns each. Where few elements of a row are written (labels,
// the experts of a token) each of them is instead compared with an iota: one fused pass over the target a written element.
#include "ops/scatter.h"

#include <algorithm>

#include "ops/check.h"
#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

using hlo::Comparison;
using hlo::Reduction;
using Combine = std::optional<Reduction>;  // none: replace

Value scatter_into(Builder& b, Value x, Value indices, Value updates, const hlo::ScatterDims& dims, Combine combine) {
  if (combine != Reduction::Sum) return b.scatter(x, indices, updates, dims, combine);
  DType t = compute_type(x.dtype());
  if (x.dtype() == DType::Pred) {  // a sum of bools is an or
    return b.scatter(x, indices, updates, dims, Reduction::Or);
  }
  return convert(b, b.scatter(convert(b, x, t), indices, convert(b, updates, t), dims, combine), x.dtype());
}

Value put_rows(Builder& b, Value x, int64_t dim, Value index, Value updates, Combine combine) {
  hlo::ScatterDims dims;
  dims.update_window_dims = others(x.rank(), dim);
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = {dim};
  dims.index_vector_dim = 1;
  return scatter_into(b, x, index, updates, dims, combine);
}

namespace {

// ---- elements along a dimension
// -----------------------------------------------------------------------------------------------

constexpr int64_t kFewWrites = 8;

Value combined(Builder& b, Value old, Value update, Combine combine) {
  if (!combine) return update;
  bool is_bool = old.dtype() == DType::Pred;
  switch (*combine) {
    case Reduction::Sum: return is_bool ? b.logical_or(old, update) : b.add(old, update);
    case Reduction::Product: return is_bool ? b.logical_and(old, update) : b.multiply(old, update);
    case Reduction::Max: return b.maximum(old, update);
    case Reduction::Min: return b.minimum(old, update);
    case Reduction::And: return b.logical_and(old, update);
    case Reduction::Or: return b.logical_or(old, update);
  }
  FLAMBEAU_CHECK(false, "every reduction is handled");
}

// x has index's sizes but along dim. The k-th written element of each row, for all rows at once.
Value write_few(Builder& b, Value x, int64_t dim, Value index, Value updates, Combine combine) {
  DType t = combine == Reduction::Sum ? compute_type(x.dtype()) : x.dtype();
  Value result = convert(b, x, t);
  Value position = b.iota({index.dtype(), x.dims()}, dim);
  for (int64_t k = 0; k < index.dim(dim); ++k) {
    auto column = [&](Value v) { return b.broadcast(b.slice_dim(v, dim, k, k + 1), x.dims()); };
    Value hit = b.compare(position, column(index), Comparison::EQ);
    result = b.select(hit, combined(b, result, column(convert(b, updates, t)), combine), result);
  }
  return convert(b, result, x.dtype());
}

Value write_many(Builder& b, Value x, int64_t dim, Value index, Value updates, Combine combine) {
  Dims batch = others(x.rank(), dim);
  hlo::ScatterDims dims;
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = {dim};
  dims.input_batching_dims = dims.scatter_indices_batching_dims = batch;
  dims.index_vector_dim = index.rank();
  return scatter_into(b, x, index, updates, dims, combine);
}

// The arguments of a scatter, checked; rank 0 as rank 1.
struct Write {
  Value self, index, updates;
  int64_t dim;
};

Write checked(Builder& b, std::string_view op, Value self, int64_t dim, Value index, Value src) {
  dim = wrap_dim(dim, self.rank());
  require_index(op, index);
  if (self.dtype() != src.dtype()) raise<InvalidArgument>("{}(): Expected self.dtype to be equal to src.dtype", op);
  Write w{at_least_1d(b, self), at_least_1d(b, index), at_least_1d(b, src), dim};
  if (index.elements() == 0) return w;
  if (w.index.rank() != w.self.rank() || w.index.rank() != w.updates.rank())
    raise<InvalidArgument>("Index tensor must have the same number of dimensions as {} tensor",
                           w.index.rank() != w.self.rank() ? "self" : "src");
  for (int64_t d = 0; d < w.index.rank(); ++d)
    if ((w.index.dim(d) > w.self.dim(d) && d != dim) || w.index.dim(d) > w.updates.dim(d))
      raise<InvalidArgument>(
          "Expected index {} to be no larger than self {} apart from dimension {} and to be no larger size than src {}",
          shape_text(w.index.dims()), shape_text(w.self.dims()), dim, shape_text(w.updates.dims()));
  check_index(b, w.index, w.self.dim(dim),
              fmt::format("index is out of bounds for dimension {} with size {}", dim, w.self.dim(dim)), false, Raises::RuntimeError);
  if (w.updates.dims() != w.index.dims()) w.updates = b.slice(w.updates, Dims(w.index.dims().size(), 0), w.index.dims());
  return w;
}

// The index may be smaller than self in other dimensions: then a corner of self is written.
Value write(Builder& b, const Write& w, Combine combine) {
  if (w.index.elements() == 0) return w.self;
  Dims corner = replaced(w.index.dims(), w.dim, w.self.dim(w.dim)), origin(corner.size(), 0);
  bool whole = corner == w.self.dims();
  Value x = whole ? w.self : b.slice(w.self, origin, corner);
  Value y = w.index.dim(w.dim) <= kFewWrites ? write_few(b, x, w.dim, w.index, w.updates, combine)
                                             : write_many(b, x, w.dim, w.index, w.updates, combine);
  if (whole) return y;
  std::vector<Value> starts(corner.size(), b.constant(DType::S32, 0));
  return b.dynamic_update_slice(w.self, y, starts);
}

Value scatter_with(Builder& b, std::string_view op, Value self, int64_t dim, Value index, Value src, Combine combine) {
  return b.reshape(write(b, checked(b, op, self, dim, index, src), combine), self.dims());
}

Combine add_or_multiply(std::string_view reduce) {
  if (reduce == "add") return Reduction::Sum;
  if (reduce == "multiply") return Reduction::Product;
  raise<InvalidArgument>("reduce argument must be either add or multiply.");
}

Value scatter_src(Builder& b, Value self, int64_t dim, Value index, Value src) {
  return scatter_with(b, "scatter", self, dim, index, src, {});
}
Value scatter_value(Builder& b, Value self, int64_t dim, Value index, const Scalar& value) {
  check_fits(value, self.dtype());
  return scatter_with(b, "scatter", self, dim, index, b.broadcast(value.as(b, self.dtype()), index.dims()), {});
}
Value scatter_src_reduce(Builder& b, Value self, int64_t dim, Value index, Value src, const std::string& reduce) {
  return scatter_with(b, "scatter", self, dim, index, src, add_or_multiply(reduce));
}
Value scatter_value_reduce(Builder& b, Value self, int64_t dim, Value index, const Scalar& value,
                           const std::string& reduce) {
  check_fits(value, self.dtype());
  Value src = b.broadcast(value.as(b, self.dtype()), index.dims());
  return scatter_with(b, "scatter", self, dim, index, src, add_or_multiply(reduce));
}
Value scatter_add(Builder& b, Value self, int64_t dim, Value index, Value src) {
  return scatter_with(b, "scatter_add", self, dim, index, src, Reduction::Sum);
}

// ---- reductions with a choice
// ---------------------------------------------------------------------------------------------------

Value divided(Builder& b, Value total, Value count) {
  if (is_float(total.dtype())) return b.divide(total, count);
  Value quotient = b.divide(total, count);
  if (is_unsigned_integer(total.dtype())) return quotient;
  // Integers round towards minus infinity.
  return b.select(compare_with(b, b.remainder(total, count), 0, Comparison::LT), plus(b, quotient, -1), quotient);
}

// `write_with(target, updates, combine)` does one kind of write.
template <class WriteWith>
Value reduce_into(Builder& b, Value self, Value updates, const std::string& reduce, bool include_self,
                  WriteWith write_with) {
  static const std::pair<std::string_view, Reduction> kinds[] = {{"sum", Reduction::Sum},
                                                                 {"prod", Reduction::Product},
                                                                 {"mean", Reduction::Sum},
                                                                 {"amax", Reduction::Max},
                                                                 {"amin", Reduction::Min}};
  auto kind = std::find_if(std::begin(kinds), std::end(kinds), [&](auto& k) { return k.first == reduce; });
  if (kind == std::end(kinds))
    raise<InvalidArgument>("reduce argument must be either sum, prod, mean, amax or amin, got {}", reduce);
  // A mean of float16 or bfloat16 divides before it is rounded.
  DType result = self.dtype(), t = reduce == "mean" ? compute_type(result) : result;
  self = convert(b, self, t);
  updates = convert(b, updates, t);
  Value start = self;
  if (!include_self) {
    Value neutral = kind->second == Reduction::Max   ? b.lowest(t)
                    : kind->second == Reduction::Min ? b.highest(t)
                                                     : b.constant(t, kind->second == Reduction::Product ? 1 : 0);
    start = write_with(self, b.broadcast(neutral, updates.dims()), Combine{});
  }
  Value written = write_with(start, updates, Combine{kind->second});
  if (reduce == "mean") {
    Value one = filled(b, t, 1, updates.dims());
    Value count = write_with(filled(b, t, include_self ? 1 : 0, self.dims()), one, Combine{Reduction::Sum});
    written = divided(b, written, b.maximum(count, constant_like(b, count, 1)));
  }
  return convert(b, written, result);
}

Value scatter_reduce(Builder& b, Value self, int64_t dim, Value index, Value src, const std::string& reduce,
                     bool include_self) {
  Write w = checked(b, "scatter_reduce", self, dim, index, src);
  Value result = reduce_into(b, w.self, w.updates, reduce, include_self, [&](Value x, Value updates, Combine combine) {
    return write(b, Write{x, w.index, updates, w.dim}, combine);
  });
  return b.reshape(result, self.dims());
}

// ---- rows
// -----------------------------------------------------------------------------------------------------------------------

// `source` has self's shape with index's length along dim. Index and source of rank 0 count as one row.
template <class E = InvalidArgument>
Write checked_rows(Builder& b, std::string_view op, Value self, int64_t dim, Value index, Value source, Raises raises = Raises::IndexError) {
  dim = wrap_dim(dim, self.rank());
  require_index(op, index);
  if (index.rank() > 1) raise<InvalidArgument>("{}(): Index is supposed to be a vector, but got dim: {}", op, index.rank());
  if (self.dtype() != source.dtype())
    raise<InvalidArgument>("{}(): self ({}) and source ({}) must have the same scalar type", op, torch_name(self.dtype()),
                           torch_name(source.dtype()));
  Write w{at_least_1d(b, self), at_least_1d(b, index), at_least_1d(b, source), dim};
  Dims expected = replaced(w.self.dims(), dim, w.index.dim(0));
  if (source.rank() == 0 && w.index.elements() == 1) w.updates = b.broadcast(w.updates, expected);
  if (w.updates.rank() == w.self.rank() && w.updates.dim(dim) != w.index.dim(0))
    raise<E>("{}(): Number of indices ({}) should be equal to source.size(dim): ({}), for dim: {}", op, w.index.dim(0),
             w.updates.dim(dim), dim);
  if (w.updates.dims() != expected)
    raise<InvalidArgument>(
        "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = {} "
        "source.shape = {}",
        shape_text(self.dims()), shape_text(source.dims()));
  check_index(b, w.index, w.self.dim(dim), "index out of range in self", false, raises);
  return w;
}

Value index_add(Builder& b, Value self, int64_t dim, Value index, Value source, const Scalar& alpha) {
  Write w = checked_rows(b, "index_add_", self, dim, index, source, self.rank() > 1 ? Raises::RuntimeError : Raises::IndexError);
  if (!alpha.is(1)) w.updates = b.multiply(w.updates, scalar_like(b, w.updates, alpha));
  return b.reshape(add_rows(b, w.self, w.dim, w.index, w.updates), self.dims());
}

Value index_copy(Builder& b, Value self, int64_t dim, Value index, Value source) {
  Write w = checked_rows<OutOfRange>(b, "index_copy_", self, dim, index, source);
  return b.reshape(put_rows(b, w.self, w.dim, w.index, w.updates, {}), self.dims());
}

Value index_reduce(Builder& b, Value self, int64_t dim, Value index, Value source, const std::string& reduce,
                   bool include_self) {
  if (reduce == "sum")
    raise<InvalidArgument>("index_reduce_(): Expected reduce to be one of prod, mean, amax or amin but got {}.", reduce);
  Write w = checked_rows(b, "index_reduce_", self, dim, index, source);
  Value result = reduce_into(b, w.self, w.updates, reduce, include_self, [&](Value x, Value updates, Combine combine) {
    return put_rows(b, x, w.dim, w.index, updates, combine);
  });
  return b.reshape(result, self.dims());
}

Value fill_rows(Builder& b, Value self, int64_t dim, Value index, Value value) {
  dim = wrap_dim(dim, self.rank());
  if (index.dtype() != DType::S64) raise<InvalidArgument>("index_fill_(): Expected dtype int64 for index.");
  if (index.rank() > 1) raise<InvalidArgument>("Index has to be a vector/scalar");
  Value x = at_least_1d(b, self), rows = at_least_1d(b, index);
  check_index(b, rows, x.dim(dim), "index out of range in self", true);
  rows = wrap_index(b, rows, x.dim(dim));
  Value updates = b.broadcast(value, replaced(x.dims(), dim, rows.dim(0)));
  return b.reshape(put_rows(b, x, dim, rows, updates, {}), self.dims());
}

Value index_fill_scalar(Builder& b, Value self, int64_t dim, Value index, const Scalar& value) {
  check_fits(value, self.dtype());
  return fill_rows(b, self, dim, index, value.as(b, self.dtype()));
}
Value index_fill_tensor(Builder& b, Value self, int64_t dim, Value index, Value value) {
  if (value.rank() != 0)
    raise<InvalidArgument>("index_fill_ only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).",
                           value.rank());
  return fill_rows(b, self, dim, index, convert(b, value, self.dtype()));
}

Value put(Builder& b, Value self, Value index, Value source, bool accumulate) {
  if (index.dtype() != DType::S64)
    raise<InvalidArgument>("put_(): Expected a long tensor for index, but got {}", torch_name(index.dtype()));
  if (self.dtype() != source.dtype())
    raise<InvalidArgument>(
        "put_(): self and source expected to have the same dtype, but got self.dtype = {} and source.dtype = {}",
        torch_name(self.dtype()), torch_name(source.dtype()));
  if (index.elements() != source.elements())
    raise<OutOfRange>(
        "put_(): Expected source and index to have the same number of elements, but got source.numel() = {}, index.numel() "
        "= {}",
        source.elements(), index.elements());
  check_index(b, index, self.elements(), "index out of range: tried to access a tensor by a flat index", true);
  Dims flat{index.elements()};
  Value rows = wrap_index(b, b.reshape(index, flat), self.elements());
  Combine combine = accumulate ? Combine{Reduction::Sum} : Combine{};
  return b.reshape(put_rows(b, b.reshape(self, {self.elements()}), 0, rows, b.reshape(source, flat), combine), self.dims());
}

constexpr Row kRows[] = {
    row("aten::scatter.src", lower<&scatter_src>()),
    row("aten::scatter.value", lower<&scatter_value>(), Mark::Fits),
    row("aten::scatter.reduce", lower<&scatter_src_reduce>()),
    row("aten::scatter.value_reduce", lower<&scatter_value_reduce>(), Mark::Fits),
    row("aten::scatter_add", lower<&scatter_add>()),
    row("aten::scatter_reduce.two", lower<&scatter_reduce>()),
    row("aten::index_add", lower<&index_add>()),
    row("aten::index_copy", lower<&index_copy>()),
    row("aten::index_reduce", lower<&index_reduce>()),
    row("aten::index_fill.int_Scalar", lower<&index_fill_scalar>(), Mark::Fits),
    row("aten::index_fill.int_Tensor", lower<&index_fill_tensor>()),
    row("aten::put", lower<&put>()),
};

}  // namespace

std::span<const Row> scatter_rows() { return kRows; }

}  // namespace flambeau::ops
