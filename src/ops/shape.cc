// Joining, padding, reordering, and the gradients of views.
#include <algorithm>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

// PyTorch lets an empty vector stand in a list of tensors of any rank.
bool is_legacy_empty(Value x) { return x.rank() == 1 && x.dim(0) == 0; }

Value cat(Builder& b, std::vector<Operand> xs, int64_t dim) {
  if (xs.empty()) raise<InvalidArgument>("torch.cat(): expected a non-empty list of Tensors");
  DType result = result_type(xs);
  std::vector<Value> parts;
  for (size_t i = 0; i < xs.size(); ++i) {
    Value x = xs[i].value;
    if (x.rank() == 0) raise<InvalidArgument>("zero-dimensional tensor (at position {}) cannot be concatenated", i);
    if (is_legacy_empty(x)) continue;
    parts.push_back(convert(b, x, result));
  }
  if (parts.empty()) return convert(b, xs[0].value, result);
  const Dims& first = parts[0].dims();
  int64_t d = wrap_dim(dim, parts[0].rank());
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].rank() != parts[0].rank())
      raise<InvalidArgument>("Tensors must have same number of dimensions: got {} and {}", parts[0].rank(), parts[i].rank());
    for (int64_t k = 0; k < parts[0].rank(); ++k)
      if (k != d && parts[i].dim(k) != first[static_cast<size_t>(k)])
        raise<InvalidArgument>("Sizes of tensors must match except in dimension {}. Expected size {} but got size {} for tensor number {} in "
                               "the list.", d, first[static_cast<size_t>(k)], parts[i].dim(k), i);
  }
  return parts.size() == 1 ? parts[0] : b.concatenate(parts, d);
}

Value stack(Builder& b, std::vector<Operand> xs, int64_t dim) {
  if (xs.empty()) raise<InvalidArgument>("stack expects a non-empty TensorList");
  Dims dims = xs[0].value.dims();
  int64_t d = wrap_dim(dim, xs[0].value.rank() + 1);
  DType result = result_type(xs);
  Dims row_dims = dims;
  row_dims.insert(row_dims.begin() + d, 1);
  std::vector<Value> parts;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].value.dims() != dims)
      raise<InvalidArgument>("stack expects each tensor to be equal size, but got {} at entry 0 and {} at entry {}", shape_text(dims),
                             shape_text(xs[i].value.dims()), i);
    parts.push_back(b.reshape(convert(b, xs[i].value, result), row_dims));
  }
  return parts.size() == 1 ? parts[0] : b.concatenate(parts, d);
}

Value flip(Builder& b, Value x, Dims dims) {
  Dims wrapped = wrap_dims(dims, x.rank());
  if (x.rank() == 0 || wrapped.empty()) return x;
  std::sort(wrapped.begin(), wrapped.end());
  return b.reverse(x, wrapped);
}

Value roll_dim(Builder& b, Value x, int64_t shift, int64_t dim) {
  int64_t size = x.dim(dim);
  if (size == 0) return x;
  int64_t start = (size - shift % size) % size;  // the element that becomes the first
  if (start < 0) start += size;
  if (start == 0) return x;
  Value parts[] = {b.slice_dim(x, dim, start, size), b.slice_dim(x, dim, 0, start)};
  return b.concatenate(parts, dim);
}

Value roll(Builder& b, Value x, Dims shifts, Dims dims) {
  if (shifts.empty()) raise<InvalidArgument>("`shifts` required");
  if (dims.empty() && shifts.size() == 1) return b.reshape(roll_dim(b, b.reshape(x, {x.elements()}), shifts[0], 0), x.dims());
  if (shifts.size() != dims.size())
    raise<InvalidArgument>("shifts and dimensions must align. shifts: {}, dims:{}", shifts.size(), dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    if (x.rank() == 0) raise<InvalidArgument>("Dimension specified as {} but tensor has no dimensions", dims[i]);
    x = roll_dim(b, x, shifts[i], wrap_dim(dims[i], x.rank()));
  }
  return x;
}

