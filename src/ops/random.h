// Random numbers inside programs: Philox-4x32-10 in integer arithmetic (base/philox.h defines the words and computes the
// same ones on the host).
//
// An op that draws takes a Random: the seed and the offset of its first block, both rank-0 parameters of the program, so
// that neither recompiles it. What element i of an op's output is made of depends on (seed, offset, i) alone, not on the
// shape around it, the mode, the plugin or the sharding: its bits and uniforms are the same everywhere; normals and
// exponentials differ by the plugin's logarithm in the last place.
//
//   32-bit draw i    word i                       dtypes up to 32 bits
//   64-bit draw i    words 2i (low), 2i + 1       float64, int64, complex64 (as its real and imaginary parts)
//   uniform [0, 1)   top 24 (53) bits of a draw
//   normal           sqrt(2) erfinv(x) of one draw (Giles 2010), x the middle of the draw's cell in (-1, 1): |normal| < 5.5
//   (8.3) exponential      -log of a uniform in (0, 1]
//
// float16 and bfloat16 are computed in float32 and rounded once.
//
// The runtime advances the generator by random_blocks(elements of output 0, its dtype) for every random op. An op that needs
// more than that (one draw a category, a dropout mask inside attention) takes Stream::Wide: blocks whose counter is
// (block, offset + 2^63) instead of (offset + block, 0). No other op's stream meets it, however long it is.
#pragma once

#include <array>

#include "ops/op.h"

namespace flambeau::ops {

// How many blocks of four words an op's draws take: ceil(n / 4) for 32-bit draws, ceil(n / 2) for 64-bit ones.
int64_t random_blocks(int64_t elements, DType dtype);

enum class Stream { Main, Wide };

// The four words of a block for each element of `index` (U64, of any shape), whose counter is (index, high). `key` (U64) is one for all,
// or one for each index of dimension 0. For draws that must not depend on where an element lies.
std::array<Value, 4> random_words_of(Builder& b, Value index, Value high, Value key);

Value random_bits(Builder& b, const Random& random, int64_t words, Stream stream = Stream::Main);    // U32[words]
Value random_bits64(Builder& b, const Random& random, int64_t draws, Stream stream = Stream::Main);  // U64[draws]

// `dtype` F32 or F64. Uniform in [0, 1); in (0, 1]; standard normal.
Value random_unit(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream = Stream::Main);
Value random_positive_unit(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream = Stream::Main);
Value random_normal(Builder& b, const Random& random, DType dtype, const Dims& dims, Stream stream = Stream::Main);

// Pred: true with probability p (for the elements of a mask, from 32-bit draws).
Value random_mask(Builder& b, const Random& random, double p, const Dims& dims, Stream stream = Stream::Main);

}  // namespace flambeau::ops
