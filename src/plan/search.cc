#include "plan/search.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "pjrt/topology_compiler.h"
#include "plan/format.h"

namespace flambeau::plan {
namespace {

using nlohmann::json;

// A candidate may need so much more than there is by the analytic model, which is that wrong, and still be compiled.
constexpr double kBelievedTotal = 1.25;
// More sequences a microbatch than this make no step faster: matrix products are large enough long before.
constexpr int64_t kMostRows = 16;
constexpr int64_t kWidestTensor = 16;  // chips: beyond, a layer's products are too thin for its collectives

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// ---- the space --------------------------------------------------------------------------------------------------------------

std::vector<Keys> meshes(const Planner& planner) {
  std::vector<Keys> all;
  const int64_t devices = planner.pod().devices(), slices = planner.pod().slices;
  for (const int64_t tensor : divisors(devices, kWidestTensor)) {
    for (const int64_t replicate : divisors(devices / tensor, devices)) {
      // Slices are joined by a slow network: only copies of the model may be spread over them.
      if (replicate % slices != 0) continue;
      all.push_back({{"parallelism.tensor_parallel_degree", std::to_string(tensor)},
                     {"parallelism.data_parallel_replicate_degree", std::to_string(replicate)},
                     {"parallelism.data_parallel_shard_degree", std::to_string(devices / tensor / replicate)}});
    }
  }
  return all;
}

// All of it but the blocks of attention.
std::vector<Keys> space(const Planner& planner, const train::Config& config, int64_t rows_per_step) {
  std::vector<Keys> all;
  for (const Keys& mesh : meshes(planner)) {
    const int64_t ranks = planner.pod().devices() / std::stoll(mesh[0].second);
    if (rows_per_step % ranks != 0) continue;
    for (const int64_t rows : divisors(rows_per_step / ranks, kMostRows)) {
      for (const char* policy : {"none", "selective", "full"}) {
        Keys keys = mesh;
        for (auto& key : batch_keys(config, rows, rows_per_step)) keys.push_back(std::move(key));
        keys.insert(keys.end(), {{"model.scan", "true"}, {"activation_checkpoint.mode", policy}});
        all.push_back(std::move(keys));
      }
    }
  }
  return all;
}

// ---- what was compiled before -------------------------------------------------------------------------------------------------

class Record {
 public:
  explicit Record(std::filesystem::path path) : path_(std::move(path)) {
    if (path_.empty()) return;
    std::ifstream lines(path_);
    for (std::string line; std::getline(lines, line);) {
      const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);  // the last line may be cut short
      try {
        known_[row.at("key")] = {.keys = {}, .total = row.at("total"), .step_s = row.at("step_s"),
                                 .tokens_per_second_per_chip = row.at("tokens_per_second_per_chip"), .mfu = row.at("mfu"),
                                 .fits = row.at("fits"), .compiled = true, .failure = row.at("failure")};
      } catch (const json::exception&) {
        // Not a line of ours: it is compiled again.
      }
    }
  }

  const Candidate* find(const std::string& key) const {
    const auto found = known_.find(key);
    return found == known_.end() ? nullptr : &found->second;
  }

  void add(const std::string& key, const Candidate& c) {
    known_[key] = c;
    if (path_.empty()) return;
    const json row = {{"key", key}, {"total", c.total}, {"step_s", c.step_s}, {"tokens_per_second_per_chip", c.tokens_per_second_per_chip},
                      {"mfu", c.mfu}, {"fits", c.fits}, {"failure", c.failure}, {"configuration", describe(c.keys)}};
    std::ofstream file(path_, std::ios::app);
    file << row.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
    if (!file.flush()) raise<IoError>("cannot write {}; choose another place with --search-record", path_.string());
  }

