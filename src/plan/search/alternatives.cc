#include "plan/search/alternatives.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "pjrt/topology_compiler.h"

namespace flambeau::plan {
namespace {

// What one compilation may take, for deciding how many run at once: the largest that were seen take about so much.
constexpr int64_t kMemoryOfACompilation = int64_t{3} << 30;

int64_t free_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kibibytes = 0;
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
  }
  return kMemoryOfACompilation;
}

bool says_tokens(const train::Config& config) {
  return config.given.contains("training.num_tokens_per_microbatch_per_dp_rank") || config.training.sequences_per_microbatch == 0;
}

Change change_of(const Keys& keys, const Outcome& outcome) {
  const Report& r = outcome.report;
  return {.keys = keys, .total = r.memory.total, .step_s = r.estimate.step_s,
          .fits = outcome.failure.empty() && r.memory.fits(), .failure = outcome.failure};
}

// Single changes that may save memory.
std::vector<Keys> candidates(const Planner& planner, const Draft& draft) {
  const train::Config& config = draft.config;
  std::vector<Keys> changes;
  const std::string& mode = config.activation_checkpoint.mode;
  const Keys scan = config.model.scan ? Keys{} : Keys{{"model.scan", "true"}};
  const auto keep = [&](const char* other) {
    Keys keys = scan;
    keys.emplace_back("activation_checkpoint.mode", other);
    changes.push_back(std::move(keys));
  };
  if (mode == "none" || !config.model.scan) keep("selective");
  if (mode != "full" || !config.model.scan) keep("full");
  if (mode == "none" || mode == "selective" || mode == "budget") keep("offload");
  const int64_t rows = draft.report.sequences_per_device, rows_per_step = draft.step.batching.sequences_per_step();
  if (rows > 1) {
    changes.push_back(batch_keys(config, rows / 2, rows_per_step));
    if (rows > 2) changes.push_back(batch_keys(config, 1, rows_per_step));
  }
  if (config.loss.chunks < 4 * 8) changes.push_back({{"loss.chunks", std::to_string(4 * std::max<int64_t>(8, config.loss.chunks))}});
  if (config.optimizer.state_dtype != "bfloat16") changes.push_back({{"optimizer.state_dtype", "bfloat16"}});
  // More devices that share a layer: the data-parallel ranks become fewer and keep their microbatches, so a step has as many
  // tokens only with more of these.
  const spmd::Degrees& degrees = draft.step.degrees;
  for (const int64_t times : {2, 4, 8}) {
    if (degrees.shard % times != 0) break;
    Keys keys = batch_keys(config, rows, rows_per_step);
    keys.emplace_back("parallelism.tensor_parallel_degree", std::to_string(degrees.tensor * times));
    keys.emplace_back("parallelism.data_parallel_shard_degree", "-1");
    changes.push_back(std::move(keys));
  }
  const int64_t slices = planner.pod().slices;
  if (degrees.replicate > slices) {
    changes.push_back({{"parallelism.data_parallel_replicate_degree", std::to_string(slices)},
                       {"parallelism.data_parallel_shard_degree", "-1"}});
  }
  return changes;
}

}  // namespace

train::Config with_keys(const train::Config& config, const Keys& keys) {
  train::Config changed = config;
  for (const auto& [name, value] : keys) train::set_from_text(changed, name, value);
  return changed;
}

Keys batch_keys(const train::Config& config, int64_t rows, int64_t rows_per_step) {
  if (!says_tokens(config))
    return {{"training.sequences_per_microbatch", std::to_string(rows)},
            {"training.sequences_per_train_step", std::to_string(rows_per_step)}};
  const int64_t context = config.training.max_context_length;
  return {{"training.num_tokens_per_microbatch_per_dp_rank", std::to_string(rows * context)},
          {"training.num_tokens_per_train_step", std::to_string(rows_per_step * context)}};
}

size_t compilations_at_once() {
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return static_cast<size_t>(std::max<int64_t>(1, std::min(cores, free_memory() / kMemoryOfACompilation)));
}

std::vector<Outcome> compile_all(const Planner& planner, const std::vector<Draft>& drafts, const Progress& progress,
                                 const std::function<void(size_t, const Outcome&)>& done) {
  std::vector<Outcome> outcomes(drafts.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> ended{false};  // before all were compiled
  std::mutex mutex;                // of what follows, and of the callbacks
  std::exception_ptr why;
  size_t finished = 0;
  const auto goes_on = [&] { return !ended && (!progress.goes_on || progress.goes_on()); };
  const auto end = [&](std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!why) why = std::move(error);
    ended = true;
  };
  const auto compile = [&](size_t i) {
    try {
      outcomes[i].report = planner.compile(drafts[i], goes_on);
    } catch (const pjrt::Cancelled&) {
      throw;
    } catch (const std::exception& error) {
      outcomes[i].failure = first_line(error.what());
    }
    const std::lock_guard lock(mutex);
    if (done) done(i, outcomes[i]);
    if (progress.report) progress.report(fmt::format("{} of {} compiled", ++finished, drafts.size()));
  };
  const auto work = [&] {
    try {
      for (size_t i = next++; i < drafts.size() && !ended; i = next++) compile(i);
    } catch (...) {
      end(std::current_exception());  // leaving the thread, it would end the process
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t t = std::min(drafts.size(), compilations_at_once()); t > 0; --t) threads.emplace_back(work);
  }
  if (why) std::rethrow_exception(why);
  return outcomes;
}

std::vector<Change> memory_changes(const Planner& planner, const Draft& draft, const Report& report, const Progress& progress) {
  const auto try_all = [&](const std::vector<Keys>& all) {
    std::vector<Keys> keys;
    std::vector<Draft> drafts;
    for (const Keys& k : all) {
      try {
        drafts.push_back(planner.record(with_keys(draft.config, k)));
        keys.push_back(k);
      } catch (const Error&) {
        // No configuration that training would take: nothing to propose.
      }
    }
    const std::vector<Outcome> outcomes = compile_all(planner, drafts, progress);
    std::vector<Change> changes;
    for (size_t i = 0; i < keys.size(); ++i) changes.push_back(change_of(keys[i], outcomes[i]));
    return changes;
  };
  std::vector<Change> changes = try_all(candidates(planner, draft));
  std::erase_if(changes, [&](const Change& c) { return c.failure.empty() && c.total >= report.memory.total; });
  std::ranges::sort(changes, {}, [](const Change& c) { return std::pair(!c.failure.empty(), c.total); });
  if (std::ranges::any_of(changes, &Change::fits)) return changes;
  Keys together;
  const size_t singles = changes.size();
  for (size_t i = 0; i < singles && changes[i].failure.empty(); ++i) {
    const auto is_set = [&](const auto& key) { return std::ranges::count(together, key.first, &Keys::value_type::first) > 0; };
    if (std::ranges::any_of(changes[i].keys, is_set)) continue;
    together.insert(together.end(), changes[i].keys.begin(), changes[i].keys.end());
    if (together.size() == changes[i].keys.size()) continue;  // the first alone is known
    std::vector<Change> combined = try_all({together});
    if (combined.empty() || !combined.front().failure.empty()) break;
    const bool fits = combined.front().fits;
    changes.push_back(std::move(combined.front()));
    if (fits) break;
  }
  return changes;
}

}  // namespace flambeau::plan
