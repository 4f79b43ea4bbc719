// Greatest and least elements, and where they are. NaN counts as the greatest and as the least.
#include <limits>

#include "ops/reduction.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using hlo::Reduction;

constexpr std::string_view name_of(Reduction kind, std::string_view max, std::string_view min) { return kind == Reduction::Max ? max : min; }

// An extremum of nothing does not exist. E is PyTorch's class of error where no dimension is named.
template <class E = InvalidArgument>
void check_not_empty(std::string_view op, Value x, const Dims& dims, bool all) {
  if (all && x.elements() == 0)
    raise<E>("{}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.", op);
  for (int64_t d : dims)
    if (x.dim(d) == 0) raise<OutOfRange>("{}(): Expected reduction dim {} to have non-zero size.", op, d);
}

Value extremum(Builder& b, Value x, const Dims& dims, bool keepdim, Reduction kind) {
  refuse_complex("extremum_cpu", x.dtype());
  if (x.dtype() == DType::Pred) kind = kind == Reduction::Max ? Reduction::Or : Reduction::And;
  return reduce_over(b, x, dims, keepdim, kind);
}

template <Reduction kind>
Value over_dims(Builder& b, Value x, Dims dims, bool keepdim) {
  Dims reduced = reduced_dims(dims, x.rank());
  check_not_empty(name_of(kind, "amax", "amin"), x, reduced, dims.empty());
  return extremum(b, x, reduced, keepdim, kind);
}

template <Reduction kind>
Value over_all(Builder& b, Value x) {
  check_not_empty(name_of(kind, "max", "min"), x, {}, true);
  return extremum(b, x, range(x.rank()), false, kind);
}

// The first place of `best` (x reduced over dimension d, without it) along d, as int64. Two plain reductions are faster than one
// over pairs: both become vector code.
Value first_place(Builder& b, Value x, Value best, int64_t d) {
  Value found = b.compare(x, spread(b, best, x.dims(), {d}), Comparison::EQ);
  if (is_float(x.dtype())) found = b.logical_or(found, is_nan(b, x));  // equal to nothing; if there is any, the best is one
  DType index = x.dim(d) <= std::numeric_limits<int32_t>::max() ? DType::S32 : DType::S64;
  Value place = b.select(found, b.iota({index, x.dims()}, d), b.broadcast(b.highest(index), x.dims()));
  return b.convert(b.reduce(place, {d}, Reduction::Min), DType::S64);
}

template <Reduction kind>
std::array<Value, 2> with_indices(Builder& b, Value x, int64_t dim, bool keepdim) {
  int64_t d = wrap_dim(dim, x.rank());
  if (x.rank() == 0) return {x, b.constant(DType::S64, 0)};
  check_not_empty(name_of(kind, "max", "min"), x, {d}, false);
  Value best = extremum(b, x, {d}, false, kind);
  Value place = first_place(b, x, best, d);
  return {with_kept(b, best, x.dims(), {d}, keepdim), with_kept(b, place, x.dims(), {d}, keepdim)};
}

template <Reduction kind>
Value arg(Builder& b, Value x, std::optional<int64_t> dim, bool keepdim) {
  std::string_view op = name_of(kind, "argmax", "argmin");
  refuse_bool(op, x.dtype());
  if (is_complex(x.dtype())) raise<InvalidArgument>("{}(): does not support complex input", op);
  check_not_empty<OutOfRange>(op, x, {}, !dim);
  if (dim) return with_indices<kind>(b, x, *dim, keepdim)[1];
  Value place = with_indices<kind>(b, b.reshape(x, {x.elements()}), 0, false)[1];
  return with_kept(b, place, x.dims(), range(x.rank()), keepdim);
}

std::array<Value, 2> aminmax(Builder& b, Value x, std::optional<int64_t> dim, bool keepdim) {
  Dims dims = dim ? reduced_dims(Dims{*dim}, x.rank()) : range(x.rank());
  check_not_empty("aminmax", x, dim ? dims : Dims{}, !dim);
  return {extremum(b, x, dims, keepdim, Reduction::Min), extremum(b, x, dims, keepdim, Reduction::Max)};
}

constexpr Row kRows[] = {
    row("aten::amax", lower<&over_dims<Reduction::Max>>()),
    row("aten::amin", lower<&over_dims<Reduction::Min>>()),
    row("aten::max", lower<&over_all<Reduction::Max>>()),
    row("aten::min", lower<&over_all<Reduction::Min>>()),
    row("aten::max.dim", lower<&with_indices<Reduction::Max>>()),
    row("aten::min.dim", lower<&with_indices<Reduction::Min>>()),
    row("aten::argmax", lower<&arg<Reduction::Max>>()),
    row("aten::argmin", lower<&arg<Reduction::Min>>()),
    row("aten::aminmax", lower<&aminmax>()),
};

}  // namespace

std::span<const Row> extremum_rows() { return kRows; }

}  // namespace flambeau::ops
