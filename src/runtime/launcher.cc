#include "runtime/launcher.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"

namespace flambeau::runtime {

// By device of this process, then by result.
std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> Launcher::execute(const Program& program, const Launch& launch,
                                                                          std::span<const int64_t> kept) {
  const pjrt::Client& client = devices_.client();
  std::vector<double> floats;
  std::vector<int64_t> integers;
  for (const RecordedNumber& n : launch.numbers) {
    if (n.number.category() == DType::F64)
      floats.push_back(n.number.as_double());
    else
      integers.push_back(n.number.as_int());
  }
  const std::array<uint64_t, 2> position{launch.random.seed, launch.random.offset};
  std::vector<std::unique_ptr<pjrt::Buffer>> uploaded;
  const auto arguments_of = [&](size_t index, const pjrt::Device& device) {
    std::vector<const pjrt::Buffer*> arguments;
    arguments.reserve(program.externals.size() + 3);
    for (size_t external : program.externals) arguments.push_back(launch.externals[external]->shards()[index].get());
    const auto upload_vector = [&](DType dtype, const auto& values) {
      int64_t dims[] = {static_cast<int64_t>(values.size())};
      uploaded.push_back(client.upload({values.data(), dtype, dims}, device));
      arguments.push_back(uploaded.back().get());
    };
    if (program.floats) upload_vector(DType::F64, floats);
    if (program.integers) upload_vector(DType::S64, integers);
    if (program.random) upload_vector(DType::U64, position);
    return arguments;
  };

  counters_.executions.fetch_add(1, std::memory_order_relaxed);
  if (!program.mesh) {
    std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> results;
    results.push_back(program.executable->execute(arguments_of(0, client.addressable_devices().front()), kept));
    return results;
  }
  std::vector<std::vector<const pjrt::Buffer*>> arguments;
  for (size_t i = 0; i < program.mesh->devices.size(); ++i) arguments.push_back(arguments_of(i, *program.mesh->devices[i]));
  std::lock_guard lock(mesh_launch_mutex_);
  // Virtual devices share one pool of threads, which those of one program that wait for each other in a collective may fill before
  // another program's have all begun: then both wait for ever. So one program at a time.
  for (const pjrt::Event& event : mesh_in_flight_) {
    try {
      event.await();
    } catch (const Error&) {
      // Raised by those who read its results.
    }
  }
  mesh_in_flight_.clear();
  auto results = program.executable->execute(arguments, kept);
  if (devices_.target().is_cpu())
    for (const auto& of_device : results)
      if (!of_device.empty()) mesh_in_flight_.push_back(of_device.front()->ready());
  return results;
}

namespace {

// What the results of a launch carry: the checks that its inputs carry and that may still fail, and its own.
std::shared_ptr<const CheckList> checks_of(std::span<const std::shared_ptr<const Array>> inputs, std::shared_ptr<LaunchChecks> own) {
  CheckList checks;
  const CheckList* last = nullptr;
  size_t sources = 0;
  for (const auto& input : inputs) {
    if (!input || !input->checks() || input->checks().get() == last) continue;
    last = input->checks().get();
    ++sources;
    std::ranges::copy_if(*last, std::back_inserter(checks), [](const auto& check) { return !check->settled(); });
  }
  if (sources > 1) {
    std::ranges::sort(checks, [](const auto& a, const auto& b) { return a->before(*b); });
    const auto repeated = std::ranges::unique(checks);
    checks.erase(repeated.begin(), repeated.end());
  }
  if (own) checks.push_back(std::move(own));
  return checks.empty() ? nullptr : std::make_shared<const CheckList>(std::move(checks));
}

}  // namespace

Launcher::Launched Launcher::launch(const Program& program, const Launch& launch, std::span<const int64_t> kept) {
  std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> results;
  if (!devices_.ahead_of_time()) results = execute(program, launch, kept);
  Launched launched;
  for (const auto& of_device : results)  // a program's outputs are ready together
    if (!of_device.empty()) launched.launch.ready.push_back(of_device.front()->ready());
  if (program.checks && !results.empty())
    launched.launch.checks = std::make_shared<LaunchChecks>(std::move(results.front().back()), program.checks);
  const std::shared_ptr<const CheckList> checks = checks_of(launch.externals, launched.launch.checks);
  launched.outputs.resize(program.outputs.size());
  size_t next = 0;
  for (size_t i = 0; i < launched.outputs.size(); ++i) {
    if (program.outputs[i].elements() == 0) continue;
    std::vector<std::unique_ptr<pjrt::Buffer>> shards;
    shards.reserve(results.size());
    for (auto& of_device : results) shards.push_back(std::move(of_device[next]));
    launched.outputs[i] =
        std::make_shared<const Array>(std::move(shards), program.mesh, program.mesh ? program.shardings[i] : hlo::Sharding{}, checks);
    ++next;
  }
  return launched;
}

// Gives the parameters that stay their owners'.
std::vector<int64_t> Launcher::offer(Handover& handover, const Program& program, std::span<const std::shared_ptr<Storage>> sources,
                                     std::span<const std::shared_ptr<const Array>> externals) {
  std::vector<Handover::Offer> offers;
  for (int64_t parameter : program.aliased) {
    const size_t external = program.externals[static_cast<size_t>(parameter)];
    offers.push_back({sources[external], &externals[external]});
  }
  const std::vector<bool> given = handover.offer(offers);
  std::vector<int64_t> kept;
  for (size_t i = 0; i < given.size(); ++i)
    if (!given[i]) kept.push_back(program.aliased[i]);
  counters_.donations.fetch_add(static_cast<int64_t>(given.size() - kept.size()), std::memory_order_relaxed);
  return kept;
}

void Launcher::run(const Program& program, const Launch& given, std::span<const std::shared_ptr<Storage>> sources,
                   std::span<const OutputStorage> targets, std::string_view failure) {
  Handover handover;
  const std::vector<int64_t> kept = offer(handover, program, sources, given.externals);
  Launched launched;
  try {
    launched = launch(program, given, kept);
  } catch (const std::exception& error) {
    handover.fail(fmt::format("{}{}", failure, error.what()));
    throw;
  }
  std::vector<Assignment> assignments;
  assignments.reserve(targets.size());
  for (const OutputStorage& target : targets)
    assignments.push_back({target.storage, program.outputs[target.output], launched.outputs[target.output]});
  handover.commit(assignments);
  finish(std::move(launched.launch));
}

std::vector<std::shared_ptr<const Array>> Launcher::outputs(const Program& program, const Launch& given) {
  return launch(program, given, program.aliased).outputs;
}

// The results have their place.
void Launcher::finish(InFlightLaunch launch) {
  if (!debug_) return in_flight_.add(std::move(launch));
  for (const pjrt::Event& event : launch.ready) event.await();
  if (launch.checks) raise_failed({launch.checks});
}

}  // namespace flambeau::runtime
