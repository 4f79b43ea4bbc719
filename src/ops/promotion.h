// Type promotion and broadcasting as PyTorch does them.
//
// Operands fall into three classes: tensors with dimensions, 0-dim tensors, wrapped (Python) numbers. Within a class dtypes
// promote along bool < integers < floats < complex; a lower class counts only when its category (bool, integer, float,
// complex) is higher. A float number counts as float32, the default dtype. See c10/core/ScalarType.h and
// ATen/native/TypeProperties.cpp for the definition.
#pragma once

#include <initializer_list>
#include <span>

#include "ops/op.h"

namespace flambeau::ops {

inline constexpr DType kDefaultFloat = DType::F32;

// torch.promote_types. InvalidArgument for the pairs that PyTorch refuses (float8, uint16 to uint64 with signed integers).
DType promote_types(DType a, DType b);

// torch.result_type.
DType result_type(std::span<const Operand> operands);
inline DType result_type(std::initializer_list<Operand> operands) { return result_type({operands.begin(), operands.size()}); }

// Whether `from` may be stored in `to` by an in-place op: torch.can_cast.
bool can_cast(DType from, DType to);

// The result of a function over reals: integers and bools become float32.
inline DType float_result(DType t) { return is_float(t) || is_complex(t) ? t : kDefaultFloat; }

// The dtype that PyTorch computes in before it rounds once: float32 for float16 and bfloat16.
inline DType compute_type(DType t) { return t == DType::F16 || t == DType::BF16 ? DType::F32 : t; }

// The shape that all operands broadcast to. InvalidArgument with PyTorch's message when there is none.
Dims broadcast_dims(const Dims& a, const Dims& b);

// As Tensor.to(dtype): floats become bool by != 0, and wrap through int64 on their way to narrower integers.
Value convert(Builder& b, Value x, DType dtype);

// Each operand in `dtype`, broadcast to the common shape. Conversion comes first: it is cheaper before the broadcast.
std::vector<Value> align(Builder& b, std::span<const Operand> operands, DType dtype);
inline std::vector<Value> align(Builder& b, std::initializer_list<Operand> operands, DType dtype) {
  return align(b, std::span(operands.begin(), operands.size()), dtype);
}

// A rank-0 constant of x's dtype, broadcast to x's shape.
Value constant_like(Builder& b, Value x, double value);
// A number in x's dtype, broadcast to x's shape.
Value scalar_like(Builder& b, Value x, const Scalar& scalar);

// dim in [-rank, rank) -> [0, rank); rank 0 counts as 1. InvalidArgument with PyTorch's message otherwise.
int64_t wrap_dim(int64_t dim, int64_t rank);
// The same for a list; InvalidArgument when one appears twice.
Dims wrap_dims(const Dims& dims, int64_t rank);

}  // namespace flambeau::ops
