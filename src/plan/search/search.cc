#include "plan/search/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "pjrt/topology_compiler.h"
#include "plan/report/format.h"
#include "plan/search/record.h"

namespace flambeau::plan {
namespace {

// Where the compiler was not asked yet, a candidate may need so much more than there is by the analytic mode, which is that wrong.
constexpr double kBelievedTotal = 1.25;
// What should be slower than the best by this is not worth compiling; corrected estimates are off by a few percent.
constexpr double kHopeful = 0.97;
constexpr size_t kWithBlocks = 3;  // so many of the best are tried with other blocks of attention
constexpr double kNotable = 1e-3;  // of a step's time: a smaller difference is none

struct Entry {
  Candidate candidate;
  std::string key;  // of its program
  // By the analytic mode: seconds of a step without what goes to the host's memory, and of that; bytes.
  double analytic_s = 0, host_s = 0;
  int64_t analytic_total = 0;
};

Entry entry_of(Candidate candidate, std::string key, const Report& analysed) {
  const Estimate& e = analysed.estimate;
  return {.candidate = std::move(candidate), .key = std::move(key), .analytic_s = std::max(e.compute_s, e.hbm_s) + e.exposed_s, .host_s = e.host_s,
          .analytic_total = analysed.memory.total};
}

Candidate candidate_of(const Choice& choice, Keys keys, const Report& report, bool compiled) {
  return {.choice = choice, .keys = std::move(keys), .total = report.memory.total, .step_s = report.estimate.step_s,
          .tokens_per_second_per_chip = report.tokens_per_second_per_chip(), .mfu = report.mfu(), .fits = report.memory.fits(),
          .compiled = compiled, .given = false, .failure = {}};
}

bool fits(const Entry& e) { return e.candidate.compiled && e.candidate.fits; }
bool answered(const Entry& e) { return e.candidate.compiled && e.candidate.failure.empty(); }

class Search {
 public:
  Search(const Planner& planner, const train::Config& config, const SearchOptions& options, const Progress& progress)
      : planner_(planner), config_(config), options_(options), progress_(progress), record_(options.record),
        compiler_(planner.fingerprint()) {}

  SearchResult run() {
    begin();
    analyse();
    if (planner_.compiles()) {
      compile_promising();
      compile_blocks();
    }
    SearchResult result{.candidates = {}, .considered = considered_, .hopeless = hopeless_, .compiler = planner_.compiles()};
    for (Entry& e : entries_) result.candidates.push_back(std::move(e.candidate));
    rank(result.candidates);
    return result;
  }

 private:
  void check() const {
    if (progress_.goes_on && !progress_.goes_on()) throw pjrt::Cancelled("[plan] given up");
  }
  void report(std::string text) const {
    if (progress_.report) progress_.report(std::move(text));
  }

  // ---- the analytic mode ------------------------------------------------------------------------------------------------------

  // What the configuration itself says: how many sequences a step has, and what it is compared with.
  void begin() {
    try {
      const Draft draft = planner_.record(config_);
      rows_per_step_ = draft.step.batching.sequences_per_step();
      const Report analysed = planner_.analyse(draft);
      for (const auto& [kind, bytes] : analysed.memory.by_kind)
        if (kind == MemoryKind::Parameters || kind == MemoryKind::OptimizerStates)
          state_ += static_cast<double>(bytes) * static_cast<double>(draft.step.degrees.shard * draft.step.degrees.tensor);
      // Layers that are written out take minutes to compile.
      if (config_.model.scan) add(choice_of(config_, draft.step), {}, draft, analysed).candidate.given = true;
    } catch (const InvalidArgument&) {
      // Its mesh is not this pod's, or its batch not its mesh's. A step may have a size all the same.
      const auto& t = config_.training;
      if (t.sequences_per_train_step <= 0 && t.num_tokens_per_train_step <= 0) throw;
      rows_per_step_ = train::batching(config_).sequences_per_step();
    }
  }

