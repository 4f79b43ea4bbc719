// Max and average pooling over the trailing dimensions, with windows of one size or adaptive ones, and their gradients;
// unpooling.
//
// Indices count within a plane, the trailing dimensions flattened. The greatest element of a window is the first one, but
// the last NaN if there is any, as in PyTorch. float16 and bfloat16 are summed in float32 and rounded once.
#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "ops/bins.h"
#include "ops/check.h"
#include "ops/pointwise.h"
#include "ops/scatter.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using hlo::Reduction;
using hlo::Window;

Dims trailing(const Dims& dims, int64_t n) { return {dims.end() - n, dims.end()}; }

// `dims` with other trailing sizes.
Dims resized(Dims dims, const Dims& sizes) {
  std::copy(sizes.begin(), sizes.end(), dims.end() - static_cast<std::ptrdiff_t>(sizes.size()));
  return dims;
}

// Leading dimensions of `rank` have nothing done to them.
Dims after_leading(int64_t rank, int64_t value, const Dims& tail) {
  Dims all(at(rank), value);
  return resized(std::move(all), tail);
}

// The place of each element in its plane, in the shape of `dims`.
Value places(Builder& b, const Dims& dims, int64_t n, DType dtype) {
  Dims plane = trailing(dims, n), order = range(static_cast<int64_t>(dims.size()));
  Value flat = b.iota({dtype, {element_count(plane)}}, 0);
  return b.broadcast_in_dim(b.reshape(flat, plane), dims, trailing(order, n));
}

DType place_type(const Dims& dims, int64_t n) {
  return element_count(trailing(dims, n)) < std::numeric_limits<int32_t>::max() ? DType::S32 : DType::S64;
}

// ---- windows of one size ------------------------------------------------------------------------------------------------

// How windows lie over the last n dimensions of a shape, one number a dimension.
struct Windows {
  Dims size, stride, padding, dilation;
  Dims in, out;

  int64_t n() const { return static_cast<int64_t>(size.size()); }
  int64_t extent(size_t i) const { return (size[i] - 1) * dilation[i] + 1; }
  Dims result(const Dims& dims) const { return resized(dims, out); }
  Window window(int64_t rank) const {
    Dims high;
    for (size_t i = 0; i < size.size(); ++i)
      high.push_back(std::max<int64_t>(0, (out[i] - 1) * stride[i] + extent(i) - in[i] - padding[i]));
    return {.size = after_leading(rank, 1, size),
            .strides = after_leading(rank, 1, stride),
            .window_dilations = after_leading(rank, 1, dilation),
            .padding_low = after_leading(rank, 0, padding),
            .padding_high = after_leading(rank, 0, high)};
  }
};

Dims one_each(std::string_view op, std::string_view name, const Dims& given, int64_t n) {
  if (given.size() == 1) return Dims(at(n), given[0]);
  if (static_cast<int64_t>(given.size()) != n)
    raise<InvalidArgument>("{}: {} must either be a single int, or a tuple of {} ints", op, name, n);
  return given;
}

void check_planes(std::string_view op, const Dims& dims, int64_t n) {
  bool ranks = static_cast<int64_t>(dims.size()) == n + 1 || static_cast<int64_t>(dims.size()) == n + 2;
  bool sizes = std::none_of(dims.end() - std::min<std::ptrdiff_t>(n + 1, static_cast<std::ptrdiff_t>(dims.size())),
                            dims.end(), [](int64_t d) { return d == 0; });
  if (!ranks || !sizes)
    raise<InvalidArgument>(
        "{}: Expected {}D or {}D (batch mode) tensor with optional 0 dim batch size for input, but got:{}", op, n + 1, n + 2,
        shape_text(dims));
}

