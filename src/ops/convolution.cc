// Convolution in any number of spatial dimensions, transposed or not, and its gradients.
//
// A convolution y = w * x is linear in both. forward() computes y, input_gradient() maps y back to x, weight_gradient()
// gives dw from x and dy. A transposed convolution is an input_gradient(), so its own gradients are the other two. float16
// and bfloat16 multiply into float32 and are rounded once, after the bias is added.
#include <algorithm>

#include <fmt/ranges.h>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using hlo::ConvolutionDims;
using hlo::Window;

// The numbers of a convolution, one a spatial dimension. Activations are [N, C, spatial], weights [O, C / groups, spatial].
struct Geometry {
  Dims stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

Dims spatial_sizes(Value x) { return {x.dims().begin() + 2, x.dims().end()}; }

ConvolutionDims channels_first(int64_t rank) {
  Dims spatial = range(rank);
  spatial.erase(spatial.begin(), spatial.begin() + 2);
  return {.input_spatial = spatial, .kernel_spatial = spatial, .output_spatial = spatial};
}

// In the type that it accumulates in.
Value convolve(Builder& b, Value x, Value w, const ConvolutionDims& dims, const Window& window, int64_t feature_groups,
               int64_t batch_groups = 1) {
  return b.convolution(x, w, dims, window, feature_groups, batch_groups, compute_type(x.dtype()));
}

Value forward(Builder& b, Value x, Value w, const Geometry& g) {
  Window window{.strides = g.stride, .window_dilations = g.dilation, .padding_low = g.padding, .padding_high = g.padding};
  return convolve(b, x, w, channels_first(x.rank()), window, g.groups);
}

// [O, I / groups, ...] with the roles of the two exchanged within each group: [O / groups, I, ...].
Value exchange_features(Builder& b, Value w, int64_t groups) {
  if (groups == 1) return w;
  Dims split = w.dims(), order = range(w.rank() + 1), joined = w.dims();
  split[0] /= groups;
  split.insert(split.begin(), groups);
  std::swap(order[0], order[1]);
  joined[0] /= groups;
  joined[1] *= groups;
  return b.reshape(b.transpose(b.reshape(w, split), order), joined);
}

// The x of spatial size `size` that y is spread back to: the input is dilated by the stride, the kernel reversed.
Value input_gradient(Builder& b, Value y, Value w, const Geometry& g, const Dims& size) {
  ConvolutionDims dims = channels_first(y.rank());
  std::swap(dims.kernel_output_feature, dims.kernel_input_feature);
  Window window{.base_dilations = g.stride, .window_dilations = g.dilation};
  for (size_t i = 0; i < size.size(); ++i) {
    int64_t reach = g.dilation[i] * (w.dims()[i + 2] - 1), spread = (y.dims()[i + 2] - 1) * g.stride[i] + 1;
    window.padding_low.push_back(reach - g.padding[i]);
    window.padding_high.push_back(size[i] + g.padding[i] - spread);
  }
  return convolve(b, y, b.reverse(exchange_features(b, w, g.groups), dims.kernel_spatial), dims, window, g.groups);
}

// dw of kernel size `size`: x and dy convolved with features as the batch and the batch as what is summed.
Value weight_gradient(Builder& b, Value x, Value dy, const Geometry& g, const Dims& size) {
  ConvolutionDims dims = channels_first(x.rank());
  std::swap(dims.input_batch, dims.input_feature);
  std::swap(dims.kernel_output_feature, dims.kernel_input_feature);
  std::swap(dims.output_batch, dims.output_feature);
  Window window{.strides = g.dilation, .window_dilations = g.stride, .padding_low = g.padding};
  for (size_t i = 0; i < size.size(); ++i) {
    int64_t reach = g.dilation[i] * (size[i] - 1), spread = (dy.dims()[i + 2] - 1) * g.stride[i] + 1;
    window.padding_high.push_back(spread + reach - x.dims()[i + 2] - g.padding[i]);
  }
  return convolve(b, x, dy, dims, window, 1, g.groups);
}

// ---- what PyTorch refuses, in its words ---------------------------------------------------------------------------------

// A list of one number stands for every dimension.
Dims expanded(std::string_view name, const Dims& given, size_t count) {
  if (given.size() == 1) return Dims(count, given[0]);
  if (given.size() != count)
    raise<InvalidArgument>(
        "expected {0} to be a single integer value or a list of {1} values to match the convolution dimensions, but got "
        "{0}={2}", name, count, shape_text(given));
  return given;
}

Geometry geometry(Value x, Value w, const Dims& stride, const Dims& padding, const Dims& dilation, bool transposed,
                  const Dims& output_padding, int64_t groups) {
  if (w.rank() < 3) raise<InvalidArgument>("weight should have at least three dimensions");
  if (groups <= 0) raise<InvalidArgument>("non-positive groups is not supported");
  size_t count = at(w.rank() - 2);
  Geometry g{expanded("stride", stride, count), expanded("padding", padding, count), expanded("dilation", dilation, count),
             expanded("output_padding", output_padding, count), transposed, groups};
  auto any_below = [](const Dims& dims, int64_t least) {
    return std::any_of(dims.begin(), dims.end(), [=](int64_t d) { return d < least; });
  };
  if (any_below(g.padding, 0)) raise<InvalidArgument>("negative padding is not supported");
  if (any_below(g.output_padding, 0)) raise<InvalidArgument>("negative output_padding is not supported");
  if (any_below(g.stride, 1)) raise<InvalidArgument>("non-positive stride is not supported");
  if (any_below(g.dilation, 1))
    raise<InvalidArgument>("dilation should be greater than zero, but got {}", shape_text(g.dilation));
  for (size_t i = 0; transposed && i < count; ++i)
    if (g.output_padding[i] >= std::max(g.stride[i], g.dilation[i]))
      raise<InvalidArgument>(
          "output padding must be smaller than either stride or dilation, but got output_padding: {} stride: {} dilation: "
          "{}",
          shape_text(g.output_padding), shape_text(g.stride), shape_text(g.dilation));
  if (x.rank() != w.rank())
    raise<InvalidArgument>(
        "Expected {0}-dimensional input for {0}-dimensional weight {1}, but got {2}-dimensional input of size {3} instead",
        w.rank(), shape_text(w.dims()), x.rank(), shape_text(x.dims()));
  return g;
}

// The spatial sizes of the result.
Dims result_sizes(Value x, Value w, const Geometry& g) {
  Dims sizes, padded, kernel;
  for (size_t i = 0; i < g.stride.size(); ++i) {
    int64_t in = x.dims()[i + 2];
    kernel.push_back(g.dilation[i] * (w.dims()[i + 2] - 1) + 1);
    padded.push_back(in + 2 * g.padding[i]);
    sizes.push_back(g.transposed ? (in - 1) * g.stride[i] - 2 * g.padding[i] + kernel[i] + g.output_padding[i]
                                 : (padded[i] - kernel[i]) / g.stride[i] + 1);
    if (!g.transposed && padded[i] < kernel[i]) sizes.back() = 0;
  }
  if (std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= 1; })) return sizes;
  if (g.transposed)
    raise<InvalidArgument>(
        "Given input size per channel: ({}). Calculated output size per channel: ({}). Output size is too small",
        fmt::join(spatial_sizes(x), " x "), fmt::join(sizes, " x "));
  raise<InvalidArgument>(
      "Calculated padded input size per channel: ({}). Kernel size: ({}). Kernel size can't be greater than actual input "
      "size",
      fmt::join(padded, " x "), fmt::join(kernel, " x "));
}

