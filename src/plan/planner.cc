#include "plan/planner.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "compiled/analysis.h"
#include "compiled/buffers.h"
#include "pjrt/topology_compiler.h"
#include "plan/analytic/analytic.h"
#include "plan/loop_roles.h"
#include "plan/memory/memory.h"
#include "plan/time/collectives.h"
#include "plan/time/estimate.h"
#include "plan/time/timeline.h"

namespace flambeau::plan {
namespace {

// Of host memory: less is what every program has, not activations that are kept there.
constexpr int64_t kNotableHostBytes = int64_t{16} << 20;

// Axes of the mesh along which devices of different slices meet: devices are numbered slice by slice.
std::vector<std::string> axes_across_slices(const Pod& pod, const std::vector<hlo::MeshAxis>& mesh) {
  std::vector<std::string> across;
  if (pod.slices == 1) return across;
  const int64_t devices_per_slice = pod.devices() / pod.slices;
  int64_t inner = 1;
  for (auto axis = mesh.rbegin(); axis != mesh.rend(); ++axis) {
    inner *= axis->size;
    if (inner > devices_per_slice) across.push_back(axis->name);
  }
  return across;
}

// The devices of the first slice that differ from the first one along some axes of the mesh (bits by index) alone.
std::vector<int64_t> group_along(const Pod& pod, const std::vector<hlo::MeshAxis>& mesh, size_t axes) {
  const int64_t devices_per_slice = pod.devices() / pod.slices;
  std::vector<int64_t> group = {0};
  int64_t stride = 1;
  for (size_t axis = mesh.size(); axis-- > 0; stride *= mesh[axis].size) {
    if ((axes >> axis & 1) == 0) continue;
    const size_t before = group.size();
    for (int64_t i = 1; i < mesh[axis].size && i * stride < devices_per_slice; ++i)
      for (size_t j = 0; j < before; ++j) group.push_back(group[j] + i * stride);
  }
  std::erase_if(group, [&](int64_t device) { return device >= devices_per_slice; });
  return group;
}

DeviceRates rates_of(const Pod& pod, const std::vector<hlo::MeshAxis>& mesh) {
  const targets::Peak peak = pod.chip().device_peak();
  DeviceRates rates{.flops = peak.bf16_flops,
                    .hbm_bytes = peak.hbm_bandwidth,
                    .ici_bytes = peak.ici_bandwidth,
                    .link_bytes = pod.chip().link_bandwidth() / static_cast<double>(pod.chip().devices),
                    .dcn_bytes = peak.dcn_bandwidth,
                    .dcn_axes = axes_across_slices(pod, mesh),
                    .host_bytes = peak.host_bandwidth};
  for (size_t axes = 0; axes < size_t{1} << mesh.size(); ++axes)
    rates.ici_bytes_over.push_back(pod.ici_bandwidth(group_along(pod, mesh, axes)));
  for (const hlo::MeshAxis& axis : mesh) rates.ici_axes.push_back(axis.name);
  return rates;
}

// What is kept in the host's memory is moved there and back for each microbatch.
void add_host_traffic(Report& report, const DeviceRates& rates) {
  if (report.memory.host <= kNotableHostBytes) return;
  add_host_traffic(report.estimate, 2 * static_cast<double>(report.memory.host) * static_cast<double>(report.accumulation), rates);
}

std::string block_text(int64_t length) { return length > 0 ? std::to_string(length) : "chosen"; }

// Fills in what the compiled module and the compiler's reports tell.
void describe_compiled(const Draft& draft, const Pod& pod, const pjrt::TopologyResult& compiled, Report& report) {
  const auto module = compiled::parse_module(compiled.optimized_hlo);
  const auto analysis = compiled::analyze(module, report.devices);
  const auto buffers = compiled::parse_buffers(compiled.buffer_assignment, compiled.live_ranges);
  const int64_t limit = compiled.device_memory > 0 ? compiled.device_memory : pod.chip().device_memory;
  const LoopRoles roles = loop_roles(module, analysis);
  report.memory = memory_of(
      {.module = module, .analysis = analysis, .roles = roles, .buffers = buffers, .arguments = draft.step.arguments}, limit);
  const DeviceRates rates = rates_of(pod, report.mesh);
  const Timeline timeline = run_timeline(analysis, report.mesh, rates);
  report.collectives = collective_groups(analysis, roles, report.mesh, timeline);
  report.work = work_of(analysis);
  report.estimate = estimate(analysis, timeline, rates);
  add_host_traffic(report, rates);
  report.exact = analysis.exact();
  for (const std::string& remark : pjrt::remarks(compiled.diagnostics)) {
    std::string warning = "the compiler says: " + remark;
    if (std::ranges::find(report.warnings, warning) == report.warnings.end()) report.warnings.push_back(std::move(warning));
  }
}

}  // namespace

Planner::Planner(Pod pod, PlanOptions options) : pod_(std::move(pod)), options_(std::move(options)) {
  if (options_.full && options_.analytic)
    raise<InvalidArgument>("[plan] expected --full or --analytic, got both; leave one out");
  if (options_.analytic) return;
  try {
    plugin_ = pjrt::find_plugin(options_.plugin.empty() ? "tpu" : options_.plugin);
  } catch (const InvalidArgument& missing) {
    if (options_.full || !options_.plugin.empty()) throw;
    why_analytic_ = "TPU's compiler is not installed (pip install libtpu): memory and times are computed from the recorded program, "
                    "not compiled";
  }
}

uint64_t Planner::fingerprint() const {
  Hasher hasher;
  hasher.add(std::string_view(pod_.name())).add(pod_.slices).add(options_.full).add(std::string_view(plugin_.native()));
  std::error_code error;
  hasher.add(std::filesystem::file_size(plugin_, error));
  hasher.add(std::filesystem::last_write_time(plugin_, error).time_since_epoch().count());
  return hasher.value();
}

Draft Planner::record(const train::Config& config) const {
  Draft draft{.config = config, .step = record_step(config, targets::Target::ahead_of_time(pod_.chip(), pod_.devices())), .report = {}};
  const StepProgram& step = draft.step;
  const train::Batching& batching = step.batching;
  Report& r = draft.report;
  r.config = config.path.string();
  train::Config on_tpu = config;
  on_tpu.device = "tpu";  // whatever would run here
  r.warnings = train::keys_without_effect(on_tpu);
  r.model = config.model.name + " " + config.model.flavor;
  r.pod = pod_.spoken();
  r.device_kind = pod_.chip().device_kind;
  r.devices = pod_.devices();
  r.chips = pod_.chips();
  r.slices = pod_.slices;
  r.mesh = step.mesh;
  r.parameters = step.parameters;
  r.tokens_per_step = batching.tokens_per_step();
  r.sequences_per_device = batching.sequences / step.degrees.data_parallel();
  r.context = batching.context;
  r.accumulation = batching.accumulation;
  r.activation_checkpoint = config.model.scan ? config.activation_checkpoint.mode : "none, layers written out";
  const bool has_kernels = step.program->text.find("tpu_custom_call") != std::string::npos;  // the step has no others
  r.attention = config.model.attention == "dense" ? "dense" : has_kernels ? "flash" : "chunked";
  if (const auto& m = config.model; r.attention != "dense" && (m.attention_block_q > 0 || m.attention_block_kv > 0))
    r.attention += fmt::format(", blocks of {} x {}", block_text(m.attention_block_q), block_text(m.attention_block_kv));
  const double tokens_per_device = static_cast<double>(r.tokens_per_step) / static_cast<double>(r.devices);
  r.model_flops = step.flops_per_token.standard * tokens_per_device;
  r.model_flops_causal = step.flops_per_token.causal * tokens_per_device;
  r.peak_flops = pod_.chip().device_peak().bf16_flops;
  r.price_per_chip_hour = options_.price_per_chip_hour;
  r.training_tokens = options_.training_tokens;
  return draft;
}

Report Planner::compile(const Draft& draft, const std::function<bool()>& goes_on) const {
  FLAMBEAU_CHECK(compiles(), "there is a compiler");
  const bool whole = options_.full || !pod_.has_first_phase();
  pjrt::CompileOptions options = draft.step.program->options;
  options.device_ids.clear();  // the topology knows them: those of several slices do not begin at 0
  const pjrt::TopologyJob job{.plugin = plugin_,
                              .topology = pod_.topology(),
                              .attributes = pod_.attributes(),
                              .program = draft.step.program->text,
                              .options = std::move(options),
                              .whole = whole,
                              .time_limit = options_.time_limit,
                              .memory_limit = options_.memory_limit,
                              .goes_on = goes_on};
  Report report = draft.report;
  report.source = whole ? "libtpu, whole compilation" : "libtpu, first phase";
  try {
    describe_compiled(draft, pod_, pjrt::compile_apart(job), report);
  } catch (const pjrt::DoesNotFit& error) {
    const pjrt::TopologyResult& told = error.told();
    if (told.optimized_hlo.empty() || told.buffer_assignment.empty()) throw;
    describe_compiled(draft, pod_, told, report);
  }
  return report;
}

Report Planner::analyse(const Draft& draft) const {
  AnalyticPlan plan = analyze_step(draft.step, pod_.generation);
  Report report = draft.report;
  report.source = "analytic";
  const DeviceRates rates = rates_of(pod_, report.mesh);
  report.estimate = estimate(plan, report.mesh, rates);
  report.memory = std::move(plan.memory);
  report.memory.limit = pod_.chip().device_memory;
  add_host_traffic(report, rates);
  report.collectives = std::move(plan.collectives);
  report.work = plan.work;
  return report;
}

}  // namespace flambeau::plan
