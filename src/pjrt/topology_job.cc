#include "pjrt/topology_job.h"

#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/wire.h"

namespace flambeau::pjrt {
namespace {

using nlohmann::json;

constexpr size_t kLargestReport = size_t{1} << 30;

// A value of a variant as [index of its type, value].
template <class... T>
json to_json(const std::variant<T...>& value) {
  return std::visit([&](const auto& v) { return json::array({value.index(), v}); }, value);
}

template <class Variant, size_t kIndex = 0>
Variant from_json(const json& value) {
  if constexpr (kIndex == std::variant_size_v<Variant>) {
    raise<InvalidArgument>("[topology_compiler] expected a value of a known type, got {}", value.dump());
  } else {
    if (value.at(0) == kIndex) return value.at(1).get<std::variant_alternative_t<kIndex, Variant>>();
    return from_json<Variant, kIndex + 1>(value);
  }
}

template <class Variant>
json to_json(const std::map<std::string, Variant>& values) {
  json object = json::object();
  for (const auto& [name, value] : values) object[name] = to_json(value);
  return object;
}

template <class Variant>
std::map<std::string, Variant> map_from_json(const json& object) {
  std::map<std::string, Variant> values;
  for (const auto& [name, value] : object.items()) values.emplace(name, from_json<Variant>(value));
  return values;
}

// Texts of a compiler need not be UTF-8.
void write(const std::filesystem::path& path, const json& content) {
  write_file_atomically(path, content.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

void write_job(const std::filesystem::path& folder, const TopologyJob& job) {
  const CompileOptions& options = job.options;
  write(folder / "job", {{"plugin", job.plugin.string()},
                         {"topology", job.topology},
                         {"attributes", to_json(job.attributes)},
                         {"num_replicas", options.num_replicas},
                         {"num_partitions", options.num_partitions},
                         {"use_shardy", options.use_shardy},
                         {"device_ids", options.device_ids},
                         {"portable", options.portable},
                         {"overrides", to_json(options.overrides)},
                         {"preferences", to_json(options.preferences)},
                         {"whole", job.whole}});
  write_file_atomically(folder / "program", job.program);
}

TopologyJob read_job(const std::filesystem::path& folder) {
  const json job = json::parse(read_file(folder / "job"));
  TopologyJob result{.plugin = job.at("plugin").get<std::string>(),
                     .topology = job.at("topology"),
                     .attributes = map_from_json<Attribute>(job.at("attributes")),
                     .program = read_file(folder / "program"),
                     .options = {},
                     .whole = job.at("whole")};
  CompileOptions& options = result.options;
  options.num_replicas = job.at("num_replicas");
  options.num_partitions = job.at("num_partitions");
  options.use_shardy = job.at("use_shardy");
  options.device_ids = job.at("device_ids").get<std::vector<int>>();
  options.portable = job.at("portable");
  options.overrides = map_from_json<CompileFlags::mapped_type>(job.at("overrides"));
  options.preferences = map_from_json<CompileFlags::mapped_type>(job.at("preferences"));
  return result;
}

void write_result(const std::filesystem::path& folder, const TopologyResult& result, const std::string& does_not_fit) {
  write_file_atomically(folder / "hlo", result.optimized_hlo);
  write_file_atomically(folder / "buffers", result.buffer_assignment);
  write_file_atomically(folder / "ranges", result.live_ranges);
  write(folder / "result", {{"end", does_not_fit.empty() ? JobEnd::Compiled : JobEnd::OutOfMemory},
                            {"text", does_not_fit},
                            {"device_count", result.device_count},
                            {"device_kind", result.device_kind},
                            {"device_memory", result.device_memory}});
}

void write_failure(const std::filesystem::path& folder, JobEnd end, const std::string& text) {
  write(folder / "result", {{"end", end}, {"text", text}});
}

TopologyResult read_result(const std::filesystem::path& folder, std::string diagnostics) {
  try {
    const json content = json::parse(read_file(folder / "result"));
    const auto end = content.at("end").get<JobEnd>();
    if (end == JobEnd::Invalid) throw InvalidArgument(content.at("text").get<std::string>());
    if (end == JobEnd::Refused) throw PluginError(content.at("text").get<std::string>());
    TopologyResult result{.optimized_hlo = read_file(folder / "hlo"),
                          .buffer_assignment = read_file(folder / "buffers"),
                          .live_ranges = read_file(folder / "ranges"),
                          .diagnostics = std::move(diagnostics),
                          .device_count = content.at("device_count"),
                          .device_kind = content.at("device_kind"),
                          .device_memory = content.at("device_memory")};
    if (end == JobEnd::OutOfMemory) throw DoesNotFit(content.at("text").get<std::string>(), std::move(result));
    return result;
  } catch (const json::exception& error) {
    raise<PluginError>("[topology_compiler] the compiler's process left a result that is not whole: {}", error.what());
  } catch (const IoError& error) {
    raise<PluginError>("[topology_compiler] the compiler's process left a result that is not whole: {}", error.what());
  }
}

void read_dump(const std::filesystem::path& folder, TopologyResult& result) {
  // The largest file of that name: a compiler may write of small programs of its own besides.
  auto read = [&](std::string_view name) -> std::string {
    std::filesystem::path best;
    uintmax_t size = 0;
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
      const uintmax_t its = file.path().native().ends_with(name) ? file.file_size(error) : 0;
      if (error || its <= size) continue;
      best = file.path();
      size = its;
    }
    return best.empty() ? std::string() : read_file(best, kLargestReport);
  };
  result.buffer_assignment = read("after_optimizations-buffer-assignment.txt");
  result.live_ranges = read("after_optimizations-live-range.txt");
  if (result.optimized_hlo.empty()) result.optimized_hlo = proto_field(read("after_optimizations.hlo.pb"), 1);
}

}  // namespace flambeau::pjrt
