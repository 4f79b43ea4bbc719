// contraction_flops: two for each multiply-add that counts. A compiler for matrix units turns dots into convolutions,
// where what is padding or lies between dilated elements is not multiplied.
#include <algorithm>

#include "base/error.h"
#include "compiled/kernel_cost.h"
#include "compiled/scope.h"

namespace flambeau::compiled {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 26;  // that are looked at one by one; no program comes near
using Wide = __int128;                                // no product of a few sizes overflows

int64_t dim_at(const Instruction& of, const Shape& shape, int64_t dim) {
  if (dim < 0 || static_cast<size_t>(dim) >= shape.dims.size())
    raise<InvalidArgument>("[compiled.flops] {}: expected a dimension below {}, got {}", of.name, shape.dims.size(), dim);
  return shape.dims[static_cast<size_t>(dim)];
}

double dot_flops(const Scope& scope, const Instruction& dot) {
  double flops = 2 * static_cast<double>(dot.shape.elements());
  for (const int64_t dim : dot.dot_contracting)
    flops *= static_cast<double>(dim_at(dot, scope.at(dot.operands[0]).shape, dim));
  return flops;
}

// Pairs of an output position and a kernel element that meet an element of the input.
int64_t meetings(const Instruction& of, const WindowDim& window, int64_t input, int64_t output) {
  if (window.size < 0 || window.stride < 1 || window.window_dilation < 1 || window.base_dilation < 1)
    raise<InvalidArgument>("[compiled.flops] {}: expected a window with positive strides and dilations", of.name);
  if (window.size == 0 || input == 0 || output == 0) return 0;
  const bool dilated = window.base_dilation > 1;
  if (window.size > kMostPositions / (dilated ? output : 1))
    raise<InvalidArgument>("[compiled.flops] {}: expected a window of a program, got {} x {} positions", of.name, window.size,
                           output);
  int64_t count = 0;
  for (int64_t k = 0; k < window.size; ++k) {
    // Output o and this element meet the input at o * stride + shift.
    const Wide shift = Wide{k} * window.window_dilation - window.padding_low;
    if (!dilated) {
      const Wide first = shift >= 0 ? Wide{0} : (-shift + window.stride - 1) / window.stride;
      const Wide room = Wide{input} - 1 - shift;
      const Wide last = room < 0 ? Wide{-1} : std::min(room / window.stride, Wide{output} - 1);
      count += static_cast<int64_t>(std::max(last - first + 1, Wide{0}));
      continue;
    }
    for (int64_t o = 0; o < output; ++o) {
      const Wide position = Wide{o} * window.stride + shift;
      count += position >= 0 && position % window.base_dilation == 0 && position / window.base_dilation < input;
    }
  }
  return count;
}

double convolution_flops(const Scope& scope, const Instruction& convolution) {
  const ConvolutionDims& dims = *convolution.convolution;
  const Shape &input = scope.at(convolution.operands[0]).shape, &kernel = scope.at(convolution.operands[1]).shape;
  const size_t spatial = dims.window.size();
  if (dims.input_spatial.size() != spatial || dims.output_spatial.size() != spatial)
    raise<InvalidArgument>("[compiled.flops] {}: expected a window of {} dimensions, got {}", convolution.name,
                           dims.input_spatial.size(), spatial);
  // Each output feature sees the kernel's input features, which are those of one group.
  double flops = 2 * static_cast<double>(dim_at(convolution, kernel, dims.kernel_input_feature)) *
                 static_cast<double>(dim_at(convolution, convolution.shape, dims.output_feature)) *
                 static_cast<double>(dim_at(convolution, input, dims.input_batch) / dims.batch_groups);
  for (size_t i = 0; i < spatial; ++i) {
    flops *= static_cast<double>(meetings(convolution, dims.window[i], dim_at(convolution, input, dims.input_spatial[i]),
                                          dim_at(convolution, convolution.shape, dims.output_spatial[i])));
  }
  return flops;
}

}  // namespace

double contraction_flops(const Scope& scope, const Instruction& i) {
  if (i.opcode == "custom-call") return kernel_cost(i.backend_config).flops;
  if (i.operands.size() < 2) return 0;
  if (i.opcode == "dot") return dot_flops(scope, i);
  if (i.opcode == "convolution" && i.convolution) return convolution_flops(scope, i);
  return 0;
}

}  // namespace flambeau::compiled
