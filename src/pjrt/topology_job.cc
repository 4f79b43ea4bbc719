#include "pjrt/topology_job.h"

#include <charconv>
#include <sstream>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/files.h"

namespace flambeau::pjrt {
namespace {

using nlohmann::json;

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
  using Override = decltype(options.overrides)::mapped_type;
  options.overrides = map_from_json<Override>(job.at("overrides"));
  return result;
}

void write_result(const std::filesystem::path& folder, const TopologyResult& result) {
  write_file_atomically(folder / "hlo", result.optimized_hlo);
  json content = {{"end", JobEnd::Compiled},
                  {"device_count", result.device_count},
                  {"device_kind", result.device_kind},
                  {"device_memory", result.device_memory}};
  if (result.memory) content["memory"] = {result.memory->total, result.memory->host};
  write(folder / "result", content);
}

void write_failure(const std::filesystem::path& folder, JobEnd end, const std::string& text) {
  write(folder / "result", {{"end", end}, {"text", text}});
}

TopologyResult read_result(const std::filesystem::path& folder) {
  try {
    const json content = json::parse(read_file(folder / "result"));
    const auto end = content.at("end").get<JobEnd>();
    if (end == JobEnd::OutOfMemory) throw OutOfMemory(content.at("text").get<std::string>());
    if (end == JobEnd::Invalid) throw InvalidArgument(content.at("text").get<std::string>());
    if (end == JobEnd::Refused) throw PluginError(content.at("text").get<std::string>());
    TopologyResult result{.optimized_hlo = read_file(folder / "hlo"),
                          .memory = {},
                          .diagnostics = {},
                          .device_count = content.at("device_count"),
                          .device_kind = content.at("device_kind"),
                          .device_memory = content.at("device_memory")};
    if (content.contains("memory")) {
      const json& memory = content["memory"];
      result.memory = MemoryUsage{.total = memory.at(0), .host = memory.at(1)};
    }
    return result;
  } catch (const json::exception& error) {
    raise<PluginError>("[topology_compiler] the compiler's process left a result that is not whole: {}", error.what());
  } catch (const IoError& error) {
    raise<PluginError>("[topology_compiler] the compiler's process left a result that is not whole: {}", error.what());
  }
}

// XLA writes a section for each kind of memory:
//   Memory Space: default (color=0)
//   Total bytes: 1118720 (1.07MiB)
// Color 0 is the device's large memory, 4 the host's; the others are on the chip.
std::optional<MemoryUsage> read_memory_report(const std::filesystem::path& folder) {
  constexpr std::string_view kName = "memory-usage-report.txt", kTotal = "Total bytes: ";
  std::optional<MemoryUsage> usage;
  std::error_code missing;
  for (const auto& file : std::filesystem::directory_iterator(folder, missing)) {
    if (!file.path().native().ends_with(kName)) continue;
    usage.emplace();
    std::istringstream lines(read_file(file.path()));
    int64_t* total = nullptr;  // of the section
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("Memory Space: ")) {
        total = line.ends_with("(color=0)") ? &usage->total : line.ends_with("(color=4)") ? &usage->host : nullptr;
      } else if (line.starts_with(kTotal) && total != nullptr) {
        std::from_chars(line.data() + kTotal.size(), line.data() + line.size(), *total);
      }
    }
  }
  return usage;
}

}  // namespace flambeau::pjrt
