// How a stack of layers that are not all equal runs as loops.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace flambeau::nn {

// Layers begin .. begin + period * count: a loop of `count` iterations whose body runs `period` layers one after another. Layers a
// period apart are of one kind.
struct LayerRun {
  size_t begin = 0, period = 1, count = 1;
  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

// The loops that run layers of these kinds in order with the fewest layers written out in bodies, and of such ways the fewest loops:
// A A A A is one loop over A; A A A B B is one over A and one over B; A A B A A B is one whose body runs A A B.
std::vector<LayerRun> find_runs(std::span<const size_t> kinds);

}  // namespace flambeau::nn