void check_types(Value x, Value other, std::string_view what) {
  if (x.dtype() != other.dtype())
    raise<InvalidArgument>("Input type ({}) and {} type ({}) should be the same", torch_name(x.dtype()), what,
                           torch_name(other.dtype()));
}

// The result's shape.
Dims check(Value x, Value w, const std::optional<Value>& bias, const Geometry& g) {
  // Complex tensors arrive as three convolutions of real ones, from PyTorch.
  if (x.dtype() == DType::Pred || is_complex(x.dtype())) refuse_dtype("convolution", x.dtype());
  check_types(x, w, "weight");
  if (bias) check_types(x, *bias, "bias");
  if (w.dim(0) < g.groups)
    raise<InvalidArgument>(
        "Given groups={0}, expected weight to be at least {0} at dimension 0, but got weight of size {1} instead", g.groups,
        shape_text(w.dims()));
  if (w.dim(0) % g.groups != 0)
    raise<InvalidArgument>(
        "Given groups={0}, expected weight to be divisible by {0} at dimension 0, but got weight of size {1} instead",
        g.groups, shape_text(w.dims()));
  std::string given = g.transposed ? "transposed=1" : fmt::format("groups={}", g.groups);
  int64_t channels = g.transposed ? w.dim(0) : w.dim(1) * g.groups, features = g.transposed ? w.dim(1) * g.groups : w.dim(0);
  if (x.dim(1) != channels)
    raise<InvalidArgument>("Given {}, weight of size {}, expected input{} to have {} channels, but got {} channels instead",
                           given, shape_text(w.dims()), shape_text(x.dims()), channels, x.dim(1));
  if (bias && bias->dims() != Dims{features})
    raise<InvalidArgument>(
        "Given {}weight of size {}, expected bias to be 1-dimensional with {} elements, but got bias of size {} instead",
        g.transposed ? "transposed=1, " : "", shape_text(w.dims()), features, shape_text(bias->dims()));
  Dims result = result_sizes(x, w, g);
  result.insert(result.begin(), {x.dim(0), features});
  return result;
}