Windows windows_over(std::string_view op, const Dims& dims, int64_t n, const Dims& size, const Dims& stride,
                     const Dims& padding, const Dims& dilation, bool ceil_mode) {
  Windows w{one_each(op, "kernel_size", size, n),  {}, one_each(op, "padding", padding, n),
            one_each(op, "dilation", dilation, n), {}, {}};
  w.stride = stride.empty() ? w.size : one_each(op, "stride", stride, n);
  auto all_positive = [](const Dims& d) { return std::all_of(d.begin(), d.end(), [](int64_t v) { return v > 0; }); };
  if (!all_positive(w.size))
    raise<InvalidArgument>("kernel size should be greater than zero, but got {}", shape_text(w.size));
  if (!all_positive(w.stride))
    raise<InvalidArgument>("stride should be greater than zero, but got {}", shape_text(w.stride));
  if (!all_positive(w.dilation))
    raise<InvalidArgument>("dilation should be greater than zero, but got {}", shape_text(w.dilation));
  check_planes(op, dims, n);
  w.in = trailing(dims, n);
  for (size_t i = 0; i < at(n); ++i) {
    int64_t pad = w.padding[i], stride_i = w.stride[i], in = w.in[i];
    if (pad < 0) raise<InvalidArgument>("pad must be non-negative, but got pad: {}", pad);
    if (pad > w.extent(i) / 2 || (op.starts_with("avg") && pad > w.size[i] / 2))
      raise<InvalidArgument>(
          "pad should be at most half of effective kernel size, but got pad={}, kernel_size={} and dilation={}", pad,
          w.size[i], w.dilation[i]);
    int64_t room = in + 2 * pad - w.extent(i) + (ceil_mode ? stride_i - 1 : 0);
    int64_t out = room < 0 ? 0 : room / stride_i + 1;
    if (ceil_mode && (out - 1) * stride_i >= in + pad) --out;  // the last window starts within the input or its left padding
    w.out.push_back(out);
  }
  if (!all_positive(w.out))
    raise<InvalidArgument>("Given input size: ({}). Calculated output size: ({}). Output size is too small",
                           fmt::join(w.in, "x"), fmt::join(w.out, "x"));
  return w;
}

// ---- the greatest element and its place ---------------------------------------------------------------------------------

// Of (value, place) pairs the one that counts. Associative and commutative, so in whichever order a window is read.
std::vector<Value> greater(Builder& b, std::span<const Value> p) {
  Value best = p[0], best_place = p[1], x = p[2], place = p[3];
  Value earlier = b.compare(place, best_place, Comparison::LT), tie = b.compare(x, best, Comparison::EQ);
  Value take = b.logical_or(b.compare(x, best, Comparison::GT), b.logical_and(tie, earlier));
  if (is_float(x.dtype())) {
    Value nan = is_nan(b, x), best_nan = is_nan(b, best);
    take = b.logical_or(take, b.logical_and(nan, b.logical_or(b.logical_not(best_nan), b.logical_not(earlier))));
  }
  return {b.select(take, x, best), b.select(take, place, best_place)};
}

std::array<Value, 2> start_of_greater(Builder& b, DType dtype, DType place) { return {b.lowest(dtype), b.highest(place)}; }

void refuse_unordered(std::string_view op, DType dtype) {
  if (dtype == DType::Pred || is_complex(dtype)) refuse_dtype(op, dtype);
}

template <int64_t n>
constexpr std::string_view max_name() { return n == 2 ? "max_pool2d" : "max_pool3d"; }

template <int64_t n>
std::array<Value, 2> max_pool(Builder& b, Value x, Dims size, Dims stride, Dims padding, Dims dilation, bool ceil_mode) {
  refuse_unordered(max_name<n>(), x.dtype());
  Windows w = windows_over(max_name<n>(), x.dims(), n, size, stride, padding, dilation, ceil_mode);
  if (x.elements() == 0) return {zeros(b, x.dtype(), w.result(x.dims())), zeros(b, DType::S64, w.result(x.dims()))};
  Value place = places(b, x.dims(), n, place_type(x.dims(), n));
  auto best =
      b.reduce_window(std::array{x, place}, start_of_greater(b, x.dtype(), place.dtype()), w.window(x.rank()), greater);
  return {best[0], b.convert(best[1], DType::S64)};
}

