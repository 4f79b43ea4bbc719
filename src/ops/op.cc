#include "ops/op.h"

#include <unordered_map>

#include "ops/promotion.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

constexpr std::span<const Row> (*kTables[])() = {
    arithmetic_rows, math_rows, activation_rows, logic_rows, creation_rows, shape_rows, reduction_rows, extremum_rows,
    matmul_rows, convolution_rows, loss_rows, norm_rows, batch_norm_rows, pooling_rows, padding_rows, upsample_rows, rnn_rows,
    attention_rows, block_attention_rows, indexing_rows, scatter_rows, sorting_rows, random_rows, optim_rows, amp_rows,
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
  constexpr DType kCategories[] = {DType::Pred, DType::S64, DType::F64, DType::C128};
  return kCategories[value.index()];
}

double Number::as_double() const {
  if (auto* b = std::get_if<bool>(&value)) return *b;
  if (auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
  if (auto* d = std::get_if<double>(&value)) return *d;
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
  if (dtype == DType::Pred) return b.constant(dtype, known->category() == DType::C128 || known->as_double() != 0 ? 1 : 0);
  if (is_complex(dtype) && known->category() == DType::C128) return b.constant(dtype, std::get<std::complex<double>>(known->value));
  if (is_integer(dtype)) {
    // Wraps as a C cast does; the constant itself must be exact.
    int64_t v = known->as_int();
    int bits = static_cast<int>(8 * byte_size(dtype));
    if (bits < 64) {
      uint64_t low = static_cast<uint64_t>(v) & ((uint64_t{1} << bits) - 1);
      bool negative = is_signed_integer(dtype) && (low >> (bits - 1));
      v = static_cast<int64_t>(low) - (negative ? int64_t{1} << bits : 0);
    }
    return b.constant(dtype, v);
  }
  return b.constant(dtype, known->as_double());
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
