// inspect_program FILE: what a compiler makes of a StableHLO text, as JSON on standard output.
//
//   inspect_program FILE --topology v5e:2x4      by TPU's compiler, which needs no TPU; in a process of its own
//   inspect_program FILE --cpu 8                 by the CPU plugin, for as many virtual devices
//
// FLAMBEAU_DUMP=folder makes any run write such files. Exit code 2 and one line on standard error when it does not compile;
// a program that does not fit gives {"out_of_memory": the compiler's text}.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "compiled/analysis.h"
#include "compiled/axes.h"
#include "compiled/buffers.h"
#include "pjrt/topology_compiler.h"

namespace flambeau {
namespace {

using compiled::Analysis;
using compiled::Buffers;
using compiled::MeshAxes;
using nlohmann::json;

struct Request {
  std::string file, topology, plugin, hlo_file;
  std::vector<int64_t> wrap;
  int64_t slices = 1;
  int cpu_devices = 0, partitions = 0, time_limit = 600;
  bool whole = false;
};

// The program's mesh, `sdy.mesh @mesh = <["a"=4,"b"=2]>`; empty without one, none where its sizes are impossible.
std::optional<MeshAxes> mesh_of(std::string_view program) {
  MeshAxes mesh;
  const size_t at = program.find("sdy.mesh @");
  if (at == std::string_view::npos) return mesh;
  const std::string_view line = program.substr(at, program.find('>', at) - at);
  int64_t product = 1;
  for (size_t sign = line.find("\"="); sign != std::string_view::npos; sign = line.find("\"=", sign + 2)) {
    int64_t size = 0;
    std::from_chars(line.data() + sign + 2, line.data() + line.size(), size);
    if (size < 1 || product > (1 << 20) / size) return std::nullopt;
    product *= size;
    const size_t quote = line.rfind('"', sign - 1);
    mesh.push_back({std::string(line.substr(quote + 1, sign - quote - 1)), size});
  }
  return mesh;
}

int partitions_of(const MeshAxes& mesh) {
  int64_t product = 1;
  for (const hlo::MeshAxis& axis : mesh) product *= axis.size;
  return static_cast<int>(product);
}

json to_json(const compiled::Shape& shape) {
  if (!shape.is_tuple()) return {{"type", shape.type}, {"dims", shape.dims}, {"bytes", shape.bytes()}};
  json parts = json::array();
  for (const auto& part : shape.parts) parts.push_back(to_json(part));
  return parts;
}

json to_json(const Analysis& analysis, const MeshAxes& mesh) {
  json parameters = json::array(), collectives = json::array(), loops = json::array(), contractions = json::array(),
       operations = json::array();
  for (const auto& p : analysis.parameters) {
    json parameter = to_json(p.shape);
    parameter.update({{"name", p.name}, {"op_name", p.op_name}, {"aliased", p.aliased}});
    parameters.push_back(std::move(parameter));
  }
  for (const auto& loop : analysis.loops) {
    loops.push_back({{"name", loop.name},
                     {"op_name", loop.op_name},
                     {"parent", loop.parent},
                     {"trips", nullptr}});
    if (loop.trips) loops.back()["trips"] = *loop.trips;
  }
  for (const auto& c : analysis.collectives) {
    collectives.push_back({{"kind", c.kind},
                           {"type", c.type},
                           {"bytes", c.bytes()},
                           {"operand_bytes", c.operand_bytes},
                           {"result_bytes", c.result_bytes},
                           {"group_size", c.group_size},
                           {"axes", compiled::axes_name(axes_of(c, mesh), mesh)},
                           {"loop", c.loop},
                           {"loop_depth", analysis.nest(c.loop).size()},
                           {"runs", analysis.runs(c.loop)},
                           {"name", c.name},
                           {"op_name", c.op_name}});
  }
  for (const auto& c : analysis.contractions) {
    contractions.push_back(
        {{"flops", c.flops}, {"loop", c.loop}, {"runs", analysis.runs(c.loop)}, {"name", c.name}, {"op_name", c.op_name}});
  }
  for (const auto& o : analysis.operations) {
    operations.push_back({{"name", o.name},
                          {"op_name", o.op_name},
                          {"loop", o.loop},
                          {"runs", analysis.runs(o.loop)},
                          {"flops", o.flops},
                          {"bytes_read", o.bytes_read},
                          {"bytes_written", o.bytes_written}});
  }
  return {{"parameters", parameters},   {"result", to_json(analysis.result)}, {"loops", loops},
          {"collectives", collectives}, {"contractions", contractions},       {"flops", analysis.flops()},
          {"operations", operations},   {"hbm_bytes", analysis.hbm_bytes()},  {"exact", analysis.exact()}};
}

// What lies in HBM, the largest allocations and values first.
json to_json(const Buffers& buffers) {
  json values = json::array(), parameters = json::array();
  for (const auto& allocation : buffers.allocations) {
    if (!allocation.in_hbm()) continue;
    if (allocation.parameter >= 0) parameters.push_back({{"number", allocation.parameter}, {"bytes", allocation.size}});
    for (const auto& v : allocation.values) {
      values.push_back({{"name", v.name}, {"shape", v.shape}, {"bytes", v.size}, {"offset", v.offset}, {"first", v.first},
                        {"last", v.last}, {"parameter", allocation.parameter}});
    }
  }
  std::sort(values.begin(), values.end(), [](const json& a, const json& b) { return a["bytes"] > b["bytes"]; });
  return {{"total", buffers.hbm_bytes()}, {"host", buffers.host_bytes()}, {"schedule_length", buffers.schedule_length},
          {"parameters", parameters},     {"values", values}};
}

struct Compiled {
  std::string hlo;
  json notes;  // what is said besides
};

Compiled compile_for_topology(const Request& request, std::string program, int partitions) {
  pjrt::TopologyJob job{.plugin = pjrt::find_plugin(request.plugin.empty() ? "tpu" : request.plugin),
                        .topology = request.topology,
                        .program = std::move(program),
                        .options = {.num_partitions = partitions},
                        .whole = request.whole,
                        .time_limit = std::chrono::seconds(request.time_limit)};
  if (!request.wrap.empty()) job.attributes.emplace("wrap", request.wrap);
  if (request.slices > 1) {
    if (!request.whole)
      raise<InvalidArgument>("[inspect_program] expected --whole with --slices (the first phase of TPU's compiler ends its process for several "
                             "slices), got none; add --whole");
    job.attributes.emplace("num_slices", request.slices);
  }
  pjrt::TopologyResult result = pjrt::compile_apart(job);
  Compiled compiled{std::move(result.optimized_hlo), {}};
  compiled.notes = {{"device_kind", result.device_kind},
                    {"device_memory", result.device_memory},
                    {"remarks", pjrt::remarks(result.diagnostics)},
                    {"memory", nullptr}};
  const Buffers buffers = compiled::parse_buffers(result.buffer_assignment, result.live_ranges);
  compiled.notes["buffers"] = to_json(buffers);
  if (!buffers.allocations.empty()) compiled.notes["memory"] = {{"total", buffers.hbm_bytes()}, {"host", buffers.host_bytes()}};
  return compiled;
}

Compiled compile_for_cpu(const Request& request, const std::string& program, int partitions) {
  const auto& plugin = pjrt::Plugin::load(pjrt::find_plugin(request.plugin.empty() ? "cpu" : request.plugin));
  const auto client = pjrt::Client::create(plugin, {{"cpu_device_count", int64_t{request.cpu_devices}}});
  const auto executable = client->compile(program, {.num_partitions = partitions});
  const pjrt::MemoryStats memory = executable->memory_stats();
  Compiled compiled{executable->optimized_hlo(), {}};
  if (compiled.hlo.empty()) raise<InvalidArgument>("[inspect_program] this plugin does not give what it compiled; choose another one with --plugin");
  compiled.notes = {
      {"memory", {{"total", memory.argument + memory.output - memory.alias + memory.temporary}, {"host", memory.host}}}};
  return compiled;
}

json inspect(const Request& request) {
  std::string program = read_file(request.file);
  const std::optional<MeshAxes> found = mesh_of(program);
  if (!found && request.partitions <= 0)
    raise<InvalidArgument>("[inspect_program] expected a mesh of devices that exist, got another; say --partitions");
  const MeshAxes mesh = found.value_or(compiled::MeshAxes{});
  const int partitions = request.partitions > 0 ? request.partitions : partitions_of(mesh);
  json out = {{"partitions", partitions}};
  try {
    const Compiled compiled = request.topology.empty() ? compile_for_cpu(request, program, partitions)
                                                       : compile_for_topology(request, std::move(program), partitions);
    if (!request.hlo_file.empty()) write_file_atomically(request.hlo_file, compiled.hlo);
    out.update(to_json(compiled::analyze(compiled::parse_module(compiled.hlo), partitions), mesh));
    out.update(compiled.notes);
  } catch (const pjrt::OutOfMemory& error) {
    out["out_of_memory"] = error.what();
  }
  return out;
}

}  // namespace
}  // namespace flambeau

