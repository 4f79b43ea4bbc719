// Ops on the true places of a mask. How many there are is known to the data alone, and programs have fixed shapes: these rows are the
// ones whose shapes do not depend on it. What gives as many elements as there are true ones waits for the host first
// (device/data_dependent.cc).
#include "ops/check.h"
#include "ops/pointwise.h"
#include "ops/reduction.h"
#include "ops/scatter.h"
#include "ops/tables.h"

namespace flambeau::ops {

using hlo::Comparison;

// The place of element i among the true ones up to it: meaningful where `mask` (a vector) is true.
static Value rank_among_true(Builder& b, Value mask) {
  Value counts = running_sum(b, b.convert(mask, DType::S64), 0);
  return plus(b, counts, -1);
}

static Value true_count(Builder& b, Value mask) { return b.reduce(b.convert(mask, DType::S64), {0}, hlo::Reduction::Sum); }

Value put_at_mask(Builder& b, Value self, Value mask, int64_t first, Value values, bool accumulate) {
  for (int64_t d = 0; d < mask.rank(); ++d)
    if (d + first >= self.rank() || mask.dim(d) != self.dim(d + first))
      raise<OutOfRange>("The shape of the mask {} at index {} does not match the shape of the indexed tensor {} at index {}",
                             shape_text(mask.dims()), d, shape_text(self.dims()), d + first);
  const Dims& dims = self.dims();
  Dims before(dims.begin(), dims.begin() + first), behind(dims.begin() + first + mask.rank(), dims.end());
  Dims flat = before;
  flat.push_back(mask.elements());
  flat.insert(flat.end(), behind.begin(), behind.end());

  Value selected = b.reshape(convert(b, mask, DType::Pred), {mask.elements()});
  int64_t place = values.rank() - static_cast<int64_t>(behind.size()) - 1;  // of the true ones among the dimensions of `values`
  int64_t count = place < 0 ? 1 : values.dim(place);
  Dims result = before;
  result.push_back(count);
  result.insert(result.end(), behind.begin(), behind.end());
  if (values.rank() > static_cast<int64_t>(result.size()) || broadcast_dims(values.dims(), result) != result)
    raise<InvalidArgument>("shape mismatch: value tensor of shape {} cannot be broadcast to indexing result of shape {}", shape_text(values.dims()),
                           shape_text(result));
  Value x = b.reshape(self, flat), updates = b.broadcast(values, result);
  if (count != 1) {
    if (checks_wanted())
      check(b, compare_with(b, true_count(b, selected), static_cast<double>(count), Comparison::EQ),
            fmt::format("shape mismatch: value tensor of shape {} cannot be broadcast to indexing result: the mask has another number of true "
                        "elements than {}", shape_text(values.dims()), count));
    if (count == 0) return self;
    updates = take_rows(b, updates, first, rank_among_true(b, selected));
  } else {
    updates = b.broadcast(updates, flat);
  }
  Value where = along(b, selected, flat, first);
  return b.reshape(b.select(where, accumulate ? b.add(x, updates) : updates, x), dims);
}

namespace {

Value true_mask(Builder& b, Value x) { return b.reshape(convert(b, x, DType::Pred), {x.elements()}); }

Value nonzero_static(Builder& b, Value self, int64_t size, int64_t fill_value) {
  if (size < 0) raise<InvalidArgument>("nonzero_static: 'size' must be an non-negative integer");
  Dims result{size, self.rank()};
  if (size == 0 || self.rank() == 0) return zeros(b, DType::S64, result);
  if (self.elements() == 0) return b.broadcast(b.constant(DType::S64, fill_value), result);
  Value mask = true_mask(b, self);
  Dims all{self.elements()};
  Value index = b.iota({DType::S64, all}, 0);
  Value target = b.select(mask, rank_among_true(b, mask), b.broadcast(b.constant(DType::S64, size), all));  // the end: dropped
  Value flat = put_rows(b, filled(b, DType::S64, -1, {size}), 0, target, index, {});
  Value given = compare_with(b, flat, 0, Comparison::GE);
  std::vector<Value> coordinates;
  int64_t stride = self.elements();
  for (int64_t d : self.dims()) {
    stride /= d;
    Value at = b.divide(flat, b.broadcast(b.constant(DType::S64, stride), {size}));
    at = b.remainder(at, b.broadcast(b.constant(DType::S64, d), {size}));
    at = b.select(given, at, b.broadcast(b.constant(DType::S64, fill_value), {size}));
    coordinates.push_back(b.reshape(at, {size, 1}));
  }
  return coordinates.size() == 1 ? coordinates[0] : b.concatenate(coordinates, 1);
}

void require_mask(Value mask, std::string_view op) {
  if (mask.dtype() != DType::Pred) raise<InvalidArgument>("{} only supports boolean masks, but got mask with dtype {}", op, torch_name(mask.dtype()));
}

Value masked_scatter(Builder& b, Value self, Value mask, Value source) {
  require_mask(mask, "masked_scatter_");
  if (self.dtype() != source.dtype())
    raise<InvalidArgument>("masked_scatter: expected self and source to have same dtypes but got {} and {}", torch_name(self.dtype()),
                           torch_name(source.dtype()));
  Dims dims = broadcast_dims(self.dims(), mask.dims());
  Value x = b.reshape(b.broadcast(self, dims), {element_count(dims)}), selected = true_mask(b, b.broadcast(mask, dims));
  if (x.elements() == 0) return b.broadcast(self, dims);
  if (checks_wanted())
    check(b, compare_with(b, true_count(b, selected), static_cast<double>(source.elements()), Comparison::LE),
          "Number of elements of source < number of ones in mask");
  if (source.elements() == 0) return b.broadcast(self, dims);
  Value taken = take_rows(b, b.reshape(source, {source.elements()}), 0, rank_among_true(b, selected));
  return b.reshape(b.select(selected, taken, x), dims);
}

// The gradient of the source: what stands at the true places, then zeros.
Value masked_scatter_backward(Builder& b, Value grad, Value mask, Dims sizes) {
  Dims dims = broadcast_dims(grad.dims(), mask.dims());
  Value given = b.reshape(b.broadcast(grad, dims), {element_count(dims)}), selected = true_mask(b, b.broadcast(mask, dims));
  hlo::Type result{grad.dtype(), sizes};
  Value none = zeros(b, grad.dtype(), {result.elements()});
  if (given.elements() == 0 || result.elements() == 0) return b.reshape(none, sizes);
  Value target = b.select(selected, rank_among_true(b, selected), b.broadcast(b.constant(DType::S64, result.elements()), given.dims()));
  return b.reshape(put_rows(b, none, 0, target, given, {}), sizes);
}

// ---- histograms ------------------------------------------------------------------------------------------------------------------

Value histc(Builder& b, Value self, int64_t bins, Scalar low, Scalar high) {
  if (!is_float(self.dtype())) refuse_dtype("histogram_cpu", self.dtype());
  if (bins <= 0) raise<InvalidArgument>("torch.histogram(): bins must be > 0, but got {} for dimension 0", bins);
  DType t = compute_type(self.dtype());
  Value x = convert(b, b.reshape(self, {self.elements()}), t);
  Value least = low.as(b, t), greatest = high.as(b, t);
  if (checks_wanted())
    check(b, b.compare(least, greatest, Comparison::LE), "torch.histc: max must be larger than min");
  if (self.elements() == 0) return zeros(b, self.dtype(), {bins});
  // Equal ends stand for the data's own, and these, where they are equal, for one more to each side.
  Value same = b.compare(least, greatest, Comparison::EQ);
  least = b.select(same, b.reduce(x, {0}, hlo::Reduction::Min), least);
  greatest = b.select(same, b.reduce(x, {0}, hlo::Reduction::Max), greatest);
  same = b.compare(least, greatest, Comparison::EQ);
  least = b.select(same, plus(b, least, -1), least);
  greatest = b.select(same, plus(b, greatest, 1), greatest);
  if (checks_wanted())
    check(b, b.logical_and(b.is_finite(least), b.is_finite(greatest)), "torch.histc: range is not finite");
  auto spread_over = [&](Value v) { return b.broadcast(v, x.dims()); };
  Value distance = b.subtract(x, spread_over(least));
  Value place = b.divide(times(b, distance, static_cast<double>(bins)), spread_over(b.subtract(greatest, least)));
  Value bin = b.minimum(b.convert(place, DType::S64), b.broadcast(b.constant(DType::S64, bins - 1), x.dims()));
  Value inside = b.logical_and(b.compare(x, spread_over(least), Comparison::GE), b.compare(x, spread_over(greatest), Comparison::LE));
  bin = b.select(inside, bin, b.broadcast(b.constant(DType::S64, bins), x.dims()));
  Value counts = add_rows(b, zeros(b, DType::S64, {bins}), 0, bin, filled(b, DType::S64, 1, x.dims()));
  return convert(b, counts, self.dtype());
}

constexpr Row kRows[] = {
    row("aten::nonzero_static", lower<&nonzero_static>()),
    row("aten::masked_scatter", lower<&masked_scatter>()),
    row("aten::masked_scatter_backward", lower<&masked_scatter_backward>()),
    row("aten::histc", lower<&histc>()),
};

}  // namespace

std::span<const Row> mask_rows() { return kRows; }

}  // namespace flambeau::ops
