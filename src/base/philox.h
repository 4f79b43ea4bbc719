// Philox-4x32-10, the counter-based generator behind every random number of the project, on the host.
//
// "Parallel random numbers: as easy as 1, 2, 3" (Salmon et al., SC 2011); the constants are those of Random123. A stream is a
// seed (the key) and an offset; block i of it has the counter (offset + i, 0), a 128-bit number whose low 64 bits count blocks.
// A block gives four 32-bit words; word j of a stream is word j % 4 of block j / 4. The programs that devices run
// (ops/random.h) compute the same words in integer arithmetic, so that what is drawn here and there agrees bit for bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flambeau::philox {

inline constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;  // of words 0 and 2
inline constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;              // added to the key in each round
inline constexpr int kRounds = 10;

using Block = std::array<uint32_t, 4>;

// The bijection itself: counter words (least significant first) under a key.
constexpr Block encrypt(Block x, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    uint64_t p0 = uint64_t{kMultiplier0} * x[0], p1 = uint64_t{kMultiplier1} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return x;
}

// Block `index` of the stream (seed, offset).
constexpr Block block(uint64_t seed, uint64_t offset, uint64_t index) {
  uint64_t counter = offset + index;
  return encrypt({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Word `index` of the stream. For a run of words take block() and use all four.
constexpr uint32_t word(uint64_t seed, uint64_t offset, uint64_t index) { return block(seed, offset, index / 4)[index % 4]; }

// 64-bit draw `index`: words 2 index (low) and 2 index + 1 (high).
constexpr uint64_t word64(uint64_t seed, uint64_t offset, uint64_t index) {
  Block w = block(seed, offset, index / 2);
  std::size_t at = 2 * (index % 2);
  return w[at] | uint64_t{w[at + 1]} << 32;
}

// Floats in [0, 1): the top 24 (53) bits of a draw; exact.
constexpr float unit_float(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
constexpr double unit_double(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

}  // namespace flambeau::philox