int main(int argc, char** argv) {
  flambeau::Request request;
  CLI::App app("What a compiler makes of a StableHLO text, as JSON");
  app.add_option("file", request.file, "StableHLO text, as FLAMBEAU_DUMP=folder writes it")->required();
  auto* where = app.add_option_group("for");
  where->add_option("--topology", request.topology, "TPUs: v4:2x2x1, v5e:2x4, v5:4x4x4, v6e:16x16, tpu7x:2x2x1");
  where->add_option("--cpu", request.cpu_devices, "so many virtual CPU devices")->check(CLI::PositiveNumber);
  where->require_option(1);
  app.add_option("--wrap", request.wrap, "for each dimension of the topology 1 where its links wrap around")->delimiter(',');
  app.add_option("--slices", request.slices, "so many of them, joined by the data centre's network; with --whole")->check(CLI::PositiveNumber);
  app.add_option("--partitions", request.partitions, "devices of the program; default: those of its mesh");
  app.add_option("--plugin", request.plugin, "another plugin than TPU's or the CPU's");
  app.add_option("--time-limit", request.time_limit, "seconds that TPU's compiler may take");
  app.add_option("--write-hlo", request.hlo_file, "also write the compiled program here, a serialized HloModuleProto");
  app.add_flag("--whole", request.whole, "compile to the end, not the first phase alone");
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << flambeau::inspect(request).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 2;
  }
}