// grad added to zeros of shape `dims` at its indices, plane by plane; replaced instead of added without `combine`.
Value put_planes(Builder& b, Value grad, Value indices, const Dims& dims, int64_t n, std::optional<Reduction> combine) {
  int64_t plane = element_count(trailing(dims, n)), count = element_count(trailing(grad.dims(), n)),
          planes = count ? grad.elements() / count : 0;
  hlo::ScatterDims scatter;
  scatter.inserted_window_dims = scatter.scatter_dims_to_operand_dims = {1};
  scatter.input_batching_dims = scatter.scatter_indices_batching_dims = {0};
  scatter.index_vector_dim = 2;
  Value flat = scatter_into(b, zeros(b, grad.dtype(), {planes, plane}), b.reshape(indices, {planes, count}),
                            b.reshape(grad, {planes, count}), scatter, combine);
  return b.reshape(flat, dims);
}

// Every element of the last n dimensions `times` over: [.., o] -> [.., o * times].
Value repeated(Builder& b, Value x, const Dims& times) {
  Dims dims, kept;
  for (int64_t d = 0; d < x.rank(); ++d) {
    kept.push_back(static_cast<int64_t>(dims.size()));
    dims.push_back(x.dim(d));
    int64_t i = d - (x.rank() - static_cast<int64_t>(times.size()));
    if (i >= 0) dims.push_back(times[at(i)]);
  }
  Dims joined = x.dims();
  for (size_t i = 0; i < times.size(); ++i) joined[joined.size() - times.size() + i] *= times[i];
  return b.reshape(b.broadcast_in_dim(x, dims, kept), joined);
}

// The gradient of each input is that of the windows whose index names it. An input lies in at most extent / stride windows a
// dimension, rounded up: the one that starts last before it, if the pool reaches that far, and those before that. XLA adds these up in
// one pass without a scatter.
Value from_windows(Builder& b, Value grad, Value indices, const Windows& w, const Dims& dims) {
  Dims counts;
  for (size_t i = 0; i < w.size.size(); ++i)
    counts.push_back(std::min((w.in[i] - 1 + w.padding[i]) / w.stride[i] + 1, (w.extent(i) + w.stride[i] - 1) / w.stride[i]));
  constexpr int64_t kManyTerms = 64;
  if (element_count(counts) > kManyTerms) return put_planes(b, grad, indices, dims, w.n(), Reduction::Sum);
  DType place = place_type(dims, w.n());
  Value wide = repeated(b, convert(b, grad, compute_type(grad.dtype())), w.stride),
        named = repeated(b, b.convert(indices, place), w.stride);
  Value zero = b.constant(wide.dtype(), 0), nowhere = b.constant(place, -1), own = places(b, dims, w.n(), place),
        total = zeros(b, wide.dtype(), dims);
  for (int64_t term = 0; term < element_count(counts); ++term) {
    Dims low, high;
    int64_t rest = term;
    for (size_t i = counts.size(); i-- > 0; rest /= counts[i])
      low.insert(low.begin(), rest % counts[i] * w.stride[i] - w.padding[i]);
    for (size_t i = 0; i < low.size(); ++i) high.push_back(w.in[i] - w.out[i] * w.stride[i] - low[i]);
    low = after_leading(grad.rank(), 0, low), high = after_leading(grad.rank(), 0, high);
    Value hit = b.compare(b.pad(named, nowhere, low, high), own, Comparison::EQ);
    total = b.add(total, b.select(hit, b.pad(wide, zero, low, high), zeros(b, wide.dtype(), dims)));
  }
  return convert(b, total, grad.dtype());
}

void check_gradient(std::string_view op, const Dims& grad, const Dims& expected) {
  if (grad != expected)
    raise<InvalidArgument>("{}: expected grad_output of shape {}, got {}", op, shape_text(expected), shape_text(grad));
}

template <int64_t n>
Value max_pool_backward(Builder& b, Value grad, Value x, Dims size, Dims stride, Dims padding, Dims dilation, bool ceil_mode,
                        Value indices) {
  Windows w = windows_over(max_name<n>(), x.dims(), n, size, stride, padding, dilation, ceil_mode);
  check_gradient("max_pool_backward", grad.dims(), w.result(x.dims()));
  check_gradient("max_pool_backward", indices.dims(), w.result(x.dims()));
  if (x.elements() == 0) return zeros(b, x.dtype(), x.dims());
  return from_windows(b, grad, indices, w, x.dims());
}

