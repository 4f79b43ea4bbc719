// Resampling of the trailing dimensions: nearest and linear, and their gradients.
//
// Where each result reads is computed here, in the arithmetic of PyTorch's kernels (float32, double for float64), so
// programs hold tables of indices and weights. float16 and bfloat16 interpolate in float32 and are rounded once.
#include <algorithm>
#include <cmath>

#include "ops/bins.h"
#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using Scale = std::optional<double>;

enum class Rounding {
  Floor,
  Exact
};  // upsample_nearest, and _upsample_nearest_exact, which reads what lies nearest to the centre

// The element that each of `out` results reads.
Dims nearest(Rounding rounding, int64_t in, int64_t out, Scale scale) {
  float step = scale && *scale > 0 ? static_cast<float>(1.0 / *scale) : static_cast<float>(in) / static_cast<float>(out);
  Dims indices;
  for (int64_t o = 0; o < out; ++o) {
    float place = rounding == Rounding::Exact ? (static_cast<float>(o) + 0.5f) * step : static_cast<float>(o) * step;
    int64_t i = std::min(static_cast<int64_t>(std::floor(place)), in - 1);
    if (rounding == Rounding::Floor && out == in) i = o;
    if (rounding == Rounding::Floor && out == 2 * in) i = o / 2;
    indices.push_back(i);
  }
  return indices;
}

// Two neighbours of each result and the weight of the second.
struct Neighbours {
  Dims first, second;
  std::vector<double> weight;
};

template <class T>
Neighbours neighbours(int64_t in, int64_t out, bool align_corners, Scale scale) {
  T step = align_corners ? (out > 1 ? static_cast<T>(in - 1) / static_cast<T>(out - 1) : T{0})
                         : (scale && *scale > 0 ? static_cast<T>(1.0 / *scale) : static_cast<T>(in) / static_cast<T>(out));
  Neighbours n;
  for (int64_t o = 0; o < out; ++o) {
    T place = align_corners ? step * static_cast<T>(o) : std::max(T{0}, step * (static_cast<T>(o) + T{0.5}) - T{0.5});
    if (in == out) place = static_cast<T>(o);
    int64_t i = std::min(static_cast<int64_t>(place), in - 1);
    n.first.push_back(i);
    n.second.push_back(in == out ? i : std::min(i + 1, in - 1));  // of weight 0, which an infinite neighbour would make NaN
    n.weight.push_back(std::clamp<double>(static_cast<double>(place - static_cast<T>(i)), 0, 1));
  }
  return n;
}

Neighbours neighbours(DType dtype, int64_t in, int64_t out, bool align_corners, Scale scale) {
  return dtype == DType::F64 ? neighbours<double>(in, out, align_corners, scale)
                             : neighbours<float>(in, out, align_corners, scale);
}

// Weights along dimension `dim` of `dims`, of the first neighbours and of the second.
std::array<Value, 2> weights(Builder& b, const Neighbours& n, DType dtype, const Dims& dims, int64_t dim) {
  Value second = convert(b, b.literal({DType::F64, {static_cast<int64_t>(n.weight.size())}}, n.weight.data()), dtype);
  return {along(b, b.subtract(constant_like(b, second, 1), second), dims, dim), along(b, second, dims, dim)};
}

template <int64_t n>
void check_input(const Dims& dims, const Dims& size) {
  if (static_cast<int64_t>(size.size()) != n)
    raise<InvalidArgument>("It is expected output_size equals to {}, but got size {}", n, size.size());
  if (static_cast<int64_t>(dims.size()) != n + 2)
    raise<InvalidArgument>("It is expected input_size equals to {}, but got size {}", n + 2, dims.size());
  for (size_t i = 0; i < at(n); ++i)
    if (dims[i + 2] <= 0 || size[i] <= 0)
      raise<InvalidArgument>("Input and output sizes should be greater than 0, but got input {} and output {}",
                             shape_text(dims), shape_text(size));
  if (dims[1] == 0)
    raise<InvalidArgument>("Non-empty data tensor expected but got a tensor with sizes {}", shape_text(dims));
}

