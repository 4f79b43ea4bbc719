#include "train/summary.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "hlo/sharding.h"
#include "spmd/sharding_rules.h"
#include "train/metrics.h"
#include "train/param_groups.h"

namespace flambeau::train {
namespace {

constexpr size_t kWidth = 100;

std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

std::string count(int64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", with_commas(n), n == 1 ? one : many);
}

std::string mesh_text(const Degrees& degrees) {
  if (degrees.devices() == 1) return describe(degrees);
  return fmt::format("{} devices: {}", degrees.devices(), describe(degrees));
}

std::string tokens_text(const Batching& b, const Degrees& degrees) {
  std::string text = fmt::format("{} = {} x {} of {}", with_commas(b.tokens_per_step()), count(b.accumulation, "microbatch", "microbatches"),
                                 count(b.sequences, "row", "rows"), with_commas(b.context));
  const int64_t ranks = degrees.data_parallel();
  if (ranks > 1) text += fmt::format(", {} a data-parallel rank", count(b.sequences / ranks, "row", "rows"));
  return text;
}

// Where a line of at most `width` ends: behind the last blank within it.
size_t line_end(std::string_view text, size_t width) {
  if (text.size() <= width) return text.size();
  const size_t blank = text.rfind(' ', width);
  return blank == std::string_view::npos || blank == 0 ? width : blank;
}

}  // namespace

int64_t parameters_per_device(const nn::Parameters& parameters) {
  const spmd::ShardingRules* rules = spmd::sharding_rules();
  int64_t total = 0;
  for (const nn::Stored& p : parameters.stored()) {
    if (p.traits.buffer) continue;
    int64_t parts = 1;
    if (rules != nullptr) {
      for (const hlo::Sharding::Dim& dim : rules->sharding(p.axes).dims) parts *= hlo::axes_size(rules->mesh(), dim.axes);
    }
    total += p.elements() / parts;
  }
  return total;
}

TableRows summary_rows(const Config& config, const models::Model& model, const SummaryFacts& facts) {
  TableRows rows;
  rows.emplace_back("mesh", mesh_text(facts.degrees));
  const int64_t parameters = model.parameters().elements(), frozen = parameters - model.parameters().trainable_elements();
  rows.emplace_back("parameters", fmt::format("{}, {} a device ({} {}){}", with_commas(parameters), with_commas(facts.parameters_per_device),
                                              config.model.name, config.model.flavor,
                                              frozen > 0 ? fmt::format(", {} frozen", with_commas(frozen)) : ""));
  rows.emplace_back("tokens a step", tokens_text(facts.batching, facts.degrees));
  rows.emplace_back("steps", fmt::format("{}, {} of them warm-up", with_commas(config.training.steps), with_commas(facts.warmup_steps)));
  rows.emplace_back("memory a device", facts.argument_bytes == 0
                                           ? "not known before it runs"
                                           : fmt::format("{}: {} of state and batch, {} of temporaries, as compiled",
                                                         gib(facts.argument_bytes + facts.temporary_bytes), gib(facts.argument_bytes),
                                                         gib(facts.temporary_bytes)));
  if (!facts.attention.empty()) rows.emplace_back("attention", facts.attention);
  const models::TokenFlops flops = model.flops_per_token(facts.batching.context);
  rows.emplace_back("FLOPs a token", fmt::format("{:.4g} (causal {:.4g})", flops.standard, flops.causal));
  rows.emplace_back("optimizer", describe_optimizer(config, model));
  return rows;
}

std::string format_table(const TableRows& rows, bool colour) {
  size_t names = 0;
  for (const auto& [name, value] : rows) names = std::max(names, name.size());
  std::string out;
  for (const auto& [name, value] : rows) {
    const std::string padded = fmt::format("{:<{}}", name, names);
    std::string left = colour ? fmt::format("\033[1m{}\033[0m", padded) : padded;
    for (std::string_view rest = value; !left.empty();) {
      const size_t end = line_end(rest, kWidth - names - 2);
      out += fmt::format("{}{}  {}", out.empty() ? "" : "\n", left, rest.substr(0, end));
      rest.remove_prefix(end);
      if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
      left = rest.empty() ? "" : std::string(names, ' ');
    }
  }
  return out;
}

}  // namespace flambeau::train
