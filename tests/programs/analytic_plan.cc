// analytic_plan CONFIG TOPOLOGY [--section.key value ...]: what the analytic mode says of a configuration's step, as JSON on standard
// output. `--write-program FILE` before the overrides also writes the step's StableHLO, for inspect_program to compare with.
#include <chrono>
#include <iostream>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "plan/analytic.h"
#include "plan/pod.h"
#include "plan/program.h"
#include "train/config.h"

namespace flambeau {
namespace {

nlohmann::json analyze(std::vector<std::string> arguments) {
  std::string written;
  if (arguments.size() > 3 && arguments[2] == "--write-program") {
    written = arguments[3];
    arguments.erase(arguments.begin() + 2, arguments.begin() + 4);
  }
  train::Config config = train::load_config(arguments.at(0));
  for (size_t i = 2; i + 1 < arguments.size(); i += 2) train::set_from_text(config, arguments[i].substr(2), arguments[i + 1]);
  const plan::Pod pod = plan::parse_pod(arguments.at(1));
  const runtime::Target target{.platform = "tpu", .generation = std::string(pod.chip().device_kind), .device_count = static_cast<int>(pod.devices()),
                               .api_version = {0, 117}, .ffi = false, .host_memory = true};
  const plan::StepProgram step = plan::record_step(config, target);
  if (!written.empty()) write_file_atomically(written, step.text);
  const auto start = std::chrono::steady_clock::now();
  const plan::AnalyticPlan result = plan::analyze_step(step, pod.generation);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  nlohmann::json kinds = nlohmann::json::object(), largest = nlohmann::json::array(), collectives = nlohmann::json::array();
  for (const auto& [kind, bytes] : result.memory.by_kind) kinds[std::string(name_of(kind))] = bytes;
  for (const auto& b : result.memory.largest) largest.push_back({{"name", b.name}, {"shape", b.shape}, {"kind", name_of(b.kind)}, {"bytes", b.bytes}});
  for (const auto& c : result.collectives)
    collectives.push_back({{"kind", c.kind}, {"axes", c.axes}, {"type", c.type}, {"place", c.place}, {"count", c.count}, {"bytes", c.bytes}});
  return {{"total", result.memory.total}, {"by_kind", kinds}, {"largest", largest}, {"flops", result.work.flops},
          {"hbm_bytes", result.work.hbm_bytes}, {"collective_bytes", result.work.collective_bytes}, {"collectives", collectives},
          {"seconds", seconds}};
}

}  // namespace
}  // namespace flambeau

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "analytic_plan CONFIG TOPOLOGY [--write-program FILE] [--section.key value ...]\n";
    return 2;
  }
  try {
    std::cout << flambeau::analyze({argv + 1, argv + argc}).dump(1) << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 2;
  }
}
