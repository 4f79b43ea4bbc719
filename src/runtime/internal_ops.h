// Ops that the runtime itself records: reading and writing views, and values made of nothing.
#pragma once

#include "ops/op.h"

namespace flambeau::runtime {

extern const ops::Row kZeros;     // (int[] dims, dtype) -> tensor
extern const ops::Row kLiteral;   // (int[] dims, dtype, str bytes) -> tensor
extern const ops::Row kIdentity;  // (tensor, dtype) -> the dense, converted tensor
extern const ops::Row kWrite;     // (base, contents, sizes, strides, offset, dtype) -> the new base

// `x`, read bit by bit as elements of `dtype`: a flat array when the types differ.
hlo::Value reinterpret_elements(hlo::Builder& b, hlo::Value x, DType dtype);

}  // namespace flambeau::runtime