// ---- averages -----------------------------------------------------------------------------------------------------------

// x divided by the product of one number a place along each of the last dimensions.
Value divided(Builder& b, Value x, const std::vector<Dims>& numbers) {
  Value divisor;
  for (size_t i = 0; i < numbers.size(); ++i) {
    Value factor = along(b, b.convert(b.index_vector(numbers[i]), x.dtype()), x.dims(),
                         x.rank() - static_cast<int64_t>(numbers.size() - i));
    divisor = divisor ? b.multiply(divisor, factor) : factor;
  }
  return b.divide(x, divisor);
}

// How many elements each window counts: its padding too, if asked, but nothing beyond the padding.
std::vector<Dims> counted(const Windows& w, bool count_include_pad) {
  std::vector<Dims> counts;
  for (size_t i = 0; i < w.size.size(); ++i) {
    counts.emplace_back();
    for (int64_t o = 0; o < w.out[i]; ++o) {
      int64_t begin = o * w.stride[i] - w.padding[i], end = std::min(begin + w.size[i], w.in[i] + w.padding[i]);
      counts.back().push_back(count_include_pad ? end - begin : std::min(end, w.in[i]) - std::max<int64_t>(begin, 0));
    }
  }
  return counts;
}

Value averaged(Builder& b, Value sums, const Windows& w, bool count_include_pad, std::optional<int64_t> divisor) {
  if (!divisor) return divided(b, sums, counted(w, count_include_pad));
  return b.divide(sums, b.broadcast(b.constant(sums.dtype(), *divisor), sums.dims()));
}

void check_divisor(std::optional<int64_t> divisor) {
  if (divisor == 0) raise<InvalidArgument>("divisor must be not zero");
}

template <int64_t n>
constexpr std::string_view average_name() { return n == 2 ? "avg_pool2d" : "avg_pool3d"; }

template <int64_t n>
Windows average_windows(Value x, const Dims& size, const Dims& stride, const Dims& padding, bool ceil_mode,
                        std::optional<int64_t> divisor) {
  if (!is_float(x.dtype()) && x.dtype() != DType::S64) refuse_dtype(average_name<n>(), x.dtype());
  check_divisor(divisor);
  return windows_over(average_name<n>(), x.dims(), n, size, stride, padding, {1}, ceil_mode);
}

template <int64_t n>
Value avg_pool(Builder& b, Value x, Dims size, Dims stride, Dims padding, bool ceil_mode, bool count_include_pad,
               std::optional<int64_t> divisor) {
  Windows w = average_windows<n>(x, size, stride, padding, ceil_mode, divisor);
  if (x.elements() == 0) return zeros(b, x.dtype(), w.result(x.dims()));
  Value sums = b.reduce_window(convert(b, x, compute_type(x.dtype())), w.window(x.rank()), Reduction::Sum);
  return convert(b, averaged(b, sums, w, count_include_pad, divisor), x.dtype());
}

// Each input gets the sum over the windows that hold it: a window of the same size over gradients that lie a stride apart.
template <int64_t n>
Value avg_pool_backward(Builder& b, Value grad, Value x, Dims size, Dims stride, Dims padding, bool ceil_mode,
                        bool count_include_pad, std::optional<int64_t> divisor) {
  Windows w = average_windows<n>(x, size, stride, padding, ceil_mode, divisor);
  check_gradient("avg_pool_backward", grad.dims(), w.result(x.dims()));
  if (x.elements() == 0) return zeros(b, x.dtype(), x.dims());
  Dims low, high;
  for (size_t i = 0; i < at(n); ++i) {
    low.push_back(w.size[i] - 1 - w.padding[i]);
    high.push_back(w.in[i] - 1 + w.padding[i] - (w.out[i] - 1) * w.stride[i]);
  }
  Window window{.size = after_leading(x.rank(), 1, w.size),
                .base_dilations = after_leading(x.rank(), 1, w.stride),
                .padding_low = after_leading(x.rank(), 0, low),
                .padding_high = after_leading(x.rank(), 0, high)};
  Value shares = averaged(b, convert(b, grad, compute_type(grad.dtype())), w, count_include_pad, divisor);
  return convert(b, b.reduce_window(shares, window, Reduction::Sum), x.dtype());
}

