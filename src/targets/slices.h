// Which slices of each TPU generation there are, and how their chips are joined to hosts and rings.
//
// A slice is a block of chips joined by ICI; its shape counts chips. From Google Cloud's pages on each generation. v5e and v6e: those
// that are listed, up to 16x16. v4, v5p and tpu7x: parts of a cube that are listed (2x2x1, 2x2x2, 2x2x4, 2x4x4; tpu7x also 1x1x1), and
// blocks of whole 4x4x4 cubes: AxBxC with A <= B <= C, each a multiple of 4 (up to 256), up to the generation's largest slice. libtpu takes
// any numbers: it ends the process on some and compiles others for machines that nobody can have.
//
// Optical switches close the ring in each dimension of a block of whole cubes; parts of a cube have no rings. On v5e and v6e a
// dimension has a ring where it has all 16 chips of the pod. Twisted tori are not told to libtpu.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "targets/chips.h"

namespace flambeau::targets {

using SliceShape = std::vector<int64_t>;

inline constexpr int64_t kCubeEdge = 4;          // chips
inline constexpr int64_t kLongestDimension = 256;  // chips, as Google's xpk has it

int64_t chips_of(const SliceShape& shape);
// Smallest first; of the same size, the one most like a cube (or square) first.
std::tuple<int64_t, int64_t, SliceShape> slice_order(const SliceShape& shape);

// The slices that are listed one by one, and all of them in slice_order.
std::vector<SliceShape> listed_slices(const Chip& chip);
std::vector<SliceShape> slices(const Chip& chip);

// Three elements each, whatever the shape: 1 for dimensions that are rings; the chips of one host.
std::vector<int64_t> rings_of(const SliceShape& shape);
std::vector<int64_t> host_of(const SliceShape& shape);

}  // namespace flambeau::targets
