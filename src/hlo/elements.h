// Single elements of constants: from and to the host bytes of every element type.
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "hlo/graph.h"

namespace flambeau::hlo {

// A float type as IEEE 754 describes it: sign, exponent, mantissa.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool finite_only;  // E4M3FN: the greatest exponent holds numbers, there are no infinities, one NaN a sign
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
FloatFormat float_format(DType dtype);  // of a float type

// The number in a type's bytes. Floats round to the nearest, ties to even; as in PyTorch, types narrower than F32 round from
// F32.
std::string encode_float(DType dtype, double value);
std::string encode_complex(DType dtype, std::complex<double> value);
std::string encode_integer(DType dtype, uint64_t bits);  // the low bytes; Pred: whether it is not zero

// Exact.
double decode_float(DType dtype, const char* bytes);
uint64_t decode_bits(DType dtype, const char* bytes);    // of up to eight bytes, zero-extended
int64_t decode_integer(DType dtype, const char* bytes);  // Pred and integers; U64 wraps

// Whether an integer (given as itself, or for U64 as its bits) lies in an integer type or Pred.
bool integer_fits(DType dtype, int64_t value);

// The least and the greatest value, infinities where the type has them.
std::string lowest_element(DType dtype);
std::string highest_element(DType dtype);

// A literal that repeats one element.
Literal splat(Type type, std::string element);
// The constant a value is defined by, or null.
const Literal* constant_literal(Value value);

}  // namespace flambeau::hlo
