#include <algorithm>

#include "base/log.h"
#include "pjrt/call.h"
#include "pjrt/compiled.h"
#include "pjrt/known_options.h"
#include "pjrt/named_values.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

// Some plugins end the process on a dimension of zero and take an empty name for a default.
void check_name(const std::string& name) {
  const auto colon = name.find(':');
  bool good = !name.empty() && colon != 0;
  if (good && colon != std::string::npos) {
    int64_t dimension = 0;
    for (const char c : name.substr(colon + 1) + "x") {
      if (c == 'x') {
        good = good && dimension > 0;
        dimension = 0;
      } else {
        good = good && c >= '0' && c <= '9' && dimension < 1'000'000;
        if (good) dimension = 10 * dimension + (c - '0');
      }
    }
  }
  if (!good) {
    raise<InvalidArgument>("[pjrt.topology] expected a name such as v5e:2x2x1, every dimension at least 1, got '{}'", name);
  }
}

}  // namespace

std::shared_ptr<const Topology> Topology::create(const Plugin& plugin, const std::string& name, const Attributes& options) {
  check_name(name);
  const PJRT_Api* api = plugin.api();
  const auto values = to_named_values(options);
  auto topology = std::shared_ptr<Topology>(new Topology);
  topology->plugin_ = &plugin;
  topology->handle_ = call<&PJRT_Api::PJRT_TopologyDescription_Create>(api, "topology", [&](auto& a) {
                        a.topology_name = name.data();
                        a.topology_name_size = name.size();
                        a.create_options = values.data();
                        a.num_options = values.size();
                      }).topology;
  auto about = [&](auto& a) { a.topology = topology->handle_; };
  const auto platform = call<&PJRT_Api::PJRT_TopologyDescription_PlatformName>(api, "topology", about);
  topology->platform_name_.assign(platform.platform_name, platform.platform_name_size);
  const auto all = call<&PJRT_Api::PJRT_TopologyDescription_GetDeviceDescriptions>(api, "topology", about);
  for (PJRT_DeviceDescription* description : std::span(all.descriptions, all.num_descriptions)) {
    topology->devices_.push_back(describe(api, description));
    topology->devices_.back().addressable = false;
  }
  std::sort(topology->devices_.begin(), topology->devices_.end(),
            [](const Device& a, const Device& b) { return a.id < b.id; });
  return topology;
}

Topology::~Topology() {
  if (handle_ == nullptr) return;
  release<&PJRT_Api::PJRT_TopologyDescription_Destroy>(plugin_->api(), [&](auto& a) { a.topology = handle_; });
}

// With the first devices of the topology, where the options name none.
CompileOptions Topology::placed(const CompileOptions& options) const {
  CompileOptions filled = options;
  const auto count = static_cast<size_t>(options.num_replicas) * static_cast<size_t>(options.num_partitions);
  if (!options.portable && options.device_ids.empty()) {
    if (count > devices_.size()) {
      raise<InvalidArgument>("[pjrt.topology] expected at most {} devices, got {} replicas x {} partitions", devices_.size(),
                             options.num_replicas, options.num_partitions);
    }
    for (size_t i = 0; i < count; ++i) filled.device_ids.push_back(devices_[i].id);
  }
  return filled;
}

Topology::Compiled Topology::compile(std::string_view program, const CompileOptions& options) const {
  constexpr std::string_view kFormat = "mlir";
  PJRT_Program text{};
  text.struct_size = sizeof(text);
  text.code = const_cast<char*>(program.data());  // not written to
  text.code_size = program.size();
  text.format = kFormat.data();
  text.format_size = kFormat.size();
  const PJRT_Api* api = plugin_->api();
  const auto args = with_known_options(placed(options), [&](const std::string& serialized) {
    return call<&PJRT_Api::PJRT_Compile>(api, "compile", [&](auto& a) {
      a.topology = handle_;
      a.program = &text;
      a.compile_options = serialized.data();
      a.compile_options_size = serialized.size();
    });
  });
  const pjrt::Compiled compiled(api, args.executable);
  Compiled result{.optimized_hlo = compiled.optimized_hlo(), .memory = compiled.memory_stats(), .serialized = {}};
  try {
    result.serialized = compiled.serialize();
  } catch (const PluginError& error) {
    log_debug("a program compiled for a topology cannot be serialized: {}", error.what());
  }
  return result;
}

}  // namespace flambeau::pjrt