  std::string key_of(const Draft& draft) const {
    const runtime::Program& program = *draft.step.program;
    return fmt::format("{:016x}", Hasher().add(std::string_view(program.text)).add(program.options.hash()).add(compiler_).value());
  }

  // One entry for each program, whatever it is called.
  Entry& add(const Choice& choice, Keys keys, const Draft& draft, const Report& analysed) {
    std::string key = key_of(draft);
    const auto [found, is_new] = by_key_.emplace(key, entries_.size());
    if (is_new) entries_.push_back(entry_of(candidate_of(choice, std::move(keys), analysed, false), std::move(key), analysed));
    return entries_[found->second];
  }

  void analyse() {
    const std::vector<Choice> all = choices(config_, planner_.pod().devices(), planner_.pod().slices, rows_per_step_);
    const double limit = static_cast<double>(planner_.pod().chip().device_memory);
    std::string refusal;
    for (size_t i = 0; i < all.size(); ++i) {
      check();
      report(fmt::format("{} of {} estimated", i, all.size()));
      if (state_ / static_cast<double>(all[i].mesh.shard * all[i].mesh.tensor) > limit) {
        ++hopeless_;
        continue;
      }
      try {
        Keys keys = keys_of(config_, all[i], rows_per_step_);
        const Draft draft = planner_.record(with_keys(config_, keys));
        add(all[i], std::move(keys), draft, planner_.analyse(draft));
        ++considered_;
      } catch (const Error& error) {
        if (refusal.empty()) refusal = first_line(error.what());  // not a configuration that training would take
      }
    }
    if (entries_.empty() && hopeless_ > 0)
      raise<InvalidArgument>("[plan] expected a pod that holds the model, got {}, where parameters and optimizer states alone need {} a "
                             "device; choose a larger one", planner_.pod().spoken(), format_bytes(state_ / static_cast<double>(planner_.pod().devices())));
    if (entries_.empty())
      raise<InvalidArgument>("[plan] expected a mesh of {} devices that divides the model and {}'s batch of {} sequences, found none; change "
                             "the batch{}", planner_.pod().devices(), config_.path.string(), rows_per_step_, refusal.empty() ? "" : " (" + refusal + ")");
  }

  // ---- what the compiler should say, by what it said of others alike -------------------------------------------------------------

  // Seconds of a step. How much longer than by the analytic mode a mesh took at best is told by what was compiled of the same mesh, or
  // else of the same tensor degree, which decides what a layer sends. Of nothing alike the analytic mode is believed, so that the
  // compiler is asked.
  double step_of(const Entry& e) const {
    double of_mesh = 0, of_degree = 0;
    const auto lower = [](double& least, double ratio) { least = least == 0 ? ratio : std::min(least, ratio); };
    for (const Entry& other : entries_) {
      const Mesh &a = e.candidate.choice.mesh, &b = other.candidate.choice.mesh;
      if (!answered(other) || other.analytic_s <= 0 || a.tensor != b.tensor) continue;
      const double ratio = other.candidate.step_s / std::max(other.analytic_s, other.host_s);
      lower(of_degree, ratio);
      if (a == b) lower(of_mesh, ratio);
    }
    return std::max(e.host_s, e.analytic_s * (of_mesh > 0 ? of_mesh : of_degree > 0 ? of_degree : 1));
  }

  // The same of memory, by mesh and policy.
  double total_of(const Entry& e) const {
    double least = 0;
    for (const Entry& other : entries_) {
      const Choice &a = e.candidate.choice, &b = other.candidate.choice;
      if (!answered(other) || other.analytic_total <= 0 || a.mesh != b.mesh || a.checkpoint != b.checkpoint) continue;
      const double ratio = static_cast<double>(other.candidate.total) / static_cast<double>(other.analytic_total);
      least = least == 0 ? ratio : std::min(least, ratio);
    }
    return static_cast<double>(e.analytic_total) * (least > 0 ? least : 1 / kBelievedTotal);
  }