template <int64_t n>
void check_gradient(Value grad, const Dims& dims, const Dims& size) {
  check_input<n>(dims, size);
  Dims expected = size;
  expected.insert(expected.begin(), dims.begin(), dims.begin() + 2);
  if (grad.dims() != expected)
    raise<InvalidArgument>(
        "Expected grad_output to have the same shape as output; output.size = {} but got grad_output.size = {}",
        shape_text(expected), shape_text(grad.dims()));
}

void check_type(Value x) {
  if (!is_float(x.dtype()) && x.dtype() != DType::U8) refuse_dtype("upsample", x.dtype());
}

template <Rounding rounding, int64_t n>
Value nearest_of(Builder& b, Value x, const Dims& size, const std::array<Scale, n>& scales) {
  check_type(x);
  check_input<n>(x.dims(), size);
  for (int64_t i = 0; i < n; ++i) {
    Dims indices = nearest(rounding, x.dim(i + 2), size[at(i)], scales[at(i)]);
    if (indices != range(x.dim(i + 2))) x = take_rows(b, x, i + 2, b.index_vector(indices));
  }
  return x;
}

// Each input gets the sum of the results that read it: neighbours, since indices do not decrease.
template <Rounding rounding, int64_t n>
Value nearest_gradient(Builder& b, Value grad, const Dims& size, const Dims& dims, const std::array<Scale, n>& scales) {
  check_type(grad);
  check_gradient<n>(grad, dims, size);
  Value total = convert(b, grad, compute_type(grad.dtype()));
  for (int64_t i = 0; i < n && grad.elements() > 0; ++i)
    total = bin_sums(b, total, i + 2,
                     places_of(nearest(rounding, dims[at(i + 2)], size[at(i)], scales[at(i)]), dims[at(i + 2)]));
  return grad.elements() > 0 ? convert(b, total, grad.dtype()) : zeros(b, grad.dtype(), dims);
}

template <int64_t n>
Value linear_of(Builder& b, Value x, const Dims& size, bool align_corners, const std::array<Scale, n>& scales) {
  if (!is_float(x.dtype())) refuse_dtype("upsample_linear", x.dtype());
  check_input<n>(x.dims(), size);
  Value y = convert(b, x, compute_type(x.dtype()));
  for (int64_t i = 0; i < n; ++i) {
    int64_t dim = i + 2;
    Neighbours around = neighbours(y.dtype(), y.dim(dim), size[at(i)], align_corners, scales[at(i)]);
    auto [first, second] = weights(b, around, y.dtype(), replaced(y.dims(), dim, size[at(i)]), dim);
    y = b.add(b.multiply(first, take_rows(b, y, dim, b.index_vector(around.first))),
              b.multiply(second, take_rows(b, y, dim, b.index_vector(around.second))));
  }
  return convert(b, y, x.dtype());
}

template <int64_t n>
Value linear_gradient(Builder& b, Value grad, const Dims& size, const Dims& dims, bool align_corners,
                      const std::array<Scale, n>& scales) {
  if (!is_float(grad.dtype())) refuse_dtype("upsample_linear_backward", grad.dtype());
  check_gradient<n>(grad, dims, size);
  if (grad.elements() == 0) return zeros(b, grad.dtype(), dims);
  Value total = convert(b, grad, compute_type(grad.dtype()));
  for (int64_t i = 0; i < n; ++i) {
    int64_t dim = i + 2, in = dims[at(dim)];
    Neighbours around = neighbours(total.dtype(), in, size[at(i)], align_corners, scales[at(i)]);
    auto [first, second] = weights(b, around, total.dtype(), total.dims(), dim);
    total = b.add(bin_sums(b, b.multiply(total, first), dim, places_of(around.first, in)),
                  bin_sums(b, b.multiply(total, second), dim, places_of(around.second, in)));
  }
  return convert(b, total, grad.dtype());
}

// ---- the ops, whose scales are one argument a dimension -----------------------------------------------------------------

