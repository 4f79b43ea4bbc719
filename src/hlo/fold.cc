#include "hlo/fold.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "hlo/elements.h"

namespace flambeau::hlo {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

// ---- single elements
// ----------------------------------------------------------------------------------------------------------

double least_normal(DType dtype) { return std::ldexp(1.0, 1 - float_format(dtype).bias()); }
bool is_subnormal(DType dtype, double value) { return value != 0 && std::abs(value) < least_normal(dtype); }

// Plugins may flush subnormal numbers, and treat NaNs and overflow in ways of their own: those are left to them.
std::optional<std::string> convert_float(DType from, DType to, double value) {
  if (std::isnan(value) || is_subnormal(from, value)) return std::nullopt;
  if (is_float(to)) {
    std::string result = encode_float(to, value);
    const double rounded = decode_float(to, result.data());
    const bool once = from == DType::F32 || to == DType::F32;  // rounded once by any implementation
    if (rounded != value && (!once || !std::isfinite(rounded))) return std::nullopt;
    return is_subnormal(to, rounded) ? std::nullopt : std::optional(result);
  }
  const double whole = std::trunc(value);
  if (!(std::abs(whole) < 9.2e18) || !integer_fits(to, static_cast<int64_t>(whole))) return std::nullopt;
  return encode_integer(to, static_cast<uint64_t>(static_cast<int64_t>(whole)));
}

std::optional<std::string> convert_element(DType from, DType to, const char* bytes) {
  if (is_complex(from) || is_complex(to)) return std::nullopt;
  if (to == DType::Pred) {
    if (!is_float(from)) return encode_integer(to, decode_bits(from, bytes));
    const double value = decode_float(from, bytes);
    return std::isnan(value) || is_subnormal(from, value) ? std::nullopt : std::optional(encode_integer(to, value != 0));
  }
  if (is_float(from)) return convert_float(from, to, decode_float(from, bytes));
  const int64_t value = decode_integer(from, bytes);
  if (!is_float(to)) return encode_integer(to, static_cast<uint64_t>(value));
  if (std::abs(static_cast<double>(value)) > 9007199254740992.0) return std::nullopt;  // 2^53
  if (from == DType::U64 && value < 0) return std::nullopt;
  std::string result = encode_float(to, static_cast<double>(value));
  return decode_float(to, result.data()) == static_cast<double>(value) ? std::optional(result) : std::nullopt;
}

struct Integer {  // two's complement bits, and how they read
  DType dtype;
  uint64_t bits;
  bool is_signed() const { return is_signed_integer(dtype); }
  int64_t as_signed() const { return static_cast<int64_t>(bits); }
  bool less(const Integer& other) const { return is_signed() ? as_signed() < other.as_signed() : bits < other.bits; }
};

std::optional<uint64_t> shift(Op op, Integer x, uint64_t amount) {
  const auto width = static_cast<uint64_t>(8 * byte_size(x.dtype));
  if (amount >= width) return std::nullopt;
  if (op == Op::ShiftLeft) return x.bits << amount;
  const uint64_t unused = 64 - width;
  if (op == Op::ShiftRightLogical) return (x.bits << unused) >> unused >> amount;
  return static_cast<uint64_t>(static_cast<int64_t>(x.bits << unused) >> unused >> amount);
}

std::optional<uint64_t> divide(Op op, Integer x, Integer y) {
  if (y.bits == 0 || (x.is_signed() && y.as_signed() == -1)) return std::nullopt;  // overflow belongs to the plugin
  if (x.is_signed())
    return static_cast<uint64_t>(op == Op::Divide ? x.as_signed() / y.as_signed() : x.as_signed() % y.as_signed());
  return op == Op::Divide ? x.bits / y.bits : x.bits % y.bits;
}

std::optional<uint64_t> integer_binary(Op op, Integer x, Integer y) {
  switch (op) {
    case Op::Add: return x.bits + y.bits;
    case Op::Subtract: return x.bits - y.bits;
    case Op::Multiply: return x.bits * y.bits;
    case Op::Divide:
    case Op::Remainder: return divide(op, x, y);
    case Op::Maximum: return x.less(y) ? y.bits : x.bits;
    case Op::Minimum: return y.less(x) ? y.bits : x.bits;
    case Op::And: return x.bits & y.bits;
    case Op::Or: return x.bits | y.bits;
    case Op::Xor: return x.bits ^ y.bits;
    case Op::ShiftLeft:
    case Op::ShiftRightLogical:
    case Op::ShiftRightArithmetic: return shift(op, x, y.bits);
    default: return std::nullopt;
  }
}

std::optional<uint64_t> integer_unary(Op op, Integer x) {
  const bool negative = x.is_signed() && x.as_signed() < 0;
  switch (op) {
    case Op::Negate: return 0 - x.bits;
    case Op::Abs: return negative ? 0 - x.bits : x.bits;
    case Op::Not: return x.dtype == DType::Pred ? x.bits ^ 1 : ~x.bits;
    case Op::Sign: return negative ? ~uint64_t{0} : x.bits != 0;
    default: return std::nullopt;
  }
}

bool integer_compare(std::string_view text, Integer x, Integer y) {  // #stablehlo<comparison_direction LT>
  const bool equal = x.bits == y.bits;
  if (text.ends_with(" EQ>")) return equal;
  if (text.ends_with(" NE>")) return !equal;
  if (text.ends_with(" LT>")) return x.less(y);
  if (text.ends_with(" GE>")) return !x.less(y);
  if (text.ends_with(" GT>")) return y.less(x);
  return !y.less(x);
}

// ---- whole constants
// ------------------------------------------------------------------------------------------------------------

std::optional<std::string> fold_element(const Node& node, std::span<const Literal* const> operands, size_t index) {
  auto element = [&](size_t i) {
    const Literal& literal = *operands[i];
    return uniform_element(literal) ? literal.bytes.data()
                                    : literal.bytes.data() + index * at(byte_size(literal.type.dtype));
  };
  const DType dtype = operands[0]->type.dtype;
  const DType result = node.results[0].dtype();
  if (node.op == Op::Convert) return convert_element(dtype, result, element(0));
  if (node.op == Op::Select) {
    const char* chosen = *element(0) ? element(1) : element(2);
    return std::string(chosen, at(byte_size(result)));
  }
  if (is_float(dtype) || is_complex(dtype)) return std::nullopt;
  const Integer x{dtype, static_cast<uint64_t>(decode_integer(dtype, element(0)))};
  std::optional<uint64_t> bits;
  if (operands.size() == 1) {
    bits = integer_unary(node.op, x);
  } else {
    const Integer y{dtype, static_cast<uint64_t>(decode_integer(dtype, element(1)))};
    bits =
        node.op == Op::Compare
            ? std::optional<uint64_t>(integer_compare(std::get<RawAttribute>(*node.find("comparison_direction")).text, x, y))
            : integer_binary(node.op, x, y);
  }
  return bits ? std::optional(encode_integer(result, *bits)) : std::nullopt;
}

std::optional<Literal> fold_elementwise(const Node& node, std::span<const Literal* const> operands) {
  const Type& type = node.results[0].type();
  bool uniform = true;
  for (const Literal* operand : operands) uniform = uniform && uniform_element(*operand);
  const int64_t count = uniform ? 1 : type.elements();
  if (type.elements() == 0 || count > kMostFolded) return std::nullopt;
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const auto element = fold_element(node, operands, at(i));
    if (!element) return std::nullopt;
    bytes += *element;
  }
  return Literal{type, std::move(bytes)};
}

