#include "ops/op.h"

#include <cmath>
#include <limits>
#include <unordered_map>

#include "hlo/elements.h"
#include "ops/promotion.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

constexpr std::span<const Row> (*kTables[])() = {
    arithmetic_rows, math_rows, activation_rows, logic_rows, creation_rows, shape_rows, reduction_rows, extremum_rows,
    matmul_rows, convolution_rows, loss_rows, norm_rows, batch_norm_rows, pooling_rows, padding_rows, upsample_rows, rnn_rows,
    dense_attention_rows, block_attention_rows, indexing_rows, scatter_rows, mask_rows, sorting_rows, random_rows, stochastic_round_rows,
    order_rows, optim_rows, amp_rows,
};

struct Table {
  std::vector<Row> rows;
  std::unordered_map<std::string_view, const Row*> by_name;

  Table() {
    for (auto rows_of : kTables) {
      auto part = rows_of();
      rows.insert(rows.end(), part.begin(), part.end());
    }
    by_name.reserve(rows.size());
    for (const Row& row : rows) FLAMBEAU_CHECK(by_name.emplace(row.name, &row).second, "each op has one row");
  }
};

const Table& table() {
  static const Table instance;
  return instance;
}

}  // namespace

std::span<const Row> all_rows() { return table().rows; }

const Row* find_row(std::string_view name) {
  const auto& names = table().by_name;
  auto it = names.find(name);
  return it == names.end() ? nullptr : it->second;
}

DType Number::category() const {
  constexpr DType kCategories[] = {DType::Pred, DType::S64, DType::F64, DType::C128, DType::U64};
  return kCategories[value.index()];
}

double Number::as_double() const {
  if (auto* b = std::get_if<bool>(&value)) return *b;
  if (auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
  if (auto* d = std::get_if<double>(&value)) return *d;
  if (auto* u = std::get_if<uint64_t>(&value)) return static_cast<double>(*u);
  auto z = std::get<std::complex<double>>(value);
  if (z.imag() != 0) raise<InvalidArgument>("value cannot be converted to type double without overflow");
  return z.real();
}

int64_t Number::as_int() const {
  if (auto* b = std::get_if<bool>(&value)) return *b;
  if (auto* i = std::get_if<int64_t>(&value)) return *i;
  double d = as_double();
  // 2^63 is the first double that no int64_t holds; NaN fails both comparisons.
  if (!(d >= -0x1p63 && d < 0x1p63)) raise<InvalidArgument>("value cannot be converted to type int64_t without overflow");
  return static_cast<int64_t>(d);
}

Value Scalar::as(Builder& b, DType dtype) const {
  if (!known) return convert(b, parameter, dtype);
  if (auto* z = std::get_if<std::complex<double>>(&known->value)) {
    if (is_complex(dtype)) return b.constant(dtype, *z);
    if (dtype == DType::Pred) return b.constant(dtype, *z != 0.0 ? 1 : 0);
  }
  if (dtype == DType::Pred) return b.constant(dtype, known->as_double() != 0 ? 1 : 0);
  auto* beyond = std::get_if<uint64_t>(&known->value);
  if (is_integer(dtype)) {  // wraps as a C cast does
    uint64_t bits = beyond ? *beyond : static_cast<uint64_t>(known->as_int());
    return b.literal({dtype, {}}, hlo::encode_integer(dtype, bits).data());
  }
  // An integer is rounded once.
  return known->category() == DType::S64 ? b.constant(dtype, known->as_int()) : b.constant(dtype, known->as_double());
}

namespace {

// As messages of PyTorch's call it.
std::string_view c_name(DType dtype) {
  switch (dtype) {
    case DType::S8: return "int8_t";
    case DType::S16: return "int16_t";
    case DType::S32: return "int32_t";
    case DType::S64: return "int64_t";
    case DType::U8: return "uint8_t";
    case DType::U16: return "uint16_t";
    case DType::U32: return "uint32_t";
    case DType::U64: return "uint64_t";
    case DType::F16: return "c10::Half";
    case DType::BF16: return "c10::BFloat16";
    case DType::F32: return "float";
    case DType::C64: return "c10::complex<float>";
    default: return torch_name(dtype);
  }
}

// c10::overflows.
bool overflows(const Number& number, DType dtype) {
  if (is_complex(dtype)) {
    auto* z = std::get_if<std::complex<double>>(&number.value);
    DType part = dtype == DType::C64 ? DType::F32 : DType::F64;
    return z ? overflows({z->real()}, part) || overflows({z->imag()}, part) : overflows(number, part);
  }
  if (auto* z = std::get_if<std::complex<double>>(&number.value)) return z->imag() != 0 || overflows({z->real()}, dtype);
  if (is_integer(dtype)) {
    int bits = static_cast<int>(8 * byte_size(dtype)) - is_signed_integer(dtype);
    uint64_t greatest = ~uint64_t{0} >> (64 - bits);
    if (auto* u = std::get_if<uint64_t>(&number.value)) return *u > greatest;
    if (auto* i = std::get_if<int64_t>(&number.value)) {
      uint64_t magnitude = *i < 0 ? -static_cast<uint64_t>(*i) : static_cast<uint64_t>(*i);
      return *i < 0 ? magnitude > greatest + is_signed_integer(dtype) : magnitude > greatest;
    }
    double v = number.as_double(), end = std::ldexp(1.0, bits);
    return !(v >= (is_signed_integer(dtype) ? -end : 0) && v < end);
  }
  double v = number.as_double();
  if (!is_float(dtype) || dtype == DType::F64 || !std::isfinite(v)) return false;
  hlo::FloatFormat format = hlo::float_format(dtype);
  double unit = std::ldexp(1.0, -format.mantissa_bits);
  double greatest = std::ldexp(format.finite_only ? 2 - 2 * unit : 2 - unit, format.bias() + format.finite_only);
  return std::abs(v) > greatest;
}

}  // namespace

void check_fits(const Number& number, DType dtype) {
  if (dtype != DType::Pred && overflows(number, dtype))
    raise<InvalidArgument>("value cannot be converted to type {} without overflow", c_name(dtype));
}

void check_parameter_fits(const Row& row, size_t index, const Number& number, DType result) {
  if (row.fits >> index & 1) check_fits(number, row.in_compute_type ? compute_type(result) : result);
}

Operand Scalar::operand(Builder& b) const { return {known ? as(b, category()) : parameter, true}; }

const Number& Scalar::number(std::string_view op) const {
  if (!known) raise<Error>("[{}] a number must be known while the program is built; its row must say Specialise", op);
  return *known;
}

void detail::bad_argument(size_t index, std::string_view expected) {
  raise<InvalidArgument>("[op] argument {}: expected {}", index, expected);
}

}  // namespace flambeau::ops
