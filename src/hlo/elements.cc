#include "hlo/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace flambeau::hlo {
namespace {

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class T>
T read(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

int bit_width(DType dtype) { return static_cast<int>(8 * byte_size(dtype)); }

// Rounds to nearest even into a format of at most 16 bits.
uint64_t pack(double value, const FloatFormat& format) {
  const int total = 1 + format.exponent_bits + format.mantissa_bits;
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (total - 1) : 0;
  const uint64_t magnitude_mask = (uint64_t{1} << (total - 1)) - 1;
  const uint64_t infinity = ((uint64_t{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  const uint64_t nan = format.finite_only ? magnitude_mask : infinity | uint64_t{1} << (format.mantissa_bits - 1);
  const uint64_t overflow = format.finite_only ? nan : infinity;
  if (std::isnan(value)) return sign | nan;
  if (std::isinf(value)) return sign | overflow;
  if (value == 0) return sign;
  int exponent;
  std::frexp(value, &exponent);
  exponent = std::max(exponent - 1, 1 - format.bias());
  // In units of the last place. A carry out of the mantissa runs into the exponent, which is what is wanted.
  const auto units = static_cast<uint64_t>(std::nearbyint(std::ldexp(std::abs(value), format.mantissa_bits - exponent)));
  const uint64_t bits = units + (static_cast<uint64_t>(exponent + format.bias() - 1) << format.mantissa_bits);
  return sign | (bits >= overflow ? overflow : bits);
}

double unpack(uint64_t bits, const FloatFormat& format) {
  const int total = 1 + format.exponent_bits + format.mantissa_bits;
  const double sign = bits >> (total - 1) & 1 ? -1.0 : 1.0;
  const uint64_t magnitude = bits & ((uint64_t{1} << (total - 1)) - 1);
  const uint64_t mantissa = magnitude & ((uint64_t{1} << format.mantissa_bits) - 1);
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const bool top = exponent == (1 << format.exponent_bits) - 1;
  if (format.finite_only ? magnitude == (uint64_t{1} << (total - 1)) - 1 : top && mantissa != 0)
    return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (top && !format.finite_only) return sign * std::numeric_limits<double>::infinity();
  const uint64_t significand = exponent == 0 ? mantissa : mantissa | uint64_t{1} << format.mantissa_bits;
  return sign * std::ldexp(static_cast<double>(significand), std::max(exponent, 1) - format.bias() - format.mantissa_bits);
}

DType part_of(DType complex) { return complex == DType::C64 ? DType::F32 : DType::F64; }

}  // namespace

FloatFormat float_format(DType dtype) {
  switch (dtype) {
    case DType::F8E4M3FN: return {4, 3, true};
    case DType::F8E5M2: return {5, 2, false};
    case DType::F16: return {5, 10, false};
    case DType::BF16: return {8, 7, false};
    case DType::F32: return {8, 23, false};
    default: return {11, 52, false};
  }
}

std::string encode_float(DType dtype, double value) {
  if (dtype == DType::F64) return bytes_of(value);
  const auto single = static_cast<float>(value);
  if (dtype == DType::F32) return bytes_of(single);
  const uint64_t bits = pack(single, float_format(dtype));
  return {reinterpret_cast<const char*>(&bits), static_cast<size_t>(byte_size(dtype))};
}

std::string encode_complex(DType dtype, std::complex<double> value) {
  return encode_float(part_of(dtype), value.real()) + encode_float(part_of(dtype), value.imag());
}

std::string encode_integer(DType dtype, uint64_t bits) {
  if (dtype == DType::Pred) bits = bits != 0;
  return {reinterpret_cast<const char*>(&bits), static_cast<size_t>(byte_size(dtype))};
}

double decode_float(DType dtype, const char* bytes) {
  if (dtype == DType::F64) return read<double>(bytes);
  if (dtype == DType::F32) return read<float>(bytes);
  return unpack(decode_bits(dtype, bytes), float_format(dtype));
}

uint64_t decode_bits(DType dtype, const char* bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, static_cast<size_t>(byte_size(dtype)));
  return bits;
}

int64_t decode_integer(DType dtype, const char* bytes) {
  const uint64_t bits = decode_bits(dtype, bytes);
  if (!is_signed_integer(dtype)) return static_cast<int64_t>(bits);
  const int unused = 64 - bit_width(dtype);
  return static_cast<int64_t>(bits << unused) >> unused;
}

bool integer_fits(DType dtype, int64_t value) {
  if (dtype == DType::Pred) return value == 0 || value == 1;
  if (dtype == DType::S64) return true;
  if (dtype == DType::U64) return value >= 0;
  const int width = bit_width(dtype);
  if (is_unsigned_integer(dtype)) return value >= 0 && value < int64_t{1} << width;
  return value >= -(int64_t{1} << (width - 1)) && value < int64_t{1} << (width - 1);
}

std::string lowest_element(DType dtype) {
  if (is_signed_integer(dtype)) return encode_integer(dtype, uint64_t{1} << (bit_width(dtype) - 1));
  if (!is_float(dtype)) return encode_integer(dtype, 0);
  if (dtype == DType::F8E4M3FN) return encode_float(dtype, -448);
  return encode_float(dtype, -std::numeric_limits<double>::infinity());
}

std::string highest_element(DType dtype) {
  if (is_signed_integer(dtype)) return encode_integer(dtype, (uint64_t{1} << (bit_width(dtype) - 1)) - 1);
  if (!is_float(dtype)) return encode_integer(dtype, ~uint64_t{0});
  if (dtype == DType::F8E4M3FN) return encode_float(dtype, 448);
  return encode_float(dtype, std::numeric_limits<double>::infinity());
}

Literal splat(Type type, std::string element) {
  if (type.elements() == 0) element.clear();
  return {std::move(type), std::move(element)};
}

const Literal* constant_literal(Value value) {
  const Node* node = value.graph()->definition(value);
  return node && node->op == Op::Constant ? std::get_if<Literal>(&node->attributes[0].value) : nullptr;
}

}  // namespace flambeau::hlo
