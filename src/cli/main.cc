// flambeau: trains transformers through PJRT plugins.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
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

void add_plan_options(CLI::App& plan, flambeau::cli::PlanRequest& request) {
  plan.add_option("--topology", request.topology, "The pod: v5e:4x4, v5p:8x8x16, v6e-256, tpu7x-64, ...")->required();
  plan.add_option("--slices", request.slices, "So many of them, joined by the data centre's network")->check(CLI::PositiveNumber);
  plan.add_flag("--full", request.options.full, "Compile to the end (minutes), not the first phase alone (seconds)");
  plan.add_flag("--analytic", request.options.analytic, "Compute from the recorded program; TPU's compiler is not needed");
  plan.add_option("--json", request.json, "Also write the report here, as JSON");
  plan.add_option("--html", request.html, "Also write it here, as one page");
  plan.add_option("--write-program", request.program, "Also write the program here, as StableHLO text");
  plan.add_option("--price-per-chip-hour", request.options.price_per_chip_hour, "For what training costs, with --tokens")->check(CLI::NonNegativeNumber);
  plan.add_option("--tokens", request.options.training_tokens, "For how many days training takes: 15e12")->check(CLI::NonNegativeNumber);
  plan.add_option("--time-limit", request.time_limit_s, "Seconds that a compilation may take")->check(CLI::PositiveNumber);
  plan.add_option("--memory-limit", request.memory_limit_gib, "GiB that a compilation may take")->check(CLI::PositiveNumber);
  plan.add_option("--plugin", request.options.plugin, "TPU's compiler: a path, in place of the installed libtpu");
  plan.add_flag("--no-changes", request.no_changes, "When it does not fit, do not look for changes that help");
  plan.add_flag("--search", request.search, "Look for the fastest mesh, checkpoint policy, microbatch and attention blocks");
  plan.add_option("--search-compilations", request.searching.compilations, "So many candidates are compiled")->check(CLI::PositiveNumber);
  plan.add_option("--search-record", request.searching.record, "Keep here what was compiled; an interrupted search goes on from it");
  plan.add_option("--best", request.best, "Where the search writes the best configuration");
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
    command->footer(keys);
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
    return report(first_line(e.what()) + "; see flambeau --help", kBadInput);
  }
  if (*train) cli::train(cli::configure(file, train->remaining()));
  if (*check) cli::check(cli::configure(file, check->remaining()));
  if (*plan) return cli::plan(cli::configure(file, plan->remaining()), planning);
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