// A strided view of the operand's elements, in row-major order of the result.
Literal moved(const Type& type, const Literal& operand, const Dims& operand_strides, int64_t offset) {
  const auto size = at(byte_size(type.dtype));
  Literal result{type, {}};
  Dims index(type.dims.size(), 0);
  for (int64_t n = 0, total = type.elements(); n < total; ++n) {
    int64_t place = offset;
    for (size_t d = 0; d < index.size(); ++d) place += index[d] * operand_strides[d];
    result.bytes.append(operand.bytes, at(place) * size, size);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == type.dims[d];) index[d] = 0;
  }
  return result;
}

Dims row_major_strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

std::optional<Literal> fold_movement(const Node& node, const Literal& operand) {
  const Type& type = node.results[0].type();
  if (const char* element = uniform_element(operand)) return splat(type, std::string(element, at(byte_size(type.dtype))));
  if (type.elements() == 0) return Literal{type, {}};
  if (operand.type.elements() > kMostFolded || type.elements() > kMostFolded) return std::nullopt;
  const Dims from = row_major_strides(operand.type.dims);
  Dims strides(type.dims.size(), 0);
  int64_t offset = 0;
  if (node.op == Op::Reshape) {
    strides = row_major_strides(type.dims);
  } else if (node.op == Op::Transpose) {
    const Dims& permutation = std::get<Dims>(*node.find("permutation"));
    for (size_t d = 0; d < strides.size(); ++d) strides[d] = from[at(permutation[d])];
  } else if (node.op == Op::Slice) {
    const Dims &start = std::get<Dims>(*node.find("start_indices")), &step = std::get<Dims>(*node.find("strides"));
    for (size_t d = 0; d < strides.size(); ++d) {
      strides[d] = from[d] * step[d];
      offset += from[d] * start[d];
    }
  } else {  // BroadcastInDim
    const Dims& places = std::get<Dims>(*node.find("broadcast_dimensions"));
    for (size_t i = 0; i < places.size(); ++i) strides[at(places[i])] = operand.type.dims[i] == 1 ? 0 : from[i];
  }
  return moved(type, operand, strides, offset);
}

