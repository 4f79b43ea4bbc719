#include "hlo/elements.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace flambeau::hlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Elements, EveryNarrowFloatReadsAndWritesBack) {
  for (DType t : {DType::F16, DType::BF16, DType::F8E4M3FN, DType::F8E5M2}) {
    int nans = 0;
    for (uint64_t bits = 0; bits < uint64_t{1} << (8 * byte_size(t)); ++bits) {
      const std::string bytes = encode_integer(byte_size(t) == 1 ? DType::U8 : DType::U16, bits);
      const double value = decode_float(t, bytes.data());
      if (std::isnan(value)) {
        ++nans;
        EXPECT_TRUE(std::isnan(decode_float(t, encode_float(t, value).data())));
      } else {
        EXPECT_EQ(encode_float(t, value), bytes) << hlo_name(t) << ' ' << bits;
      }
    }
    const FloatFormat f = float_format(t);
    EXPECT_EQ(nans, f.finite_only ? 2 : 2 * ((1 << f.mantissa_bits) - 1));
  }
}

TEST(Elements, Rounding) {
  struct Case {
    DType dtype;
    double value;
    uint64_t bits;
  };
  const Case cases[] = {
      {DType::BF16, 1.00390625, 0x3F80},  // a tie: to even, down
      {DType::BF16, 1.01171875, 0x3F82},  // a tie: to even, up
      {DType::BF16, 3.4e38, 0x7F80},      // above the greatest: infinity
      {DType::BF16, 1e-41, 0x0000 + 0},   // below half of the least
      {DType::BF16, 9.2e-41, 0x0001},     // subnormal
      {DType::F16, 65519, 0x7BFF},        // the greatest
      {DType::F16, 65520, 0x7C00},        // half way to the next: infinity
      {DType::F16, 0.1, 0x2E66},
      {DType::F16, std::ldexp(1.0, -24), 0x0001},
      {DType::F16, std::ldexp(1.0, -25), 0x0000},  // a tie: to even
      {DType::F16, -0.0, 0x8000},
      {DType::F16, kNan, 0x7E00},
      {DType::F8E4M3FN, 448, 0x7E},
      {DType::F8E4M3FN, 464, 0x7E},  // a tie: to even
      {DType::F8E4M3FN, 465, 0x7F},  // no infinity: NaN
      {DType::F8E4M3FN, -kInf, 0xFF},
      {DType::F8E4M3FN, std::ldexp(1.0, -9), 0x01},
      {DType::F8E5M2, 57344, 0x7B},
      {DType::F8E5M2, 61440, 0x7C},
      {DType::F32, 0.1, 0x3DCCCCCD},
      {DType::F32, 1e300, 0x7F800000},
  };
  for (const Case& c : cases)
    EXPECT_EQ(decode_bits(c.dtype, encode_float(c.dtype, c.value).data()), c.bits) << hlo_name(c.dtype) << ' ' << c.value;
}

TEST(Elements, Integers) {
  EXPECT_EQ(decode_integer(DType::S8, encode_integer(DType::S8, 0xFE).data()), -2);
  EXPECT_EQ(decode_integer(DType::U8, encode_integer(DType::U8, 0xFE).data()), 254);
  EXPECT_EQ(decode_integer(DType::Pred, encode_integer(DType::Pred, 8).data()), 1);
  struct Case {
    DType dtype;
    int64_t value;
    bool fits;
  };
  const Case cases[] = {{DType::S8, -128, true},        {DType::S8, 128, false},         {DType::U8, 255, true},
                        {DType::U8, -1, false},         {DType::Pred, 1, true},          {DType::Pred, 2, false},
                        {DType::U64, INT64_MAX, true},  {DType::U64, -1, false},         {DType::S64, INT64_MIN, true},
                        {DType::U32, 1LL << 32, false}, {DType::S32, -(1LL << 31), true}};
  for (const Case& c : cases) EXPECT_EQ(integer_fits(c.dtype, c.value), c.fits) << hlo_name(c.dtype) << ' ' << c.value;
}

TEST(Elements, Bounds) {
  struct Case {
    DType dtype;
    double low, high;
  };
  const Case cases[] = {
      {DType::Pred, 0, 1}, {DType::S8, -128, 127}, {DType::U16, 0, 65535}, {DType::S32, -2147483648.0, 2147483647}};
  for (const Case& c : cases) {
    EXPECT_EQ(decode_integer(c.dtype, lowest_element(c.dtype).data()), c.low);
    EXPECT_EQ(decode_integer(c.dtype, highest_element(c.dtype).data()), c.high);
  }
  EXPECT_EQ(decode_bits(DType::U64, highest_element(DType::U64).data()), UINT64_MAX);
  EXPECT_EQ(decode_float(DType::BF16, lowest_element(DType::BF16).data()), -kInf);
  EXPECT_EQ(decode_float(DType::F8E5M2, highest_element(DType::F8E5M2).data()), kInf);
  EXPECT_EQ(decode_float(DType::F8E4M3FN, highest_element(DType::F8E4M3FN).data()), 448);
  EXPECT_EQ(decode_float(DType::F8E4M3FN, lowest_element(DType::F8E4M3FN).data()), -448);
}

}  // namespace
}  // namespace flambeau::hlo
