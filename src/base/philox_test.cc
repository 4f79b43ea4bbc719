#include "base/philox.h"

#include <gtest/gtest.h>

namespace flambeau::philox {

namespace {

// Known answers of philox4x32-10 from Random123 (kat_vectors).
TEST(Philox, KnownAnswers) {
  struct {
    Block counter;
    std::array<uint32_t, 2> key;
    Block expected;
  } cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (auto& c : cases) EXPECT_EQ(encrypt(c.counter, c.key), c.expected);
}

TEST(Philox, StreamsAreBlocksOneAfterTheOther) {
  constexpr uint64_t kSeed = 0x123456789abcdef0, kOffset = 0xfffffffe;
  EXPECT_EQ(block(kSeed, kOffset, 3), block(kSeed, kOffset + 3, 0));  // the low counter word overflows
  EXPECT_EQ(block(kSeed, kOffset, 3), encrypt({1, 1, 0, 0}, {0x9abcdef0, 0x12345678}));
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(word(kSeed, 5, i), block(kSeed, 5, i / 4)[i % 4]);
    EXPECT_EQ(word64(kSeed, 5, i), word(kSeed, 5, 2 * i) | uint64_t{word(kSeed, 5, 2 * i + 1)} << 32);
  }
}

TEST(Philox, FloatsLieBelowOne) {
  EXPECT_EQ(unit_float(0), 0.0f);
  EXPECT_EQ(unit_float(~0u), 1 - 0x1p-24f);
  EXPECT_EQ(unit_double(~uint64_t{0}), 1 - 0x1p-53);
  EXPECT_EQ(unit_float(0x80000000), 0.5f);
}

}  // namespace

}  // namespace flambeau::philox
