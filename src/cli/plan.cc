// flambeau plan.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "pjrt/topology_compiler.h"
#include "plan/report/format.h"
#include "train/interrupt.h"

namespace flambeau::cli {
namespace {

using Clock = std::chrono::steady_clock;

// What a compilation shows while it runs: a status line with its seconds, on a terminal.
class Waiting {
 public:
  explicit Waiting(std::string what) : what_(std::move(what)) {}
  ~Waiting() { set_status_line(""); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  plan::Progress progress() {
    return {.goes_on = [this] { return tick(); },
            .report = [this](std::string text) {
              const std::lock_guard lock(mutex_);
              part_ = ", " + std::move(text);
            }};
  }

 private:
  // Called from several threads, every few milliseconds.
  bool tick() {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_).count();
    if (shown_.exchange(seconds) != seconds) {
      const std::lock_guard lock(mutex_);
      set_status_line(fmt::format("{}{}, {} s", what_, part_, seconds));
    }
    return !train::interrupted();
  }

  std::string what_;
  Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> shown_{-1};
  std::mutex mutex_;
  std::string part_;  // how far it is
};

void write_where_asked(const std::string& file, const std::string& text) {
  if (!file.empty()) write_file_atomically(file, text);
}

bool plan_one(const plan::Planner& planner, const train::Config& config, const PlanRequest& request) {
  const Clock::time_point start = Clock::now();
  const plan::Draft draft = planner.record(config);
  write_where_asked(request.program, draft.step.program->text);
  plan::Report report;
  if (planner.compiles()) {
    Waiting waiting(fmt::format("compiling for {}", planner.pod().spoken()));
    report = planner.compile(draft, waiting.progress().goes_on);
    if (!report.memory.fits() && !request.no_changes) {
      Waiting changing("it does not fit; looking for what helps");
      report.changes = plan::memory_changes(planner, draft, report, changing.progress());
    }
  } else {
    report = planner.analyse(draft);
    if (!request.options.analytic) report.warnings.insert(report.warnings.begin(), planner.why_analytic());
  }
  report.planned_s = std::chrono::duration<double>(Clock::now() - start).count();
  write_where_asked(request.json, plan::to_json(report));
  write_where_asked(request.html, plan::to_html(report));
  fmt::print("{}", plan::to_text(report, wants_colour(1)));
  return report.memory.fits();
}

// The configuration that a search found, with a line that says where it comes from.
void write_best(const plan::Planner& planner, const train::Config& config, const plan::Candidate& best, const std::string& file) {
  const std::string origin = fmt::format("# {} for {}, as flambeau plan --search found it: {:.0f} tokens/s/chip, an estimate.\n",
                                         plan::clean(config.path.string()), planner.pod().spoken(), best.tokens_per_second_per_chip);
  write_file_atomically(file, origin + train::to_toml(plan::with_keys(config, best.keys)));
}

// How the best compares with what was given, where that is known.
std::string gain_of(const plan::SearchResult& result, const plan::Candidate& best) {
  const auto given = std::ranges::find_if(result.candidates, &plan::Candidate::given);
  if (best.given) return ": the configuration as given";
  if (given == result.candidates.end() || !given->failure.empty() || given->compiled != best.compiled) return "";
  if (!given->fits) return "; the configuration as given does not fit";
  return fmt::format(": {:.2f} times the tokens/s/chip of the configuration as given",
                     best.tokens_per_second_per_chip / given->tokens_per_second_per_chip);
}

bool find_best(const plan::Planner& planner, const train::Config& config, const PlanRequest& request) {
  plan::SearchResult result;
  {
    Waiting waiting(fmt::format("searching for {}", planner.pod().spoken()));
    result = plan::search(planner, config, request.searching, waiting.progress());
  }
  warn_of_keys_without_effect(config);
  if (!planner.compiles() && !request.options.analytic) log_warning("{}", planner.why_analytic());
  write_where_asked(request.json, plan::to_json(result));
  fmt::print("{}", plan::to_text(result));
  const plan::Candidate* best = result.best();
  if (best == nullptr && planner.compiles() && !result.answered())
    raise<PluginError>("[plan] expected answers of the compiler, got none; the first failure: {}", result.first_failure());
  if (best == nullptr) {
    fmt::print("none of these fits {}; choose a larger pod, or a smaller step\n", planner.pod().spoken());
    return false;
  }
  write_best(planner, config, *best, request.best);
  fmt::print("the best is written to {}{}\n", request.best, gain_of(result, *best));
  return true;
}

}  // namespace

int plan(const train::Config& config, const PlanRequest& request) {
  const train::InterruptGuard interrupt;
  try {
    const plan::Planner planner(plan::parse_pod(request.topology, request.slices), request.options);
    const bool fits = request.search ? find_best(planner, config, request) : plan_one(planner, config, request);
    if (train::interrupted()) return train::exit_code(train::received_signal());  // too late to end anything, but whoever called wants to
    return fits ? 0 : 1;
  } catch (const pjrt::Cancelled&) {
    const bool recorded = request.search && !request.searching.record.empty();
    fmt::print(stderr, "flambeau: interrupted{}\n", recorded ? "; the same command goes on from " + request.searching.record.string() : "");
    return train::exit_code(train::received_signal());
  }
}

}  // namespace flambeau::cli
