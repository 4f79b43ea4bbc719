#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hlo/builder.h"

namespace flambeau::hlo {
namespace {

std::string text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }
bool contains(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }
Dims joined(Dims a, const Dims& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The layout of one side of a convolution: dimension i's letter or spatial number, as in [b, 0, 1, f].
std::string layout(std::string_view first, int64_t first_at, std::string_view second, int64_t second_at,
                   const Dims& spatial) {
  std::vector<std::string> names(spatial.size() + 2);
  names[static_cast<size_t>(first_at)] = first;
  names[static_cast<size_t>(second_at)] = second;
  for (size_t i = 0; i < spatial.size(); ++i) names[static_cast<size_t>(spatial[i])] = std::to_string(i);
  return fmt::format("[{}]", fmt::join(names, ", "));
}

std::string convolution_text(const ConvolutionDims& d) {
  return fmt::format("#stablehlo.conv<{}x{}->{}>", layout("b", d.input_batch, "f", d.input_feature, d.input_spatial),
                     layout("o", d.kernel_output_feature, "i", d.kernel_input_feature, d.kernel_spatial),
                     layout("b", d.output_batch, "f", d.output_feature, d.output_spatial));
}

std::string_view precision_name(Precision precision) {
  constexpr std::string_view kNames[] = {"DEFAULT", "HIGH", "HIGHEST"};
  return kNames[static_cast<size_t>(precision)];
}

}  // namespace

Attribute Builder::precision_attribute(DType dtype, std::optional<Precision> precision) {
  const bool exact = !is_float(dtype) && !is_complex(dtype);  // integers have one precision
  const std::string_view name = precision_name(exact ? Precision::Default : precision.value_or(Precision::Highest));
  return {"precision_config", RawAttribute{fmt::format("[#stablehlo<precision {0}>, #stablehlo<precision {0}>]", name)}};
}

Value Builder::dot_general(Value lhs, Value rhs, const DotDims& dims, std::optional<DType> result,
                           std::optional<Precision> precision) {
  constexpr Op op = Op::DotGeneral;
  check_operands(op, {lhs, rhs});
  if (lhs.dtype() != rhs.dtype())
    fail(op, fmt::format("expected operands of one element type, got {} and {}", lhs.type().to_string(),
                         rhs.type().to_string()));
  const Dims lhs_used = joined(dims.lhs_batch, dims.lhs_contracting),
             rhs_used = joined(dims.rhs_batch, dims.rhs_contracting);
  check_axes(op, "batch and contracting dimensions of lhs", lhs_used, lhs.rank());
  check_axes(op, "batch and contracting dimensions of rhs", rhs_used, rhs.rank());
  bool match = dims.lhs_batch.size() == dims.rhs_batch.size() && lhs_used.size() == rhs_used.size();
  for (size_t i = 0; match && i < lhs_used.size(); ++i) match = lhs.dim(lhs_used[i]) == rhs.dim(rhs_used[i]);
  if (!match)
    fail(op, fmt::format("expected batch and contracting dimensions of equal sizes, got batch {} x {} and contracting {} x "
                         "{} of {} and {}",
                         text(dims.lhs_batch), text(dims.rhs_batch), text(dims.lhs_contracting), text(dims.rhs_contracting),
                         lhs.type().to_string(), rhs.type().to_string()));
  Type type{result.value_or(lhs.dtype()), {}};
  for (int64_t d : dims.lhs_batch) type.dims.push_back(lhs.dim(d));
  for (int64_t d = 0; d < lhs.rank(); ++d)
    if (!contains(lhs_used, d)) type.dims.push_back(lhs.dim(d));
  for (int64_t d = 0; d < rhs.rank(); ++d)
    if (!contains(rhs_used, d)) type.dims.push_back(rhs.dim(d));
  return emit(op, {lhs, rhs}, std::move(type),
              {{"dot_dimension_numbers.lhs_batching_dimensions", dims.lhs_batch},
               {"dot_dimension_numbers.rhs_batching_dimensions", dims.rhs_batch},
               {"dot_dimension_numbers.lhs_contracting_dimensions", dims.lhs_contracting},
               {"dot_dimension_numbers.rhs_contracting_dimensions", dims.rhs_contracting},
               precision_attribute(lhs.dtype(), precision)});
}

Value Builder::convolution(Value input, Value kernel, const ConvolutionDims& dims, const Window& given,
                           int64_t feature_groups, int64_t batch_groups, std::optional<DType> result,
                           std::optional<Precision> precision) {
  constexpr Op op = Op::Convolution;
  check_operands(op, {input, kernel});
  if (input.dtype() != kernel.dtype() || input.rank() != kernel.rank() || input.rank() < 2)
    fail(op, fmt::format("expected an input and a kernel of one element type and one rank of at least 2, got {} and {}",
                         input.type().to_string(), kernel.type().to_string()));
  const auto spatial = static_cast<size_t>(input.rank() - 2);
  auto check_layout = [&](std::string_view what, int64_t first, int64_t second, const Dims& places) {
    const Dims all = joined({first, second}, places);
    if (places.size() != spatial)
      fail(op, fmt::format("expected {} spatial dimensions of the {}, got {}", spatial, what, text(places)));
    check_axes(op, fmt::format("dimensions of the {}", what), all, input.rank());
  };
  check_layout("input", dims.input_batch, dims.input_feature, dims.input_spatial);
  check_layout("kernel", dims.kernel_output_feature, dims.kernel_input_feature, dims.kernel_spatial);
  check_layout("output", dims.output_batch, dims.output_feature, dims.output_spatial);

  Dims kernel_size, input_size;
  for (int64_t d : dims.kernel_spatial) kernel_size.push_back(kernel.dim(d));
  for (int64_t d : dims.input_spatial) input_size.push_back(input.dim(d));
  Window window = given;
  if (window.size.empty()) window.size = kernel_size;
  if (window.size != kernel_size)
    fail(op, fmt::format("expected a window as large as the kernel, {}, got {}", text(kernel_size), text(window.size)));
  window = complete(op, std::move(window), spatial);

  const int64_t batch = input.dim(dims.input_batch), features = input.dim(dims.input_feature);
  const int64_t out_features = kernel.dim(dims.kernel_output_feature);
  if (feature_groups < 1 || batch_groups < 1 || (feature_groups > 1 && batch_groups > 1))
    fail(op, fmt::format("expected feature_groups and batch_groups of at least 1, one of them 1, got {} and {}",
                         feature_groups, batch_groups));
  if (batch % batch_groups || out_features % batch_groups || out_features % feature_groups || features % feature_groups ||
      kernel.dim(dims.kernel_input_feature) != features / feature_groups)
    fail(op, fmt::format("expected sizes that {} feature groups and {} batch groups divide, and a kernel of {} / {} input "
                         "features, got {} "
                         "and {}",
                         feature_groups, batch_groups, features, feature_groups, input.type().to_string(),
                         kernel.type().to_string()));

  const Dims output_size = window_result(op, input_size, window);
  Type type{result.value_or(input.dtype()), Dims(spatial + 2)};
  type.dims[static_cast<size_t>(dims.output_batch)] = batch / batch_groups;
  type.dims[static_cast<size_t>(dims.output_feature)] = out_features;
  for (size_t i = 0; i < spatial; ++i) type.dims[static_cast<size_t>(dims.output_spatial[i])] = output_size[i];
  Dims padding;
  for (size_t i = 0; i < spatial; ++i) padding.insert(padding.end(), {window.padding_low[i], window.padding_high[i]});
  return emit(op, {input, kernel}, std::move(type),
              {{"window_strides", window.strides},
               {"padding", Literal{{DType::S64, {static_cast<int64_t>(spatial), 2}},
                                   {reinterpret_cast<const char*>(padding.data()), padding.size() * sizeof(int64_t)}}},
               {"lhs_dilation", window.base_dilations},
               {"rhs_dilation", window.window_dilations},
               {"window_reversal", window.reversal},
               {"dimension_numbers", RawAttribute{convolution_text(dims)}},
               {"feature_group_count", feature_groups},
               {"batch_group_count", batch_groups},
               precision_attribute(input.dtype(), precision)});
}

Value Builder::cholesky(Value x, bool lower) {
  constexpr Op op = Op::Cholesky;
  check_operands(op, {x});
  if (!is_float(x.dtype()) && !is_complex(x.dtype()))
    fail(op, fmt::format("expected float or complex elements, got {}", x.type().to_string()));
  if (x.rank() < 2 || x.dim(x.rank() - 1) != x.dim(x.rank() - 2))
    fail(op, fmt::format("expected square matrices, got {}", x.type().to_string()));
  return emit(op, {x}, x.type(), {{"lower", lower}});
}

Value Builder::triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal, bool transpose_a) {
  constexpr Op op = Op::TriangularSolve;
  check_operands(op, {a, b});
  if (a.dtype() != b.dtype() || (!is_float(a.dtype()) && !is_complex(a.dtype())))
    fail(op, fmt::format("expected operands of one float or complex element type, got {} and {}", a.type().to_string(),
                         b.type().to_string()));
  const int64_t rank = a.rank();
  bool fits = rank >= 2 && b.rank() == rank && a.dim(rank - 1) == a.dim(rank - 2);
  for (int64_t i = 0; fits && i < rank - 2; ++i) fits = a.dim(i) == b.dim(i);
  if (!fits || b.dim(left_side ? rank - 2 : rank - 1) != a.dim(rank - 1))
    fail(op, fmt::format("expected square matrices and {} of as many, got {} and {}", left_side ? "rows" : "columns",
                         a.type().to_string(), b.type().to_string()));
  return emit(op, {a, b}, b.type(),
              {{"left_side", left_side},
               {"lower", lower},
               {"unit_diagonal", unit_diagonal},
               {"transpose_a",
                RawAttribute{transpose_a ? "#stablehlo<transpose TRANSPOSE>" : "#stablehlo<transpose NO_TRANSPOSE>"}}});
}