// ---- the ops ------------------------------------------------------------------------------------------------------------

bool is_empty(std::initializer_list<Value> xs) {
  return std::any_of(xs.begin(), xs.end(), [](Value x) { return x.elements() == 0; });
}

Value convolution(Builder& b, Value x, Value w, std::optional<Value> bias, Dims stride, Dims padding, Dims dilation,
                  bool transposed, Dims output_padding, int64_t groups) {
  Geometry g = geometry(x, w, stride, padding, dilation, transposed, output_padding, groups);
  Dims result = check(x, w, bias, g);
  Value y;
  if (is_empty({x, w})) y = zeros(b, compute_type(x.dtype()), result);
  else y = transposed ? input_gradient(b, x, w, g, {result.begin() + 2, result.end()}) : forward(b, x, w, g);
  if (bias) y = b.add(y, along(b, convert(b, *bias, y.dtype()), result, 1));
  return convert(b, y, x.dtype());
}

// Output padding beyond the stride adds positions that no input stands for.
Value cut(Builder& b, Value x, const Dims& sizes) { return b.slice(x, Dims(sizes.size(), 0), sizes); }

std::array<Value, 3> convolution_backward(Builder& b, Value dy, Value x, Value w, const Geometry& g, Dims mask) {
  if (Dims result = check(x, w, {}, g); dy.dims() != result)
    raise<InvalidArgument>("[convolution_backward] expected grad_output of shape {}, got {}", shape_text(result),
                           shape_text(dy.dims()));
  check_types(x, dy, "grad_output");
  DType wide = compute_type(x.dtype());
  bool empty = is_empty({x, w});
  std::array<Value, 3> out;
  if (wanted(mask, 0)) {
    if (empty) out[0] = zeros(b, wide, x.dims());
    else out[0] = g.transposed ? cut(b, forward(b, dy, w, g), x.dims()) : input_gradient(b, dy, w, g, spatial_sizes(x));
  }
  if (wanted(mask, 1)) {
    if (empty) out[1] = zeros(b, wide, w.dims());
    else
      out[1] =
          g.transposed ? weight_gradient(b, dy, x, g, spatial_sizes(w)) : weight_gradient(b, x, dy, g, spatial_sizes(w));
  }
  if (wanted(mask, 2)) out[2] = sum(b, convert(b, dy, wide), others(dy.rank(), 1));
  for (Value& v : out)
    if (v) v = convert(b, v, x.dtype());
  return out;
}

std::array<Value, 3> backward(Builder& b, Value dy, Value x, Value w, std::optional<Dims>, Dims stride, Dims padding,
                              Dims dilation, bool transposed, Dims output_padding, int64_t groups, Dims mask) {
  return convolution_backward(b, dy, x, w, geometry(x, w, stride, padding, dilation, transposed, output_padding, groups),
                              mask);
}
std::array<Value, 3> backward_overrideable(Builder& b, Value dy, Value x, Value w, Dims stride, Dims padding, Dims dilation,
                                           bool transposed, Dims output_padding, int64_t groups, Dims mask) {
  return backward(b, dy, x, w, {}, stride, padding, dilation, transposed, output_padding, groups, mask);
}

// PyTorch's own `convolution` would choose among backends; the overrideable forms are what aten::_convolution ends in.
constexpr Row kRows[] = {
    row("aten::convolution", lower<&convolution>()),
    row("aten::convolution_backward", lower<&backward>()),
    row("aten::convolution_overrideable", lower<&convolution>()),
    row("aten::convolution_backward_overrideable", lower<&backward_overrideable>()),
};

}  // namespace

std::span<const Row> convolution_rows() { return kRows; }

}  // namespace flambeau::ops