 private:
  std::filesystem::path path_;
  std::map<std::string, Candidate> known_;
};

std::string key_of(const Planner& planner, const Draft& draft) {
  Hasher hasher;
  hasher.add(std::string_view(draft.step.text)).add(draft.step.options.hash()).add(planner.fingerprint());
  return fmt::format("{:016x}", hasher.value());
}

// ---- ranking ------------------------------------------------------------------------------------------------------------------

Candidate candidate_of(Keys keys, const Report& report, bool compiled) {
  return {.keys = std::move(keys), .total = report.memory.total, .step_s = report.estimate.step_s,
          .tokens_per_second_per_chip = report.tokens_per_second_per_chip(), .mfu = report.mfu(), .fits = report.memory.fits(),
          .compiled = compiled, .failure = {}};
}

void rank(std::vector<Candidate>& candidates) {
  std::ranges::stable_sort(candidates, {}, [](const Candidate& c) {
    return std::tuple(!c.failure.empty(), !(c.compiled && c.fits), !c.fits, -c.tokens_per_second_per_chip);
  });
}

class Search {
 public:
  Search(const Planner& planner, const train::Config& config, const SearchOptions& options, const Progress& progress)
      : planner_(planner), config_(config), options_(options), progress_(progress), record_(options.record) {}

  SearchResult run() {
    const Draft base = planner_.record(config_);
    const int64_t rows_per_step = base.report.tokens_per_step / base.report.context;
    analyse(space(planner_, config_, rows_per_step));
    std::vector<Keys> promising = best_analytic(options_.compilations);
    if (planner_.compiles()) {
      compile(promising);
      compile(with_blocks());
    }
    rank(result_.candidates);
    return std::move(result_);
  }

 private:
  void check() const {
    if (progress_.goes_on && !progress_.goes_on()) throw pjrt::Cancelled("[plan] given up");
  }

  void analyse(const std::vector<Keys>& space) {
    for (size_t i = 0; i < space.size(); ++i) {
      check();
      try {
        const Draft draft = planner_.record(with_keys(config_, space[i]));
        result_.candidates.push_back(candidate_of(space[i], planner_.analyse(draft), false));
        ++result_.considered;
      } catch (const Error&) {
        // Not a configuration that training would take.
      }
      if (progress_.report) progress_.report(i + 1, space.size());
    }
    if (result_.candidates.empty())
      raise<InvalidArgument>("[plan] expected a mesh of {} devices that divides the model and {}'s batch, found none; change the batch",
                             planner_.pod().devices(), config_.path.string());
    rank(result_.candidates);
  }

  std::vector<Keys> best_analytic(int64_t most) const {
    std::vector<const Candidate*> believed;
    const auto limit = static_cast<double>(planner_.pod().chip().device_memory) * kBelievedTotal;
    for (const Candidate& c : result_.candidates)
      if (static_cast<double>(c.total) <= limit) believed.push_back(&c);
    std::ranges::stable_sort(believed, std::greater{}, &Candidate::tokens_per_second_per_chip);
    if (believed.empty())  // what needs least comes nearest
      for (const Candidate& c : result_.candidates) believed.push_back(&c);
    if (static_cast<double>(believed.front()->total) > limit) std::ranges::sort(believed, {}, &Candidate::total);
    std::vector<Keys> keys;
    for (size_t i = 0; i < std::min(believed.size(), static_cast<size_t>(most)); ++i) keys.push_back(believed[i]->keys);
    return keys;
  }

  // The best of what was compiled, with other blocks of attention.
  std::vector<Keys> with_blocks() {
    rank(result_.candidates);
    std::vector<Keys> keys;
    const Candidate& best = result_.candidates.front();
    if (!best.compiled || !best.fits) return keys;
    for (const int64_t q : {512, 1024, 2048})
      for (const int64_t kv : {512, 1024, 2048}) {
        if (std::max(q, kv) > config_.training.max_context_length) continue;
        Keys with = best.keys;
        with.insert(with.end(), {{"model.attention_block_q", std::to_string(q)}, {"model.attention_block_kv", std::to_string(kv)}});
        keys.push_back(std::move(with));
      }
    return keys;
  }

