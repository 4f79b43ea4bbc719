// Sums and products, moments, norms, logical reductions, running sums.
#include "ops/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/tables.h"

namespace flambeau::ops {

using hlo::Comparison;
using hlo::Reduction;

Dims reduced_dims(const std::optional<Dims>& dims, int64_t rank) {
  if (!dims || dims->empty()) return range(rank);
  Dims wrapped = wrap_dims(*dims, rank);
  if (rank == 0) return {};
  std::sort(wrapped.begin(), wrapped.end());
  return wrapped;
}

Value with_kept(Builder& b, Value reduced_value, const Dims& dims, const Dims& reduced, bool keepdim) {
  if (!keepdim) return reduced_value;
  Dims kept = dims;
  for (int64_t d : reduced) kept[static_cast<size_t>(d)] = 1;
  return b.reshape(reduced_value, kept);
}

Value reduce_over(Builder& b, Value x, const Dims& dims, bool keepdim, Reduction kind) {
  if (dims.empty()) return x;
  return with_kept(b, b.reduce(x, dims, kind), x.dims(), dims, keepdim);
}

int64_t reduced_count(const Dims& dims, const Dims& reduced) {
  int64_t count = 1;
  for (int64_t d : reduced) count *= dims[static_cast<size_t>(d)];
  return count;
}

namespace {

// ---- sums and products -----------------------------------------------------------------------------------------------------------

DType sum_type(Value x, std::optional<DType> dtype) {
  if (dtype) return *dtype;
  return is_float(x.dtype()) || is_complex(x.dtype()) ? x.dtype() : DType::S64;
}

// float16 and bfloat16 accumulate in float32.
template <Reduction kind>
Value accumulate(Builder& b, Value x, const Dims& dims, bool keepdim, std::optional<DType> dtype) {
  DType result = sum_type(x, dtype);
  Value y = convert(b, x, compute_type(result));
  if (result == DType::Pred) return reduce_over(b, y, dims, keepdim, kind == Reduction::Sum ? Reduction::Or : Reduction::And);
  return convert(b, reduce_over(b, y, dims, keepdim, kind), result);
}

Value sum_all(Builder& b, Value x, std::optional<DType> dtype) {
  return accumulate<Reduction::Sum>(b, x, range(x.rank()), false, dtype);
}
Value sum_dims(Builder& b, Value x, std::optional<Dims> dims, bool keepdim, std::optional<DType> dtype) {
  return accumulate<Reduction::Sum>(b, x, reduced_dims(dims, x.rank()), keepdim, dtype);
}
Value prod_all(Builder& b, Value x, std::optional<DType> dtype) {
  return accumulate<Reduction::Product>(b, x, range(x.rank()), false, dtype);
}
Value prod_dim(Builder& b, Value x, int64_t dim, bool keepdim, std::optional<DType> dtype) {
  return accumulate<Reduction::Product>(b, x, reduced_dims(Dims{dim}, x.rank()), keepdim, dtype);
}

Value nansum(Builder& b, Value x, std::optional<Dims> dims, bool keepdim, std::optional<DType> dtype) {
  if (is_complex(x.dtype())) raise<InvalidArgument>("nansum on CPU does not support complex inputs");
  if (is_float(x.dtype())) x = b.select(is_nan(b, x), zeros(b, x.dtype(), x.dims()), x);
  return sum_dims(b, x, std::move(dims), keepdim, dtype);
}

Value count_nonzero_dims(Builder& b, Value x, Dims dims) {
  return sum_dims(b, convert(b, x, DType::Pred), std::move(dims), false, DType::S64);
}
Value count_nonzero(Builder& b, Value x, std::optional<int64_t> dim) { return count_nonzero_dims(b, x, dim ? Dims{*dim} : Dims{}); }

Value mean_dims(Builder& b, Value x, std::optional<Dims> dims, bool keepdim, std::optional<DType> dtype) {
  DType result = dtype.value_or(x.dtype());
  if (!is_float(result) && !is_complex(result)) {
    if (dtype)
      raise<InvalidArgument>("mean(): could not infer output dtype. Optional dtype must be either a floating point or complex dtype. Got: {}",
                             torch_name(result));
    raise<InvalidArgument>("mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: {}",
                           torch_name(result));
  }
  Dims reduced = reduced_dims(dims, x.rank());
  Value sum = reduce_over(b, convert(b, x, compute_type(result)), reduced, keepdim, Reduction::Sum);
  Value count = constant_like(b, sum, static_cast<double>(reduced_count(x.dims(), reduced)));
  return convert(b, b.divide(sum, count), result);
}
Value mean_all(Builder& b, Value x, std::optional<DType> dtype) { return mean_dims(b, x, std::nullopt, false, dtype); }

// ---- logical reductions ------------------------------------------------------------------------------------------------------------

// PyTorch answers uint8 to uint8, bool otherwise.
template <Reduction kind>
Value logical_over(Builder& b, Value x, const Dims& dims, bool keepdim) {
  Value y = reduce_over(b, convert(b, x, DType::Pred), dims, keepdim, kind);
  return convert(b, y, x.dtype() == DType::U8 ? DType::U8 : DType::Pred);
}
template <Reduction kind>
Value logical_all(Builder& b, Value x) { return logical_over<kind>(b, x, range(x.rank()), false); }
template <Reduction kind>
Value logical_dim(Builder& b, Value x, int64_t dim, bool keepdim) {
  return logical_over<kind>(b, x, reduced_dims(Dims{dim}, x.rank()), keepdim);
}
template <Reduction kind>
Value logical_dims(Builder& b, Value x, std::optional<Dims> dims, bool keepdim) {
  if (dims && dims->empty()) return logical_over<kind>(b, x, {}, keepdim);  // unlike in a sum, no dimension means none
  return logical_over<kind>(b, x, reduced_dims(dims, x.rank()), keepdim);
}

// ---- moments ------------------------------------------------------------------------------------------------------------------------

struct Moments {
  Value variance, mean;
};

// In two passes: the mean, then the squared distances from it.
Moments moments(Builder& b, Value x, const std::optional<Dims>& dims, const std::optional<Scalar>& correction, bool keepdim, bool root) {
  if (is_complex(x.dtype())) {  // the variance of the parts together, a real
    Moments re = moments(b, b.real(x), dims, correction, keepdim, false), im = moments(b, b.imag(x), dims, correction, keepdim, false);
    Value variance = b.add(re.variance, im.variance);
    return {root ? b.sqrt(variance) : variance, b.complex(re.mean, im.mean)};
  }
  if (!is_float(x.dtype())) raise<InvalidArgument>("std and var only support floating point and complex dtypes");
  Dims reduced = reduced_dims(dims, x.rank());
  double count = static_cast<double>(reduced_count(x.dims(), reduced));
  double freedom = std::max(0.0, count - (correction ? correction->number("var").as_double() : 1.0));
  Value y = convert(b, x, compute_type(x.dtype()));
  Value mean = reduce_over(b, y, reduced, false, Reduction::Sum);
  mean = b.divide(mean, constant_like(b, mean, count));
  Value distance = b.subtract(y, spread(b, mean, x.dims(), reduced));
  Value variance = reduce_over(b, b.multiply(distance, distance), reduced, false, Reduction::Sum);
  variance = b.divide(variance, constant_like(b, variance, freedom));
  if (root) variance = b.sqrt(variance);
  auto finish = [&](Value v) { return with_kept(b, convert(b, v, x.dtype()), x.dims(), reduced, keepdim); };
  return {finish(variance), finish(mean)};
}

template <bool root>
Value variance(Builder& b, Value x, std::optional<Dims> dims, std::optional<Scalar> correction, bool keepdim) {
  return moments(b, x, dims, correction, keepdim, root).variance;
}
template <bool root>
std::array<Value, 2> variance_and_mean(Builder& b, Value x, std::optional<Dims> dims, std::optional<Scalar> correction, bool keepdim) {
  Moments m = moments(b, x, dims, correction, keepdim, root);
  return {m.variance, m.mean};
}

// ---- norms ----------------------------------------------------------------------------------------------------------------------------

Value norm_of(Builder& b, Value x, double p, const Dims& dims, bool keepdim) {
  auto over = [&](Value v, Reduction kind) { return reduce_over(b, v, dims, keepdim, kind); };
  Value magnitude = b.abs(x);
  if (std::isinf(p)) return over(magnitude, p > 0 ? Reduction::Max : Reduction::Min);
  if (p == 0) return over(b.convert(convert(b, x, DType::Pred), magnitude.dtype()), Reduction::Sum);
  if (p == 1) return over(magnitude, Reduction::Sum);
  if (p == 2) {
    Value square = is_complex(x.dtype()) ? b.add(b.multiply(b.real(x), b.real(x)), b.multiply(b.imag(x), b.imag(x))) : b.multiply(x, x);
    return b.sqrt(over(square, Reduction::Sum));
  }
  Value sum = over(b.power(magnitude, constant_like(b, magnitude, p)), Reduction::Sum);
  return b.power(sum, constant_like(b, sum, 1 / p));
}

Value vector_norm(Builder& b, Value x, Scalar order, std::optional<Dims> dims, bool keepdim, std::optional<DType> dtype) {
  DType result = dtype.value_or(x.dtype());
  if (!is_float(x.dtype()) && !is_complex(x.dtype()))
    raise<InvalidArgument>("linalg.vector_norm: Expected a floating point or complex tensor as input. Got {}", torch_name(x.dtype()));
  if (!is_float(result) && !is_complex(result))
    raise<InvalidArgument>("linalg.vector_norm: dtype should be floating point or complex. Got {}", torch_name(result));
  if (promote_types(x.dtype(), result) != result)
    raise<InvalidArgument>("linalg.vector_norm: the dtype of the input ({}) should be convertible without narrowing to the specified dtype "
                           "({})", torch_name(x.dtype()), torch_name(result));
  double p = order.number("linalg_vector_norm").as_double();
  Dims reduced = reduced_dims(dims, x.rank());
  if ((p < 0 || std::isinf(p)) && reduced_count(x.dims(), reduced) == 0)
    raise<InvalidArgument>("linalg.vector_norm cannot compute the {} norm on an empty dimension because the operation does not have an "
                           "identity", p);
  Value y = convert(b, x, compute_type(result));
  Value norm = norm_of(b, y, p, reduced, keepdim);
  return is_complex(result) ? norm : convert(b, norm, result);  // of complex numbers it is a real
}

Value norm_over(Builder& b, Value x, const std::optional<Scalar>& p, std::optional<Dims> dims, bool keepdim, std::optional<DType> dtype) {
  if (!is_float(x.dtype()) && !is_complex(x.dtype()))
    raise<InvalidArgument>("norm(): input dtype should be either floating point or complex. Got {} instead.", torch_name(x.dtype()));
  return vector_norm(b, x, p.value_or(Scalar{Number{2.0}, {}}), std::move(dims), keepdim, dtype);
}
Value norm(Builder& b, Value x, Scalar p) { return norm_over(b, x, p, std::nullopt, false, std::nullopt); }
Value norm_dim(Builder& b, Value x, std::optional<Scalar> p, Dims dims, bool keepdim) {
  return norm_over(b, x, p, std::move(dims), keepdim, std::nullopt);
}
Value norm_dim_dtype(Builder& b, Value x, std::optional<Scalar> p, Dims dims, bool keepdim, DType dtype) {
  return norm_over(b, x, p, std::move(dims), keepdim, dtype);
}
Value norm_dtype(Builder& b, Value x, std::optional<Scalar> p, DType dtype) { return norm_over(b, x, p, std::nullopt, false, dtype); }

Value logsumexp(Builder& b, Value x, Dims dims, bool keepdim) {
  Dims reduced = reduced_dims(dims, x.rank());
  return real_function(b, x, [&](Value v) {
    // Infinite maxima are left out: inf - inf would be NaN.
    Value high = reduce_over(b, v, reduced, false, Reduction::Max);
    high = b.select(b.is_finite(high), high, zeros(b, v.dtype(), high.dims()));
    Value sum = reduce_over(b, b.exp(b.subtract(v, spread(b, high, v.dims(), reduced))), reduced, false, Reduction::Sum);
    return with_kept(b, b.add(b.log(sum), high), x.dims(), reduced, keepdim);
  });
}

// ---- running sums and products ---------------------------------------------------------------------------------------------------------

// An inclusive scan with O(n) work in 2 log2(n) steps: neighbours combine to half as many, whose scan stands at the odd places; one
// more combination gives the even ones.
Value scan(Builder& b, Value x, int64_t dim, hlo::Op op) {
  int64_t n = x.dim(dim);
  if (n < 2) return x;
  int64_t pairs = n / 2, evens = n - pairs;
  Value halves = b.binary(op, b.slice_dim(x, dim, 0, 2 * pairs, 2), b.slice_dim(x, dim, 1, 2 * pairs, 2));
  Value odd = scan(b, halves, dim, op);
  Value even = b.slice_dim(x, dim, 0, 1);
  if (evens > 1) {
    Value later = b.binary(op, b.slice_dim(odd, dim, 0, evens - 1), b.slice_dim(x, dim, 2, n, 2));
    Value parts[] = {even, later};
    even = b.concatenate(parts, dim);
  }
  // Interleave: lay the two beside each other in a new dimension, and merge it.
  if (pairs < evens) {
    Value parts[] = {odd, b.slice_dim(odd, dim, pairs - 1, pairs)};
    odd = b.concatenate(parts, dim);
  }
  Dims column = x.dims();
  column[static_cast<size_t>(dim)] = evens;
  column.insert(column.begin() + dim + 1, 1);
  Value columns[] = {b.reshape(even, column), b.reshape(odd, column)};
  Value merged = b.reshape(b.concatenate(columns, dim + 1), replaced(x.dims(), dim, 2 * evens));
  return b.slice_dim(merged, dim, 0, n);
}

}  // namespace

Value running_sum(Builder& b, Value x, int64_t dim) { return scan(b, x, dim, hlo::Op::Add); }

namespace {

template <hlo::Op op>
Value cumulative(Builder& b, Value x, int64_t dim, std::optional<DType> dtype) {
  int64_t d = wrap_dim(dim, x.rank());
  DType result = sum_type(x, dtype);
  Value y = convert(b, x, compute_type(result));
  return convert(b, x.rank() == 0 ? y : scan(b, y, d, op), result);
}

constexpr Row kRows[] = {
    row("aten::sum", lower<&sum_all>()),
    row("aten::sum.dim_IntList", lower<&sum_dims>()),
    row("aten::prod", lower<&prod_all>()),
    row("aten::prod.dim_int", lower<&prod_dim>()),
    row("aten::nansum", lower<&nansum>()),
    row("aten::count_nonzero", lower<&count_nonzero>()),
    row("aten::count_nonzero.dim_IntList", lower<&count_nonzero_dims>()),
    row("aten::mean", lower<&mean_all>()),
    row("aten::mean.dim", lower<&mean_dims>()),
    row("aten::any", lower<&logical_all<Reduction::Or>>()),
    row("aten::any.dim", lower<&logical_dim<Reduction::Or>>()),
    row("aten::any.dims", lower<&logical_dims<Reduction::Or>>()),
    row("aten::all", lower<&logical_all<Reduction::And>>()),
    row("aten::all.dim", lower<&logical_dim<Reduction::And>>()),
    row("aten::all.dims", lower<&logical_dims<Reduction::And>>()),
    row("aten::var.correction", lower<&variance<false>>(), Mark::Specialise),
    row("aten::std.correction", lower<&variance<true>>(), Mark::Specialise),
    row("aten::var_mean.correction", lower<&variance_and_mean<false>>(), Mark::Specialise),
    row("aten::std_mean.correction", lower<&variance_and_mean<true>>(), Mark::Specialise),
    row("aten::linalg_vector_norm", lower<&vector_norm>(), Mark::Specialise),
    row("aten::norm.Scalar", lower<&norm>(), Mark::Specialise),
    row("aten::norm.ScalarOpt_dim", lower<&norm_dim>(), Mark::Specialise),
    row("aten::norm.ScalarOpt_dim_dtype", lower<&norm_dim_dtype>(), Mark::Specialise),
    row("aten::norm.ScalarOpt_dtype", lower<&norm_dtype>(), Mark::Specialise),
    row("aten::logsumexp", lower<&logsumexp>()),
    row("aten::cumsum", lower<&cumulative<hlo::Op::Add>>()),
    row("aten::cumprod", lower<&cumulative<hlo::Op::Multiply>>()),
};

}  // namespace

std::span<const Row> reduction_rows() { return kRows; }

}  // namespace flambeau::ops