Value repeat(Builder& b, Value x, Dims repeats) {
  int64_t rank = static_cast<int64_t>(repeats.size()), lead = rank - x.rank();
  if (lead < 0) raise<InvalidArgument>("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  // [r0, d0, r1, d1, ...] without the factors that are 1, then merged pairwise.
  Dims wide, kept, result;
  for (int64_t i = 0; i < rank; ++i) {
    int64_t times = repeats[static_cast<size_t>(i)], size = i < lead ? 1 : x.dim(i - lead);
    if (times < 0) raise<InvalidArgument>("Trying to create tensor with negative dimension {}: {}", times * size, shape_text(repeats));
    if (times != 1) wide.push_back(times);
    if (i >= lead) {
      kept.push_back(static_cast<int64_t>(wide.size()));
      wide.push_back(size);
    }
    result.push_back(times * size);
  }
  return b.reshape(b.broadcast_in_dim(x, wide, kept), result);
}

Value constant_pad(Builder& b, Value x, Dims pad, Scalar value) {
  if (pad.size() % 2 != 0) raise<InvalidArgument>("Length of pad must be even but instead it equals {}", pad.size());
  int64_t padded = static_cast<int64_t>(pad.size()) / 2;
  if (padded > x.rank())
    raise<InvalidArgument>("Length of pad should be no more than twice the number of dimensions of the input. Pad length is {} while the "
                           "input has {} dimensions.", pad.size(), x.rank());
  auto n = static_cast<size_t>(x.rank());
  Dims low(n, 0), high(n, 0);
  for (size_t k = 0; k < static_cast<size_t>(padded); ++k) {  // from the last dimension on
    size_t d = n - 1 - k;
    low[d] = pad[2 * k];
    high[d] = pad[2 * k + 1];
    int64_t size = x.dims()[d] + low[d] + high[d];
    if (size < 0)
      raise<InvalidArgument>("The input size {}, plus negative padding {} and {} resulted in a negative output size, which is invalid. "
                             "Check dimension {} of your input.", x.dims()[d], low[d], high[d], d);
  }
  return b.pad(x, value.as(b, x.dtype()), low, high);
}

// ---- gradients of views: zeros with the gradient laid where the view was ------------------------------------------------------------

Value zero_of(Builder& b, Value x) { return b.constant(x.dtype(), 0); }

Value slice_backward(Builder& b, Value grad, Dims sizes, int64_t dim, int64_t start, int64_t end, int64_t step) {
  int64_t rank = static_cast<int64_t>(sizes.size()), d = wrap_dim(dim, rank);
  auto at = static_cast<size_t>(d);
  int64_t size = sizes[at];
  if (step <= 0) raise<InvalidArgument>("slice step must be positive");
  auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  start = clip(start);
  end = std::max(clip(end), start);
  int64_t length = (end - start + step - 1) / step;
  if (grad.dims() != replaced(sizes, d, length))
    raise<InvalidArgument>("The size of the gradient {} does not match the slice of {}", shape_text(grad.dims()), shape_text(sizes));
  if (length == 0) return zeros(b, grad.dtype(), sizes);
  Dims low(sizes.size(), 0), high(sizes.size(), 0), interior(sizes.size(), 0);
  low[at] = start;
  interior[at] = length > 1 ? step - 1 : 0;
  high[at] = size - start - ((length - 1) * step + 1);
  return b.pad(grad, zero_of(b, grad), low, high, interior);
}

Value select_backward(Builder& b, Value grad, Dims sizes, int64_t dim, int64_t index) {
  int64_t d = wrap_dim(dim, static_cast<int64_t>(sizes.size()));
  auto at = static_cast<size_t>(d);
  if (sizes.empty()) raise<InvalidArgument>("select() cannot be applied to a 0-dim tensor.");
  if (index < -sizes[at] || index >= sizes[at])
    raise<OutOfRange>("select(): index {} out of range for tensor of size {} at dimension {}", index, shape_text(sizes), d);
  if (index < 0) index += sizes[at];
  Dims low(sizes.size(), 0), high(sizes.size(), 0);
  low[at] = index;
  high[at] = sizes[at] - index - 1;
  return b.pad(b.reshape(grad, replaced(sizes, d, 1)), zero_of(b, grad), low, high);
}

Value diagonal_backward(Builder& b, Value grad, Dims sizes, int64_t offset, int64_t dim1, int64_t dim2) {
  int64_t rank = static_cast<int64_t>(sizes.size());
  int64_t row = wrap_dim(dim1, rank), column = wrap_dim(dim2, rank);
  if (row == column) raise<InvalidArgument>("diagonal dimensions cannot be identical {}, {}", dim1, dim2);
  // The gradient's dimensions are the others in order, then the diagonal. Element k of it lies at row k + low, column k + low + offset.
  int64_t m = sizes[static_cast<size_t>(row)], n = sizes[static_cast<size_t>(column)];
  int64_t first_row = std::max<int64_t>(-offset, 0);
  int64_t length = std::max<int64_t>(0, std::min(m - first_row, n - std::max<int64_t>(offset, 0)));
  if (length == 0) return zeros(b, grad.dtype(), sizes);
  Dims places;
  for (int64_t d = 0; d < rank; ++d)
    if (d != row && d != column) places.push_back(d);
  places.push_back(row);
  // Along the rows: padded to all rows, then the same in every column, kept where column - row == offset.
  Dims low(static_cast<size_t>(grad.rank()), 0), high = low;
  low.back() = first_row;
  high.back() = m - first_row - length;
  // broadcast_in_dim wants increasing places on some plugins only; a transpose first suits all.
  Dims order(places.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return places[static_cast<size_t>(i)] < places[static_cast<size_t>(j)]; });
  Value padded = b.transpose(b.pad(grad, zero_of(b, grad), low, high), order);
  std::sort(places.begin(), places.end());
  Value everywhere = b.broadcast_in_dim(padded, sizes, places);
  Value on_diagonal = b.compare(b.iota({DType::S64, sizes}, column),
                                b.add(b.iota({DType::S64, sizes}, row), b.broadcast(b.constant(DType::S64, offset), sizes)),
                                hlo::Comparison::EQ);
  return b.select(on_diagonal, everywhere, zeros(b, grad.dtype(), sizes));
}