std::optional<Literal> fold_concatenate(const Node& node, std::span<const Literal* const> operands) {
  const Type& type = node.results[0].type();
  if (type.rank() != 1 || type.elements() > kMostFolded) return std::nullopt;
  std::string bytes;
  for (const Literal* operand : operands)
    for (int64_t i = 0; i < operand->type.elements(); ++i)
      bytes.append(operand->bytes, uniform_element(*operand) ? 0 : at(i * byte_size(type.dtype)), at(byte_size(type.dtype)));
  return Literal{type, std::move(bytes)};
}

// One element where all are alike, so that equal constants look equal.
Literal canonical(Literal literal) {
  const auto element = at(byte_size(literal.type.dtype));
  std::string& bytes = literal.bytes;
  if (bytes.size() > element && std::memcmp(bytes.data(), bytes.data() + element, bytes.size() - element) == 0)
    bytes.resize(element);
  return literal;
}

}  // namespace

const char* uniform_element(const Literal& literal) {
  return static_cast<int64_t>(literal.bytes.size()) == byte_size(literal.type.dtype) ? literal.bytes.data() : nullptr;
}

bool is_lossless(DType from, DType to) {
  if (from == to || from == DType::Pred) return true;
  if (to == DType::Pred || is_complex(from) || is_complex(to)) return false;
  if (is_float(from)) {
    if (!is_float(to)) return false;
    const FloatFormat a = float_format(from), b = float_format(to);
    return !b.finite_only && a.exponent_bits <= b.exponent_bits && a.mantissa_bits <= b.mantissa_bits;
  }
  const int64_t digits = 8 * byte_size(from) - (is_signed_integer(from) ? 1 : 0);
  if (is_float(to))
    return digits <= float_format(to).mantissa_bits + 1 && digits < (int64_t{1} << (float_format(to).exponent_bits - 1));
  if (is_signed_integer(from) && !is_signed_integer(to)) return false;
  return digits <= 8 * byte_size(to) - (is_signed_integer(to) ? 1 : 0);
}

std::optional<Literal> fold(const Node& node) {
  std::vector<const Literal*> operands;
  for (Value operand : node.operands) {
    operands.push_back(constant_literal(operand));
    if (!operands.back()) return std::nullopt;
  }
  if (operands.empty()) return std::nullopt;
  std::optional<Literal> result;
  switch (node.op) {
    case Op::Reshape:
    case Op::Transpose:
    case Op::Slice:
    case Op::BroadcastInDim: result = fold_movement(node, *operands[0]); break;
    case Op::Concatenate: result = fold_concatenate(node, operands); break;
    case Op::Negate:
    case Op::Abs:
    case Op::Not:
    case Op::Sign:
    case Op::Convert:
    case Op::Select:
    case Op::Compare:
    case Op::Add:
    case Op::Subtract:
    case Op::Multiply:
    case Op::Divide:
    case Op::Remainder:
    case Op::Maximum:
    case Op::Minimum:
    case Op::And:
    case Op::Or:
    case Op::Xor:
    case Op::ShiftLeft:
    case Op::ShiftRightLogical:
    case Op::ShiftRightArithmetic: result = fold_elementwise(node, operands); break;
    default: return std::nullopt;
  }
  return result ? std::optional(canonical(std::move(*result))) : std::nullopt;
}

}  // namespace flambeau::hlo
