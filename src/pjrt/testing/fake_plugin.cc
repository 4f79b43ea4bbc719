#include "pjrt/testing/fake_plugin.h"

#include <cstring>

#include "pjrt/testing/fake_objects.h"

namespace flambeau::pjrt::fake {
namespace {

struct State {
  std::mutex mutex;
  Faults faults;
  bool held = false;
  std::vector<std::pair<std::shared_ptr<Completion>, Status>> launches;  // that are held
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

PJRT_Error* initialize(PJRT_Plugin_Initialize_Args*) { return error(strike(&Faults::initialize)); }

PJRT_Error* plugin_attributes(PJRT_Plugin_Attributes_Args* a) {
  static const int64_t version[] = {1, 13, 0};
  static const PJRT_NamedValue value = [] {
    PJRT_NamedValue v{};
    v.struct_size = sizeof(v);
    v.name = "stablehlo_current_version";
    v.name_size = std::strlen(v.name);
    v.type = PJRT_NamedValue_kInt64List;
    v.int64_array_value = version;
    v.value_size = 3;
    return v;
  }();
  a->attributes = &value;
  a->num_attributes = 1;
  return nullptr;
}

PJRT_Api make_api() {
  PJRT_Api api{};
  api.struct_size = sizeof(api);
  api.pjrt_api_version.struct_size = sizeof(api.pjrt_api_version);
  api.pjrt_api_version.major_version = PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = PJRT_API_MINOR;
  api.PJRT_Plugin_Initialize = initialize;
  api.PJRT_Plugin_Attributes = plugin_attributes;
  add_events(api);
  add_clients(api);
  add_buffers(api);
  add_executables(api);
  return api;
}

}  // namespace

// Whether `fault` strikes at this call.
Status strike(Fault Faults::* fault) {
  std::lock_guard lock(state().mutex);
  Fault& f = state().faults.*fault;
  if (f.text.empty() || f.after-- > 0) return {};
  f.after = 0;
  return {f.code, f.text};
}

Status strike_unknown_option(std::string_view options) {
  std::lock_guard lock(state().mutex);
  const std::string& name = state().faults.unknown_option;
  if (name.empty() || options.find(name) == std::string_view::npos) return {};
  return {PJRT_Error_Code_INVALID_ARGUMENT, "No such compile option: '" + name + "'"};
}

bool true_flags() {
  std::lock_guard lock(state().mutex);
  return state().faults.true_flags;
}

std::shared_ptr<Completion> launch() {
  Status status = strike(&Faults::execute_late);
  auto completion = std::make_shared<Completion>();
  {
    std::lock_guard lock(state().mutex);
    if (state().held) {
      state().launches.emplace_back(completion, std::move(status));
      return completion;
    }
  }
  completion->finish(std::move(status));
  return completion;
}

const PJRT_Api& fake_api() {
  static const PJRT_Api api = make_api();
  return api;
}

const Plugin& fake_plugin() { return Plugin::from_api(&fake_api(), "fake"); }

Live live() {
  return {.clients = Counted<kClient>::count,
          .topologies = Counted<kTopology>::count,
          .executables = Counted<kExecutable>::count,
          .buffers = Counted<kBuffer>::count,
          .events = Counted<kEvent>::count,
          .errors = Counted<kError>::count};
}

FaultScope::FaultScope(Faults faults) {
  std::lock_guard lock(state().mutex);
  outer_ = std::exchange(state().faults, std::move(faults));
}

FaultScope::~FaultScope() {
  std::lock_guard lock(state().mutex);
  state().faults = std::move(outer_);
}

LaunchesHeld::LaunchesHeld() {
  std::lock_guard lock(state().mutex);
  state().held = true;
}

void LaunchesHeld::finish() {
  std::vector<std::pair<std::shared_ptr<Completion>, Status>> launches;
  {
    std::lock_guard lock(state().mutex);
    launches.swap(state().launches);
  }
  for (auto& [completion, status] : launches) completion->finish(std::move(status));
}

LaunchesHeld::~LaunchesHeld() {
  {
    std::lock_guard lock(state().mutex);
    state().held = false;
  }
  finish();
}

}  // namespace flambeau::pjrt::fake