// Windows of `size` every `step` along dim, the window as the last dimension. Element k of every window is one strided slice: their
// sum over k needs `size` pads and no scatter.
Value unfold_backward(Builder& b, Value grad, Dims sizes, int64_t dim, int64_t size, int64_t step) {
  int64_t rank = static_cast<int64_t>(sizes.size());
  if (rank == 0) return b.reshape(b.reduce(grad, {0}, hlo::Reduction::Sum), {});
  int64_t d = wrap_dim(dim, rank), last = grad.rank() - 1, windows = grad.dim(d);
  auto at = static_cast<size_t>(d);
  DType compute = compute_type(grad.dtype());
  Value sum = zeros(b, compute, sizes);
  if (windows == 0 || grad.elements() == 0) return convert(b, sum, grad.dtype());
  for (int64_t k = 0; k < size; ++k) {
    Value part = b.reshape(b.slice_dim(grad, last, k, k + 1), erased(grad.dims(), last));
    Dims low(sizes.size(), 0), high(sizes.size(), 0), interior(sizes.size(), 0);
    low[at] = k;
    interior[at] = windows > 1 ? step - 1 : 0;
    high[at] = sizes[at] - k - ((windows - 1) * step + 1);
    Value placed = b.pad(convert(b, part, compute), b.constant(compute, 0), low, high, interior);
    sum = k == 0 ? placed : b.add(sum, placed);
  }
  return convert(b, sum, grad.dtype());
}

constexpr Row kRows[] = {
    row("aten::cat", lower<&cat>()),
    row("aten::stack", lower<&stack>()),
    row("aten::flip", lower<&flip>()),
    row("aten::roll", lower<&roll>()),
    row("aten::repeat", lower<&repeat>()),
    row("aten::constant_pad_nd", lower<&constant_pad>()),
    row("aten::slice_backward", lower<&slice_backward>()),
    row("aten::select_backward", lower<&select_backward>()),
    row("aten::diagonal_backward", lower<&diagonal_backward>()),
    row("aten::unfold_backward", lower<&unfold_backward>()),
};

}  // namespace

std::span<const Row> shape_rows() { return kRows; }

}  // namespace flambeau::ops