// ---- adaptive windows ---------------------------------------------------------------------------------------------------

void check_adaptive(std::string_view op, Value x, const Dims& size, int64_t n) {
  if (!is_float(x.dtype())) refuse_dtype(op, x.dtype());
  if (static_cast<int64_t>(size.size()) != n) raise<InvalidArgument>("{}: output_size must be {}", op, n);
  for (int64_t d : size)
    if (d < 0)
      raise<InvalidArgument>("{}: elements of output_size must be greater than or equal to 0 but received {}", op,
                             shape_text(size));
  check_planes(op, x.dims(), n);
}

template <int64_t n>
Value adaptive_avg_pool(Builder& b, Value x, Dims size) {
  check_adaptive("adaptive_avg_pool", x, size, n);
  if (element_count(resized(x.dims(), size)) == 0) return zeros(b, x.dtype(), resized(x.dims(), size));
  Value sums = convert(b, x, compute_type(x.dtype()));
  std::vector<Dims> lengths;
  for (int64_t i = 0; i < n; ++i) {
    int64_t dim = x.rank() - n + i;
    Bins bins = adaptive_bins(x.dim(dim), size[at(i)]);
    sums = bin_sums(b, sums, dim, bins);
    lengths.push_back(bins.lengths());
  }
  return convert(b, divided(b, sums, lengths), x.dtype());
}

template <int64_t n>
Value adaptive_avg_pool_backward(Builder& b, Value grad, Value x) {
  Dims size = trailing(grad.dims(), n);
  check_adaptive("adaptive_avg_pool_backward", x, size, n);
  check_gradient("adaptive_avg_pool_backward", grad.dims(), resized(x.dims(), size));
  if (element_count(grad.dims()) == 0) return zeros(b, x.dtype(), x.dims());
  std::vector<Dims> lengths;
  for (int64_t i = 0; i < n; ++i) lengths.push_back(adaptive_bins(x.dim(x.rank() - n + i), size[at(i)]).lengths());
  Value shares = divided(b, convert(b, grad, compute_type(grad.dtype())), lengths);
  for (int64_t i = 0; i < n; ++i) {
    int64_t dim = x.rank() - n + i;
    shares = bin_sums(b, shares, dim, holders(adaptive_bins(x.dim(dim), size[at(i)]), x.dim(dim)));
  }
  return convert(b, shares, x.dtype());
}

template <int64_t n>
std::array<Value, 2> adaptive_max_pool(Builder& b, Value x, Dims size) {
  check_adaptive("adaptive_max_pool", x, size, n);
  Dims result = resized(x.dims(), size);
  if (element_count(result) == 0) return {zeros(b, x.dtype(), result), zeros(b, DType::S64, result)};
  Value best = x, place = places(b, x.dims(), n, place_type(x.dims(), n));
  const auto start = start_of_greater(b, x.dtype(), place.dtype());
  for (int64_t i = 0; i < n; ++i) {
    int64_t dim = x.rank() - n + i;
    Bins bins = adaptive_bins(x.dim(dim), size[at(i)]);
    const std::array candidates{in_bins(b, best, dim, bins, start[0]), in_bins(b, place, dim, bins, start[1])};
    auto found = b.reduce(candidates, start, {dim + 1}, greater);
    best = found[0], place = found[1];
  }
  return {best, b.convert(place, DType::S64)};
}

template <int64_t n>
Value adaptive_max_pool_backward(Builder& b, Value grad, Value x, Value indices) {
  Dims size = trailing(grad.dims(), n), in = trailing(x.dims(), n), stride;
  check_adaptive("adaptive_max_pool_backward", x, size, n);
  check_gradient("adaptive_max_pool_backward", grad.dims(), resized(x.dims(), size));
  check_gradient("adaptive_max_pool_backward", indices.dims(), grad.dims());
  if (grad.elements() == 0) return zeros(b, x.dtype(), x.dims());
  for (size_t i = 0; i < at(n); ++i)
    if (in[i] % size[i] == 0) stride.push_back(in[i] / size[i]);
  if (static_cast<int64_t>(stride.size()) < n) return put_planes(b, grad, indices, x.dims(), n, Reduction::Sum);
  return from_windows(b, grad, indices, {stride, stride, Dims(at(n), 0), Dims(at(n), 1), in, size}, x.dims());
}

