#include "targets/slices.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace flambeau::targets {
namespace {

constexpr int64_t kPodEdge = 16;  // of v5e and v6e, in chips

bool whole_cubes(const SliceShape& shape) {
  return shape.size() == 3 && std::ranges::all_of(shape, [](int64_t d) { return d % kCubeEdge == 0; });
}

}  // namespace

int64_t chips_of(const SliceShape& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

// Of equal products, the most equal factors have the smallest sum.
std::tuple<int64_t, int64_t, SliceShape> slice_order(const SliceShape& shape) {
  return {chips_of(shape), std::accumulate(shape.begin(), shape.end(), int64_t{0}), shape};
}

std::vector<SliceShape> listed_slices(const Chip& chip) {
  if (chip.dimensions == 2) return {{1, 1}, {2, 2}, {2, 4}, {4, 4}, {4, 8}, {8, 8}, {8, 16}, {16, 16}};
  std::vector<SliceShape> shapes = {{2, 2, 1}, {2, 2, 2}, {2, 2, 4}, {2, 4, 4}};
  if (chip.generation == Generation::V7x) shapes.insert(shapes.begin(), {1, 1, 1});
  return shapes;
}

std::vector<SliceShape> slices(const Chip& chip) {
  std::vector<SliceShape> shapes = listed_slices(chip);
  if (chip.dimensions == 3) {
    for (int64_t a = kCubeEdge; a * a * a <= chip.largest_slice; a += kCubeEdge) {
      for (int64_t b = a; a * b * b <= chip.largest_slice; b += kCubeEdge) {
        for (int64_t c = b; c <= kLongestDimension && a * b * c <= chip.largest_slice; c += kCubeEdge) shapes.push_back({a, b, c});
      }
    }
  }
  std::ranges::sort(shapes, {}, slice_order);
  return shapes;
}

std::vector<int64_t> rings_of(const SliceShape& shape) {
  if (shape.size() == 3) return SliceShape(3, whole_cubes(shape) ? 1 : 0);
  return {shape[0] == kPodEdge ? 1 : 0, shape[1] == kPodEdge ? 1 : 0, 0};  // libtpu complains of a ring of one
}

// Google Cloud's machines: four chips; on v5e and v6e eight where the slice is one machine.
std::vector<int64_t> host_of(const SliceShape& shape) {
  if (chips_of(shape) == 1) return {1, 1, 1};
  if (shape == SliceShape{2, 4}) return {2, 4, 1};
  return {2, 2, 1};
}

}  // namespace flambeau::targets