  // Null: nothing fits yet.
  const Candidate* best() const {
    const Candidate* best = nullptr;
    for (const Entry& e : entries_)
      if (fits(e) && (best == nullptr || e.candidate.step_s < best->step_s)) best = &e.candidate;
    return best;
  }

  bool has_answer_of_degree(int64_t tensor) const {
    return std::ranges::any_of(entries_, [&](const Entry& e) { return answered(e) && e.candidate.choice.mesh.tensor == tensor; });
  }

  // Entries to compile next: which should fit and be fastest; of what is wholly unknown one each, for what it tells of the others.
  std::vector<size_t> next(size_t most) const {
    const double limit = static_cast<double>(planner_.pod().chip().device_memory);
    const double slowest = best() != nullptr ? best()->step_s / kHopeful : std::numeric_limits<double>::infinity();
    std::vector<std::tuple<double, double, size_t>> order;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& e = entries_[i];
      const double step = step_of(e), total = total_of(e);
      if (!e.candidate.compiled && total <= limit && step <= slowest) order.emplace_back(step, total, i);
    }
    std::ranges::sort(order);
    std::vector<size_t> chosen;
    std::set<int64_t> explored;
    for (const auto& [step, total, i] : order) {
      const int64_t tensor = entries_[i].candidate.choice.mesh.tensor;
      if (chosen.size() == most) break;
      if (has_answer_of_degree(tensor) || explored.insert(tensor).second) chosen.push_back(i);
    }
    return chosen;
  }

  // Where nothing fits yet: what should need least.
  std::vector<size_t> smallest(size_t most) const {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < entries_.size(); ++i)
      if (!entries_[i].candidate.compiled) order.emplace_back(total_of(entries_[i]), i);
    std::ranges::sort(order);
    std::vector<size_t> chosen;
    for (size_t i = 0; i < std::min(most, order.size()); ++i) chosen.push_back(order[i].second);
    return chosen;
  }

  // ---- the compiler -----------------------------------------------------------------------------------------------------------------

  void compile_promising() {
    const auto most = static_cast<size_t>(options_.compilations);
    budget_ = most;
    const auto given = std::ranges::find(entries_, true, [](const Entry& e) { return e.candidate.given; });
    if (given != entries_.end()) compile({static_cast<size_t>(given - entries_.begin())});
    const size_t at_once = std::max<size_t>(2, compilations_at_once());
    while (asked_ < most) {
      const std::vector<size_t> batch = next(std::min(at_once, most - asked_));
      if (batch.empty()) break;
      compile(batch);
    }
    budget_ = most + std::max<size_t>(2, most / 2);
    while (best() == nullptr && asked_ < budget_) {
      const std::vector<size_t> batch = smallest(std::min(at_once, budget_ - asked_));
      if (batch.empty()) break;
      compile(batch);
    }
  }

  // Other blocks for the best; for those behind it only what helped. None where the estimate sees no difference: where the host's memory
  // is what a step waits for, or where they helped nothing.
  void compile_blocks() {
    if (config_.model.attention == "dense") return;
    std::vector<size_t> best;
    for (size_t i = 0; i < entries_.size(); ++i)
      if (fits(entries_[i]) && entries_[i].candidate.step_s > entries_[i].host_s * (1 + kNotable)) best.push_back(i);
    std::ranges::sort(best, {}, [&](size_t i) { return entries_[i].candidate.step_s; });
    best.resize(std::min(best.size(), kWithBlocks));
    std::vector<std::pair<int64_t, int64_t>> blocks;
    for (const int64_t q : {256, 512, 1024})
      for (const int64_t kv : {256, 512, 1024})
        if (config_.training.max_context_length % std::max(q, kv) == 0) blocks.emplace_back(q, kv);
    for (const size_t i : best) {
      const double before = entries_[i].candidate.step_s;
      std::vector<size_t> others = with_blocks(i, blocks);
      budget_ = asked_ + others.size();
      compile(others);
      std::erase_if(others, [&](size_t o) { return !fits(entries_[o]) || entries_[o].candidate.step_s > before * (1 - kNotable); });
      if (others.empty()) return;
      const size_t winner = *std::ranges::min_element(others, {}, [&](size_t o) { return entries_[o].candidate.step_s; });
      blocks = {{entries_[winner].candidate.choice.block_q, entries_[winner].candidate.choice.block_kv}};
    }
  }