Value Builder::fft(Value x, FftKind kind, Dims length) {
  constexpr Op op = Op::Fft;
  check_operands(op, {x});
  constexpr std::string_view kNames[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  const std::string_view name = kNames[static_cast<size_t>(kind)];
  const DType t = x.dtype();
  if (kind == FftKind::RFFT ? t != DType::F32 && t != DType::F64 : !is_complex(t))
    fail(op, fmt::format("expected {} elements for {}, got {}", kind == FftKind::RFFT ? "f32 or f64" : "complex", name,
                         x.type().to_string()));
  const auto n = static_cast<int64_t>(length.size());
  bool fits = n >= 1 && n <= 3 && n <= x.rank();
  for (int64_t i = 0; fits && i < n; ++i) {
    const int64_t size = length[static_cast<size_t>(i)];
    const bool half = kind == FftKind::IRFFT && i == n - 1;
    fits = size >= 0 && x.dim(x.rank() - n + i) == (half && size > 0 ? size / 2 + 1 : size);
  }
  if (!fits)
    fail(op, fmt::format("expected 1 to 3 lengths of the last dimensions{}, got {} for {}",
                         kind == FftKind::IRFFT ? " (the last halved, plus 1)" : "", text(length), x.type().to_string()));
  Type type = x.type();
  if (kind == FftKind::RFFT) {
    type.dtype = t == DType::F32 ? DType::C64 : DType::C128;
    if (length.back() > 0) type.dims.back() = length.back() / 2 + 1;
  } else if (kind == FftKind::IRFFT) {
    type.dtype = t == DType::C64 ? DType::F32 : DType::F64;
    type.dims.back() = length.back();
  }
  return emit(op, {x}, std::move(type),
              {{"fft_type", RawAttribute{fmt::format("#stablehlo<fft_type {}>", name)}}, {"fft_length", std::move(length)}});
}

}  // namespace flambeau::hlo
