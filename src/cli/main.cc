// flambeau: trains transformers through PJRT plugins.
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "flambeau_version.h"
#include "train/trainer.h"

namespace {

constexpr int kBadInput = 2, kFailed = 1;

// One line, without the stack traces that PyTorch appends.
std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

int report(std::string_view message, int code) {
  flambeau::set_status_line("");
  fmt::print(stderr, "flambeau: {}\n", message);
  return code;
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
  plan::PlanOptions planning;
  CLI::App* plan = app.add_subcommand("plan", "Compile the training step for a TPU pod that is not here: memory, collectives, time");
  plan->add_option("--topology", planning.topology, "the pod: v5e:4x4, v5p-2048")->required();
  plan->add_option("--slices", planning.slices, "so many of them");
  plan->add_option("--write-program", planning.write_program, "also write the program, StableHLO text, here");
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
  if (*plan) cli::plan(cli::configure(file, plan->remaining()), planning);
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
    return report(first_line(e.what()), kBadInput);
  } catch (const std::exception& e) {
    return report(first_line(e.what()), kFailed);
  }
}