  void compile(const std::vector<Keys>& all) {
    std::vector<Draft> drafts;
    std::vector<Keys> keys;
    std::vector<std::string> hashes;
    for (const Keys& k : all) {
      check();
      Draft draft = planner_.record(with_keys(config_, k));
      std::string hash = key_of(planner_, draft);
      if (const Candidate* known = record_.find(hash)) {
        Candidate candidate = *known;
        candidate.keys = k;
        put(std::move(candidate));
        continue;
      }
      drafts.push_back(std::move(draft));
      keys.push_back(k);
      hashes.push_back(std::move(hash));
    }
    compile_all(planner_, drafts, progress_, [&](size_t i, const Outcome& outcome) {
      Candidate candidate = candidate_of(keys[i], outcome.report, true);
      candidate.failure = outcome.failure;
      if (!outcome.failure.empty()) candidate.fits = false;
      record_.add(hashes[i], candidate);
      put(std::move(candidate));
    });
  }

  // In the place of the analytic answer.
  void put(Candidate candidate) {
    const auto same = std::ranges::find(result_.candidates, candidate.keys, &Candidate::keys);
    if (same != result_.candidates.end()) *same = std::move(candidate);
    else result_.candidates.push_back(std::move(candidate));
  }

  const Planner& planner_;
  const train::Config& config_;
  const SearchOptions& options_;
  const Progress& progress_;
  Record record_;
  SearchResult result_;
};

// "tensor 2, replicate 1, shard 8" of a candidate's keys, shortest names first.
std::string short_name(const std::string& key) {
  static const std::map<std::string, std::string> names = {{"parallelism.tensor_parallel_degree", "tensor"},
                                                           {"parallelism.data_parallel_replicate_degree", "replicate"},
                                                           {"parallelism.data_parallel_shard_degree", "shard"},
                                                           {"training.sequences_per_microbatch", "rows"},
                                                           {"training.num_tokens_per_microbatch_per_dp_rank", "tokens"},
                                                           {"activation_checkpoint.mode", "checkpoint"},
                                                           {"model.attention_block_q", "block q"},
                                                           {"model.attention_block_kv", "block kv"}};
  const auto found = names.find(key);
  return found == names.end() ? std::string() : found->second;
}

std::string summary(const Keys& keys) {
  std::string text;
  for (const auto& [key, value] : keys) {
    const std::string name = short_name(key);
    const bool is_degree = key.starts_with("parallelism.");
    if (name.empty() || (is_degree && value == "1")) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

}  // namespace

SearchResult search(const Planner& planner, const train::Config& config, const SearchOptions& options, const Progress& progress) {
  return Search(planner, config, options, progress).run();
}

std::string to_text(const SearchResult& result, size_t rows) {
  TextTable table({{"", Column::Kind::Number}, {"configuration", Column::Kind::Name}, {"HBM", Column::Kind::Number},
                   {"step", Column::Kind::Number}, {"tokens/s/chip", Column::Kind::Number}, {"MFU", Column::Kind::Number},
                   {"", Column::Kind::Text}});
  for (size_t i = 0; i < std::min(rows, result.candidates.size()); ++i) {
    const Candidate& c = result.candidates[i];
    std::string note = !c.failure.empty() ? "failed: " + c.failure : !c.fits ? "does not fit" : c.compiled ? "" : "analytic";
    table.add({std::to_string(i + 1), summary(c.keys), format_bytes(static_cast<double>(c.total)), format_seconds(c.step_s),
               format_count(c.tokens_per_second_per_chip), format_percent(c.mfu), std::move(note)});
  }
  std::string text = fmt::format("{} of {} legal configurations; times are estimates\n", table.rows(), result.considered);
  for (const std::string& line : table.lines(100)) text += line + '\n';
  return text;
}

std::string to_json(const SearchResult& result) {
  json candidates = json::array();
  for (const Candidate& c : result.candidates) {
    json keys = json::object();
    for (const auto& [key, value] : c.keys) keys[key] = value;
    candidates.push_back({{"keys", keys}, {"total", c.total}, {"step_s", c.step_s},
                          {"tokens_per_second_per_chip", c.tokens_per_second_per_chip}, {"mfu", c.mfu}, {"fits", c.fits},
                          {"compiled", c.compiled}, {"failure", c.failure}});
  }
  return json{{"considered", result.considered}, {"candidates", candidates}}.dump(1, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace flambeau::plan
