#include "train/parallelism.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::train {
namespace {

constexpr int64_t kMostDevices = int64_t{1} << 20;
constexpr const char* kReplicateKey = "parallelism.data_parallel_replicate_degree";
constexpr const char* kShardKey = "parallelism.data_parallel_shard_degree";
constexpr const char* kTensorKey = "parallelism.tensor_parallel_degree";

// What is wrong with the degrees for these sizes, as far as "expected X, got Y"; nothing: they fit.
std::optional<std::string> misfit(const Degrees& d, const Config::Parallelism& asked, const ParallelProblem& problem) {
  const auto expect_divides = [](const char* key, int64_t degree, const char* what, int64_t size) -> std::optional<std::string> {
    if (size % degree == 0) return std::nullopt;
    return fmt::format("{}: expected a divisor of {} = {}, got {}", key, what, size, degree);
  };
  const models::Sizes& s = problem.sizes;
  for (const auto& [what, size] : {std::pair{"model.n_heads", s.heads}, {"model.n_kv_heads", s.kv_heads},
                                   {"model.ffn_dim", s.ffn_dim}, {"model.vocab_size", s.vocab_size}}) {
    if (auto wrong = expect_divides(kTensorKey, d.tensor, what, size)) return wrong;
  }
  if (asked.enable_sequence_parallel) {
    const char* what = "training.max_context_length (parallelism.enable_sequence_parallel splits rows)";
    if (auto wrong = expect_divides(kTensorKey, d.tensor, what, problem.context)) return wrong;
  }
  return expect_divides(kShardKey, d.shard, "model.dim", s.dim);
}

// The legal degrees that change those asked for by the smallest factors; a shard degree of -1 takes any value at no cost.
// There always is one: replicas alone need nothing of the sizes.
Degrees nearest_legal(const Config::Parallelism& asked, const ParallelProblem& problem) {
  const auto cost = [](int64_t want, int64_t got) {
    return want == -1 ? 0 : std::abs(std::log2(static_cast<double>(got) / static_cast<double>(want)));
  };
  Degrees best{.replicate = problem.devices};
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t tensor : divisors(problem.devices)) {
    for (const int64_t shard : divisors(problem.devices / tensor)) {
      const Degrees d{.replicate = problem.devices / tensor / shard, .shard = shard, .tensor = tensor};
      // Among equals the shard degree changes first, then replicas, which cost memory, then the tensor degree, which costs traffic.
      const double total = cost(asked.data_parallel_shard_degree, shard) +
                           1.01 * cost(asked.data_parallel_replicate_degree, d.replicate) +
                           1.02 * cost(asked.tensor_parallel_degree, tensor);
      if (total < least && !misfit(d, asked, problem)) {
        least = total;
        best = d;
      }
    }
  }
  return best;
}

// "set parallelism.tensor_parallel_degree = 2", with all keys that must change.
std::string remedy(const Config::Parallelism& asked, const ParallelProblem& problem) {
  const Degrees legal = nearest_legal(asked, problem);
  std::vector<std::string> changes;
  const auto compare = [&](const char* key, int64_t want, int64_t got) {
    if (want != got) changes.push_back(fmt::format("{} = {}", key, got));
  };
  compare(kReplicateKey, asked.data_parallel_replicate_degree, legal.replicate);
  const bool rest = asked.data_parallel_shard_degree == -1;  // stays as it is where it comes to the same
  if (!rest) compare(kShardKey, asked.data_parallel_shard_degree, legal.shard);
  compare(kTensorKey, asked.tensor_parallel_degree, legal.tensor);
  return fmt::format("choose for example {}", fmt::join(changes, ", "));
}

void refuse_what_is_not_built(const Config::Parallelism& asked) {
  for (const auto& [key, degree] : {std::pair{"pipeline_parallel_degree", asked.pipeline_parallel_degree},
                                    {"context_parallel_degree", asked.context_parallel_degree},
                                    {"expert_parallel_degree", asked.expert_parallel_degree}}) {
    if (degree == 1) continue;
    raise<NotImplemented>("parallelism.{}: expected 1, got {}: it is not built yet; split over "
                          "parallelism.data_parallel_shard_degree or parallelism.tensor_parallel_degree instead", key, degree);
  }
}

}  // namespace

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    out.push_back(d);
    if (d * d != n) out.push_back(n / d);
  }
  std::ranges::sort(out);
  return out;
}

Degrees resolve_parallelism(const Config::Parallelism& asked, const ParallelProblem& problem) {
  refuse_what_is_not_built(asked);
  if (problem.devices > kMostDevices) {
    raise<InvalidArgument>("parallelism: expected degrees whose product is at most {} devices, got {}; choose smaller degrees",
                           kMostDevices, problem.devices);
  }
  Degrees d{.replicate = asked.data_parallel_replicate_degree, .tensor = asked.tensor_parallel_degree};
  const int64_t fixed = d.replicate * d.tensor;
  const bool rest = asked.data_parallel_shard_degree == -1;
  d.shard = !rest ? asked.data_parallel_shard_degree : fixed <= problem.devices ? problem.devices / fixed : 1;
  if (d.devices() != problem.devices) {
    // -1 cannot make up for degrees that do not divide the devices.
    raise<InvalidArgument>("parallelism: expected degrees whose product is the {} device{}, got replicate {} x shard {} x tensor "
                           "{}; {}, or run on {} devices (debug.virtual_devices, with the CPU plugin)",
                           problem.devices, problem.devices == 1 ? "" : "s", d.replicate,
                           rest ? "-1 (the rest)" : fmt::format("{}", d.shard), d.tensor, remedy(asked, problem),
                           d.devices());
  }
  if (const auto wrong = misfit(d, asked, problem)) raise<InvalidArgument>("{}; {}", *wrong, remedy(asked, problem));
  return d;
}

int64_t assumed_devices(const Config& config) {
  if (config.debug.virtual_devices > 1) return config.debug.virtual_devices;
  const Config::Parallelism& p = config.parallelism;
  return p.data_parallel_replicate_degree * std::max<int64_t>(1, p.data_parallel_shard_degree) * p.tensor_parallel_degree;
}

std::string describe(const Degrees& degrees) {
  std::vector<std::string> axes;
  for (const hlo::MeshAxis& axis : degrees.axes())
    if (axis.size > 1) axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  return axes.empty() ? "1 device" : fmt::format("{}", fmt::join(axes, " x "));
}

}  // namespace flambeau::train
