#include "runtime/program_cache.h"

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "base/files.h"
#include "hlo/graph.h"
#include "targets/compile_options.h"
#include "runtime/internal_ops.h"
#include "runtime/lower.h"

namespace flambeau::runtime {

// With FLAMBEAU_DUMP=folder, each program's text is written there before it is compiled.
static void dump(std::string_view name, std::string_view text) {
  static const char* folder = std::getenv("FLAMBEAU_DUMP");
  static std::atomic<int> next{0};
  if (folder && *folder) write_file_atomically(fmt::format("{}/{}-{}.mlir", folder, name, next++), text);
}

ProgramCache::ProgramCache(const Devices& devices, Counters& counters)
    : devices_(devices), counters_(counters), preferred_options_(targets::preferred_options(devices.target())),
      asked_(std::make_shared<const AskedOptions>()) {}

void ProgramCache::set_compile_options(pjrt::CompileFlags options) {
  const uint64_t hash = options.empty() ? 0 : pjrt::CompileOptions{.overrides = options}.hash();
  auto asked = std::make_shared<const AskedOptions>(AskedOptions{std::move(options), hash});
  std::lock_guard lock(mutex_);
  asked_ = std::move(asked);
}

void ProgramCache::forget() {
  std::lock_guard lock(mutex_);
  programs_.clear();
}

std::shared_ptr<const Program> ProgramCache::get(const Trace& trace, std::span<const ValueId> outputs,
                                                 std::span<const std::pair<size_t, size_t>> aliases, std::string_view name,
                                                 std::span<const hlo::Sharding> shardings) {
  KeyHasher h;
  const Key structure = trace.key();
  h.add(structure.high, structure.low, outputs.size());
  for (ValueId id : outputs) h.add(id);
  for (auto [external, output] : aliases) h.add(external, output);
  h.add(trace.mesh() ? trace.mesh()->hash : 0);
  for (const hlo::Sharding& sharding : shardings) h.add(std::string_view(encode_sharding(sharding)));

  std::promise<std::shared_ptr<const Program>> promise;
  ProgramFuture future;
  std::shared_ptr<const AskedOptions> asked;
  Key key;
  bool ours = false;
  {
    std::lock_guard lock(mutex_);
    asked = asked_;
    key = h.add(asked->hash).key();
    auto [it, inserted] = programs_.try_emplace(key);
    if (inserted) it->second = promise.get_future().share();
    future = it->second;
    ours = inserted;
  }
  if (!ours) {
    counters_.programs_reused.fetch_add(1, std::memory_order_relaxed);
    return future.get();
  }
  try {
    promise.set_value(compile(trace, outputs, aliases, name, shardings, asked->flags));
  } catch (...) {
    promise.set_exception(std::current_exception());
    std::lock_guard lock(mutex_);
    programs_.erase(key);  // the next request tries again
    throw;
  }
  return future.get();
}

std::shared_ptr<const Program> ProgramCache::compile(const Trace& trace, std::span<const ValueId> outputs,
                                                     std::span<const std::pair<size_t, size_t>> aliases, std::string_view name,
                                                     std::span<const hlo::Sharding> shardings, const pjrt::CompileFlags& asked) const {
  const auto begin = std::chrono::steady_clock::now();
  auto program = std::make_shared<Program>();
  program->mesh = trace.mesh();
  Lowered lowered = lower(trace, outputs, aliases, shardings);
  hlo::simplify(*lowered.graph);
  std::string text = hlo::print(*lowered.graph, {.module_name = name, .sites = true});
  dump(name, text);
  for (size_t i = 0; i < lowered.externals.size(); ++i)
    if (lowered.graph->parameter_signature(i).aliasing_output) program->aliased.push_back(static_cast<int64_t>(i));
  pjrt::CompileOptions options = compile_options(program->mesh, asked);
  if (!devices_.ahead_of_time()) {
    program->executable = devices_.client().compile(text, options);
  } else {
    program->graph = std::move(lowered.graph);
    program->text = std::move(text);
    program->options = std::move(options);
  }
  program->externals = std::move(lowered.externals);
  for (ValueId id : outputs) program->outputs.push_back(trace.type(id));
  program->shardings.assign(shardings.begin(), shardings.end());
  program->floats = lowered.floats;
  program->integers = lowered.integers;
  program->random = lowered.random;
  if (!lowered.checks.empty()) program->checks = std::make_shared<const std::vector<ops::CheckError>>(std::move(lowered.checks));
  counters_.programs_compiled.fetch_add(1, std::memory_order_relaxed);
  counters_.compile_microseconds +=
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  return program;
}

pjrt::CompileOptions ProgramCache::compile_options(const DeviceMesh* mesh, const pjrt::CompileFlags& asked) const {
  const targets::Target& target = devices_.target();
  pjrt::CompileOptions options{.overrides = asked, .preferences = preferred_options_};
  if (target.is_cpu()) options.overrides.try_emplace("xla_cpu_enable_fast_min_max", false);  // it loses NaNs
  if (!mesh) return options;
  options.num_partitions = static_cast<int>(mesh->mesh.size());
  options.device_ids = mesh->device_ids;
  // Its newer form of shardings does not read the mesh that the program names, and warns of each program.
  if (target.api_version >= std::pair(0, 115)) options.overrides.try_emplace("xla_enable_hlo_sharding_v3", false);
  return options;
}

}  // namespace flambeau::runtime
