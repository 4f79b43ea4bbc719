// flambeau: trains transformers through PJRT plugins.
#include <chrono>
#include <cstdint>
#include <type_traits>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "flambeau_version.h"
#include "train/trainer.h"

namespace {

constexpr int kBadInput = 2, kFailed = 1;

int report(std::string_view message, int code) {
  flambeau::set_status_line("");
  fmt::print(stderr, "flambeau: {}\n", message);
  return code;
}

// A number from `least` to `most`, with a message of ours.
template <class T>
CLI::Validator number(T least, T most) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        T value{};
        if (flambeau::parse_whole(text, value) && least <= value && value <= most) return "";
        return fmt::format("expected {} from {} to {}, got {}", std::is_integral_v<T> ? "an integer" : "a number", least, most, text);
      },
      "", "number");
}

void add_search_options(CLI::App& plan, flambeau::cli::PlanRequest& request) {
  CLI::Option* search = plan.add_flag("--search", request.search, "Look for the fastest mesh, checkpoint policy, microbatch and attention blocks");
  for (const char* other : {"--html", "--write-program", "--tokens", "--price-per-chip-hour", "--no-changes"}) search->excludes(plan.get_option(other));
  plan.add_option("--search-compilations", request.searching.compilations, "At most so many candidates are compiled")
      ->check(number<int64_t>(1, 10'000))->needs(search)->capture_default_str();
  plan.add_option("--search-record", request.searching.record, "Keep here what was compiled; an interrupted search goes on from it")->needs(search);
  plan.add_option("--best", request.best, "Where the search writes the best configuration")->needs(search)->capture_default_str();
}

void add_plan_options(CLI::App& plan, flambeau::cli::PlanRequest& request) {
  constexpr double kMostTokens = 1e18, kMostPrice = 1e6, kMostGiB = 1e6;
  constexpr int64_t kMostSeconds = 10'000'000;
  plan.add_option("--topology", request.topology, "The pod: v5e:4x4, v5p:8x8x16, v6e-256, tpu7x-64, ...")->required();
  plan.add_option("--slices", request.slices, "So many of them, joined by the data centre's network")
      ->check(number<int64_t>(1, 1'000'000))->capture_default_str();
  plan.add_flag("--full", request.options.full, "Compile to the end (minutes), not the first phase alone (seconds)");
  plan.add_flag("--analytic", request.options.analytic, "Compute from the recorded program; TPU's compiler is not needed");
  plan.add_option("--json", request.json, "Also write the report here, as JSON");
  plan.add_option("--html", request.html, "Also write it here, as one page");
  plan.add_option("--write-program", request.program, "Also write the program here, as StableHLO text");
  plan.add_option("--price-per-chip-hour", request.options.price_per_chip_hour, "For what training costs, with --tokens")->check(number(0.0, kMostPrice));
  plan.add_option("--tokens", request.options.training_tokens, "For how many days training takes: 15e12")->check(number(0.0, kMostTokens));
  plan.add_option_function<int64_t>("--time-limit", [&](int64_t s) { request.options.time_limit = std::chrono::seconds(s); },
                                    "Seconds that a compilation may take")
      ->check(number(int64_t{1}, kMostSeconds))->default_str(fmt::format("{}", request.options.time_limit.count()));
  plan.add_option_function<double>("--memory-limit", [&](double gib) { request.options.memory_limit = static_cast<int64_t>(gib * 0x1p30); },
                                   "GiB that a compilation may take")
      ->check(number(0.001, kMostGiB))->default_str("what there is");
  plan.add_option("--plugin", request.options.plugin, "TPU's compiler: a path, in place of the installed libtpu");
  plan.add_flag("--no-changes", request.no_changes, "When it does not fit, do not look for changes that help");
  add_search_options(plan, request);
}

// "--topology", ...
std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Help of the configuration's keys, without the one that `plan` has an option of the same name for.
std::string keys_of_plan(std::string keys) {
  const size_t at = keys.find("  --plugin ");
  return at == std::string::npos ? keys : keys.erase(at, keys.find('\n', at) + 1 - at);
}

// 1 says that a step does not fit: what else goes wrong is the input's fault or the compiler's.
int run_plan(const flambeau::train::Config& config, const flambeau::cli::PlanRequest& request) {
  try {
    return flambeau::cli::plan(config, request);
  } catch (const std::exception& e) {
    return report(flambeau::first_line(e.what()), kBadInput);
  }
}

int run(int argc, char** argv) {
  using namespace flambeau;
  CLI::App app{"Flambeau trains transformers on TPUs and every other device with a PJRT plugin."};
  app.set_version_flag("--version", FLAMBEAU_VERSION);
  app.require_subcommand(1);
  const std::string keys = "Every key of the configuration can be overridden: --section.key value\n" + train::describe_keys();

  std::string file, plugin, folder;
  CLI::App* train = app.add_subcommand("train", "Train the model of a configuration; goes on from its newest checkpoint");
  CLI::App* check = app.add_subcommand("check", "Validate a configuration; print it resolved, with parameters and FLOPs a token");
  cli::PlanRequest planning;
  CLI::App* plan = app.add_subcommand("plan", "Compile the training step for a TPU pod that is not here: memory, collectives, time");
  add_plan_options(*plan, planning);
  for (CLI::App* command : {train, check, plan}) {
    command->add_option("config", file, "TOML file, for example configs/llama3/debug.toml")->required();
    command->allow_extras();
    command->footer(command == plan ? keys_of_plan(keys) : keys);
  }
  CLI::App* doctor = app.add_subcommand("doctor", "Check the installation: versions, plugin, devices, a matrix product");
  doctor->add_option("--plugin", plugin, "PJRT plugin: a path, or cpu, xla-cpu, tpu");
  CLI::App* inspect = app.add_subcommand("checkpoint", "Verify a checkpoint and list its tensors with checksums");
  inspect->add_option("folder", folder, "A step folder, for example outputs/checkpoint/step-500")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    return report(first_line(e.what()) + (*plan ? "; see flambeau plan --help" : "; see flambeau --help"), kBadInput);
  }
  if (*train) return cli::train(cli::configure(file, train->remaining(), options_of(*train)));
  if (*check) cli::check(cli::configure(file, check->remaining(), options_of(*check)));
  if (*plan) return run_plan(cli::configure(file, plan->remaining(), options_of(*plan)), planning);
  if (*doctor) cli::doctor(plugin);
  if (*inspect) cli::inspect(folder);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const flambeau::train::NonFiniteError& e) {
    return report(e.what(), kFailed);
  } catch (const flambeau::Error& e) {
    return report(flambeau::first_line(e.what()), kBadInput);
  } catch (const std::exception& e) {
    return report(flambeau::first_line(e.what()), kFailed);
  }
}