  // Entries of new programs that differ from one in their blocks alone.
  std::vector<size_t> with_blocks(size_t like, const std::vector<std::pair<int64_t, int64_t>>& blocks) {
    std::vector<size_t> added;
    for (const auto& [q, kv] : blocks) {
      Choice choice = entries_[like].candidate.choice;
      choice.block_q = q;
      choice.block_kv = kv;
      try {
        Keys keys = keys_of(config_, choice, rows_per_step_);
        const Draft draft = planner_.record(with_keys(config_, keys));
        const size_t before = entries_.size();
        add(choice, std::move(keys), draft, planner_.analyse(draft));
        if (entries_.size() > before) added.push_back(before);
      } catch (const Error&) {
        // No blocks for these rows.
      }
    }
    considered_ += static_cast<int64_t>(added.size());
    return added;
  }

  void compile(const std::vector<size_t>& which) {
    std::vector<Draft> drafts;
    std::vector<size_t> indices;
    for (const size_t i : which) {
      check();
      if (const Candidate* known = record_.find(entries_[i].key)) {
        answer(i, *known);
        continue;
      }
      drafts.push_back(planner_.record(with_keys(config_, entries_[i].candidate.keys)));
      indices.push_back(i);
    }
    compile_all(planner_, drafts, {.goes_on = progress_.goes_on, .report = {}}, [&](size_t i, const Outcome& outcome) {
      Candidate candidate = candidate_of(entries_[indices[i]].candidate.choice, entries_[indices[i]].candidate.keys, outcome.report, true);
      candidate.failure = outcome.failure;
      candidate.fits = candidate.fits && outcome.failure.empty();
      record_.add(entries_[indices[i]].key, candidate);
      answer(indices[i], std::move(candidate));
    });
  }

  // In the place of the analytic answer.
  void answer(size_t i, Candidate told) {
    Candidate& c = entries_[i].candidate;
    told.choice = std::move(c.choice);
    told.keys = std::move(c.keys);
    told.given = c.given;
    c = std::move(told);
    ++asked_;
    report(fmt::format("{} of at most {} compiled, {}", asked_, budget_,
                       best() != nullptr ? "best step " + format_seconds(best()->step_s) : std::string("none fits yet")));
  }

  const Planner& planner_;
  const train::Config& config_;
  const SearchOptions& options_;
  const Progress& progress_;
  SearchRecord record_;
  uint64_t compiler_;
  int64_t rows_per_step_ = 0, considered_ = 0, hopeless_ = 0;
  double state_ = 0;  // bytes of parameters and optimizer states, of all devices without copies; 0: not known
  size_t asked_ = 0, budget_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> by_key_;
};

}  // namespace

const Candidate* SearchResult::best() const {
  if (candidates.empty()) return nullptr;
  const Candidate& first = candidates.front();
  return first.fits && (first.compiled || !compiler) ? &first : nullptr;
}

bool SearchResult::answered() const {
  return std::ranges::any_of(candidates, [](const Candidate& c) { return c.compiled && c.failure.empty(); });
}

std::string SearchResult::first_failure() const {
  const auto failed = std::ranges::find_if(candidates, [](const Candidate& c) { return !c.failure.empty(); });
  return failed == candidates.end() ? std::string() : failed->failure;
}

void rank(std::vector<Candidate>& candidates) {
  std::ranges::stable_sort(candidates, {}, [](const Candidate& c) {
    return std::tuple(!c.failure.empty(), !(c.compiled && c.fits), !c.fits, -c.tokens_per_second_per_chip, c.total);
  });
}

SearchResult search(const Planner& planner, const train::Config& config, const SearchOptions& options, const Progress& progress) {
  return Search(planner, config, options, progress).run();
}

}  // namespace flambeau::plan
