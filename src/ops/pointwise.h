// What element-by-element ops share.
//
// The usual shape of one: find the result dtype, align the operands in the dtype of computation, combine, convert once.
#pragma once

#include <string_view>
#include <utility>

#include "ops/promotion.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

// f(values...) over operands aligned in `compute`, the result in `result`.
template <class F, class... X>
Value pointwise(Builder& b, DType compute, DType result, F f, const X&... operands) {
  auto values = align(b, {operands...}, compute);
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return convert(b, f(values[I]...), result);
  }(std::index_sequence_for<X...>{});
}

// A function of reals: integers become float32, float16 and bfloat16 compute in float32 and round once.
template <class F>
Value real_function(Builder& b, Value x, F f) {
  DType result = float_result(x.dtype());
  return convert(b, f(convert(b, x, compute_type(result))), result);
}

// Where any operand is a number, float16 and bfloat16 compute in float32 so that the number is not rounded first.
inline DType compute_type(DType result, std::initializer_list<Operand> operands) {
  for (const Operand& x : operands)
    if (x.wrapped) return compute_type(result);
  return result;
}

// PyTorch lacks the op for this dtype on every device.
[[noreturn]] inline void refuse_dtype(std::string_view op, DType dtype) {
  raise<NotImplemented>("\"{}\" not implemented for '{}'", op, torch_name(dtype));
}
inline void refuse_bool(std::string_view op, DType dtype) {
  if (dtype == DType::Pred) refuse_dtype(op, dtype);
}
inline void require_float(std::string_view op, DType dtype) {
  if (!is_float(dtype) && !is_complex(dtype)) refuse_dtype(op, dtype);
}
inline void refuse_complex(std::string_view op, DType dtype) {
  if (is_complex(dtype)) refuse_dtype(op, dtype);
}
inline void require_integral(std::string_view op, DType dtype) {
  if (is_float(dtype) || is_complex(dtype)) refuse_dtype(op, dtype);
}

// A known number must lie within `dtype`; the marks Fits and AlphaFits have those looked at that are parameters of the program.
inline void check_fits(const Scalar& number, DType dtype) {
  if (number.known) check_fits(*number.known, dtype);
}

// Used by several files.
Value is_nan(Builder& b, Value x);                   // Pred; false for integers
Value truncate(Builder& b, Value x);                 // towards zero, a float in its own dtype
Value erf(Builder& b, Value x);                      // F32 or F64
Value inverse_erf(Builder& b, Value x);              // likewise, -1 < x < 1
Value polynomial(Builder& b, Value x, std::span<const double> coefficients);  // the highest power first

}  // namespace flambeau::ops
