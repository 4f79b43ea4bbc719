#include "nn/runs.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace flambeau::nn {

std::vector<LayerRun> find_runs(std::span<const size_t> kinds) {
  using Cost = std::pair<size_t, size_t>;  // layers in bodies, loops
  const size_t n = kinds.size();
  const Cost worst{std::numeric_limits<size_t>::max(), 0};
  std::vector<Cost> costs(n + 1, worst);  // of what is left from a layer on
  std::vector<LayerRun> first(n + 1);     // how that begins
  costs[n] = {0, 0};
  for (size_t begin = n; begin-- > 0;) {
    for (size_t period = 1; begin + period <= n; ++period) {
      for (size_t end = begin + period, count = 1; end <= n; end += period, ++count) {
        const auto repeats = kinds.begin() + static_cast<std::ptrdiff_t>(end - period);
        if (!std::equal(repeats, repeats + static_cast<std::ptrdiff_t>(period), kinds.begin() + static_cast<std::ptrdiff_t>(begin))) break;
        if (count == 1 && period > 1) continue;  // no loop: each layer may as well be a run of its own
        const Cost cost{costs[end].first + period, costs[end].second + 1};
        if (cost >= costs[begin]) continue;
        costs[begin] = cost;
        first[begin] = {begin, period, count};
      }
    }
  }
  std::vector<LayerRun> runs;
  for (size_t begin = 0; begin < n; begin += runs.back().period * runs.back().count) runs.push_back(first[begin]);
  return runs;
}

}  // namespace flambeau::nn