template <Rounding r>
struct Nearest {
  static Value one(Builder& b, Value x, Dims size, Scale s) { return nearest_of<r, 1>(b, x, size, {s}); }
  static Value two(Builder& b, Value x, Dims size, Scale h, Scale w) { return nearest_of<r, 2>(b, x, size, {h, w}); }
  static Value three(Builder& b, Value x, Dims size, Scale d, Scale h, Scale w) {
    return nearest_of<r, 3>(b, x, size, {d, h, w});
  }
  static Value one_backward(Builder& b, Value g, Dims size, Dims in, Scale s) {
    return nearest_gradient<r, 1>(b, g, size, in, {s});
  }
  static Value two_backward(Builder& b, Value g, Dims size, Dims in, Scale h, Scale w) {
    return nearest_gradient<r, 2>(b, g, size, in, {h, w});
  }
  static Value three_backward(Builder& b, Value g, Dims size, Dims in, Scale d, Scale h, Scale w) {
    return nearest_gradient<r, 3>(b, g, size, in, {d, h, w});
  }
};

Value linear1d(Builder& b, Value x, Dims size, bool align, Scale s) { return linear_of<1>(b, x, size, align, {s}); }
Value bilinear2d(Builder& b, Value x, Dims size, bool align, Scale h, Scale w) {
  return linear_of<2>(b, x, size, align, {h, w});
}
Value trilinear3d(Builder& b, Value x, Dims size, bool align, Scale d, Scale h, Scale w) {
  return linear_of<3>(b, x, size, align, {d, h, w});
}
Value linear1d_backward(Builder& b, Value g, Dims size, Dims in, bool align, Scale s) {
  return linear_gradient<1>(b, g, size, in, align, {s});
}
Value bilinear2d_backward(Builder& b, Value g, Dims size, Dims in, bool align, Scale h, Scale w) {
  return linear_gradient<2>(b, g, size, in, align, {h, w});
}
Value trilinear3d_backward(Builder& b, Value g, Dims size, Dims in, bool align, Scale d, Scale h, Scale w) {
  return linear_gradient<3>(b, g, size, in, align, {d, h, w});
}

constexpr Row kRows[] = {
    row("aten::upsample_nearest1d", lower<&Nearest<Rounding::Floor>::one>()),
    row("aten::upsample_nearest2d", lower<&Nearest<Rounding::Floor>::two>()),
    row("aten::upsample_nearest3d", lower<&Nearest<Rounding::Floor>::three>()),
    row("aten::upsample_nearest1d_backward", lower<&Nearest<Rounding::Floor>::one_backward>()),
    row("aten::upsample_nearest2d_backward", lower<&Nearest<Rounding::Floor>::two_backward>()),
    row("aten::upsample_nearest3d_backward", lower<&Nearest<Rounding::Floor>::three_backward>()),
    row("aten::_upsample_nearest_exact1d", lower<&Nearest<Rounding::Exact>::one>()),
    row("aten::_upsample_nearest_exact2d", lower<&Nearest<Rounding::Exact>::two>()),
    row("aten::_upsample_nearest_exact3d", lower<&Nearest<Rounding::Exact>::three>()),
    row("aten::_upsample_nearest_exact1d_backward", lower<&Nearest<Rounding::Exact>::one_backward>()),
    row("aten::_upsample_nearest_exact2d_backward", lower<&Nearest<Rounding::Exact>::two_backward>()),
    row("aten::_upsample_nearest_exact3d_backward", lower<&Nearest<Rounding::Exact>::three_backward>()),
    row("aten::upsample_linear1d", lower<&linear1d>()),
    row("aten::upsample_bilinear2d", lower<&bilinear2d>()),
    row("aten::upsample_trilinear3d", lower<&trilinear3d>()),
    row("aten::upsample_linear1d_backward", lower<&linear1d_backward>()),
    row("aten::upsample_bilinear2d_backward", lower<&bilinear2d_backward>()),
    row("aten::upsample_trilinear3d_backward", lower<&trilinear3d_backward>()),
};

}  // namespace

std::span<const Row> upsample_rows() { return kRows; }

}  // namespace flambeau::ops
