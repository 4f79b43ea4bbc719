// flambeau plan.
#include <atomic>
#include <chrono>
#include <cstdio>

#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "pjrt/topology_compiler.h"
#include "train/interrupt.h"
#include "train/summary.h"

namespace flambeau::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kGiB = int64_t{1} << 30;

// What a compilation shows while it runs: a status line with its seconds, on a terminal.
class Waiting {
 public:
  explicit Waiting(std::string what) : what_(std::move(what)) {}
  ~Waiting() { set_status_line(""); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  plan::Progress progress() {
    return {.goes_on = [this] { return tick(); },
            .report = [this](size_t done, size_t all) {
              done_ = done;
              all_ = all;
            }};
  }

 private:
  // Called from several threads, every few milliseconds.
  bool tick() {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_).count();
    if (shown_.exchange(seconds) != seconds) {
      const std::string part = all_ > 0 ? fmt::format(", {} of {}", done_.load(), all_.load()) : std::string();
      set_status_line(fmt::format("{}{}, {} s", what_, part, seconds));
    }
    return !train::interrupted();
  }

  std::string what_;
  Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> shown_{-1};
  std::atomic<size_t> done_{0}, all_{0};
};

void write_where_asked(const std::string& file, const std::string& text) {
  if (!file.empty()) write_file_atomically(file, text);
}

bool plan_one(const plan::Planner& planner, const train::Config& config, const PlanRequest& request) {
  const Clock::time_point start = Clock::now();
  const plan::Draft draft = planner.record(config);
  write_where_asked(request.program, draft.step.text);
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

bool find_best(const plan::Planner& planner, const train::Config& config, const PlanRequest& request) {
  plan::SearchResult result;
  {
    Waiting waiting(fmt::format("searching for {}", planner.pod().spoken()));
    result = plan::search(planner, config, request.searching, waiting.progress());
  }
  if (!planner.compiles() && !request.options.analytic) log_warning("{}", planner.why_analytic());
  write_where_asked(request.json, plan::to_json(result));
  fmt::print("{}", plan::to_text(result));
  if (!result.found()) {
    fmt::print("none fits {}; plan one of them to see what its memory is\n", planner.pod().spoken());
    return false;
  }
  write_file_atomically(request.best, train::to_toml(plan::with_keys(config, result.candidates.front().keys)));
  fmt::print("the best is written to {}\n", request.best);
  return true;
}

}  // namespace

int plan(const train::Config& config, PlanRequest request) {
  request.options.time_limit = std::chrono::seconds(request.time_limit_s);
  request.options.memory_limit = static_cast<int64_t>(request.memory_limit_gib * static_cast<double>(kGiB));
  const train::InterruptGuard interrupt;
  try {
    const plan::Planner planner(plan::parse_pod(request.topology, request.slices), request.options);
    return (request.search ? find_best(planner, config, request) : plan_one(planner, config, request)) ? 0 : 1;
  } catch (const pjrt::Cancelled&) {
    fmt::print(stderr, "flambeau: interrupted\n");
    return 128 + interrupt.signal();  // as shells have it
  }
}

}  // namespace flambeau::cli