// ---- unpooling ----------------------------------------------------------------------------------------------------------

template <int64_t n>
Value unpool(Builder& b, Value x, Value indices, const Dims& size) {
  if (indices.dtype() != DType::S64)
    raise<InvalidArgument>("elements in indices should be type int64 but got: {}", torch_name(indices.dtype()));
  if (static_cast<int64_t>(size.size()) != n)
    raise<InvalidArgument>("There should be exactly {} elements in output_size, but got {} elements", n, size.size());
  if (x.rank() != n + 1 && x.rank() != n + 2)
    raise<InvalidArgument>(
        "Input to max_unpooling{0}d should be a {1}d or {2}d Tensor, but got a tensor with {3} dimensions", n, n + 1, n + 2,
        x.rank());
  if (x.dims() != indices.dims())
    raise<InvalidArgument>("Expected shape of indices to be: {} but got: {}", shape_text(x.dims()),
                           shape_text(indices.dims()));
  if (!is_float(x.dtype())) refuse_dtype("max_unpool", x.dtype());
  Dims result = resized(x.dims(), size);
  if (x.elements() == 0) return zeros(b, x.dtype(), result);
  check_index(b, indices, element_count(size),
              fmt::format("Found an invalid max index (output volumes are of size {})", fmt::join(size, "x")), false, Raises::RuntimeError);
  return put_planes(b, x, indices, result, n, {});
}

Value max_unpool2d(Builder& b, Value x, Value indices, Dims size) { return unpool<2>(b, x, indices, size); }
Value max_unpool3d(Builder& b, Value x, Value indices, Dims size, Dims stride, Dims) {
  for (int64_t s : stride)
    if (s <= 0) raise<InvalidArgument>("strides should be greater than zero, but got stride: {}", shape_text(stride));
  return unpool<3>(b, x, indices, size);
}

constexpr Row kRows[] = {
    row("aten::max_pool2d_with_indices", lower<&max_pool<2>>()),
    row("aten::max_pool2d_with_indices_backward", lower<&max_pool_backward<2>>()),
    row("aten::max_pool3d_with_indices", lower<&max_pool<3>>()),
    row("aten::max_pool3d_with_indices_backward", lower<&max_pool_backward<3>>()),
    row("aten::avg_pool2d", lower<&avg_pool<2>>()),
    row("aten::avg_pool2d_backward", lower<&avg_pool_backward<2>>()),
    row("aten::avg_pool3d", lower<&avg_pool<3>>()),
    row("aten::avg_pool3d_backward", lower<&avg_pool_backward<3>>()),
    row("aten::_adaptive_avg_pool2d", lower<&adaptive_avg_pool<2>>()),
    row("aten::_adaptive_avg_pool2d_backward", lower<&adaptive_avg_pool_backward<2>>()),
    row("aten::_adaptive_avg_pool3d", lower<&adaptive_avg_pool<3>>()),
    row("aten::_adaptive_avg_pool3d_backward", lower<&adaptive_avg_pool_backward<3>>()),
    row("aten::adaptive_max_pool2d", lower<&adaptive_max_pool<2>>()),
    row("aten::adaptive_max_pool2d_backward", lower<&adaptive_max_pool_backward<2>>()),
    row("aten::adaptive_max_pool3d", lower<&adaptive_max_pool<3>>()),
    row("aten::adaptive_max_pool3d_backward", lower<&adaptive_max_pool_backward<3>>()),
    row("aten::max_unpool2d", lower<&max_unpool2d>()),
    row("aten::max_unpool3d", lower<&max_unpool3d>()),
};

}  // namespace

std::span<const Row> pooling_rows() { return kRows; }

}  // namespace flambeau::ops
