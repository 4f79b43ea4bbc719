#include "kernels/registry.h"

#include <mutex>

#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/entries.h"

namespace flambeau::kernels {
namespace {

using targets::KernelForm;

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries = {flash_attention_entry()};
  std::map<std::string, Answer> answers;  // by what was asked
};

Registry& registry() {
  static auto* instance = new Registry;  // for as long as the process lives
  return *instance;
}

std::string text_of(const Request& request, KernelForm form) {
  std::string text = fmt::format("{} {} {}", request.name, static_cast<int>(form), fmt::join(request.options, ","));
  for (const hlo::Type& type : request.operands) text += " " + type.to_string();
  return text;
}

// The name under which a kernel is called.
std::string target_of(const Entry& entry) { return fmt::format("flambeau.{}", entry.name); }

}  // namespace

std::vector<Entry> entries() {
  const std::lock_guard lock(registry().mutex);
  return registry().entries;
}

void add(const Entry& entry) {
  const std::lock_guard lock(registry().mutex);
  registry().entries.push_back(entry);
}

Answer find(const Request& request, const targets::Target& target) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const Entry& entry : all.entries) {
    if (entry.name != request.name || entry.form != target.kernels) continue;
    const auto [found, is_new] = all.answers.try_emplace(text_of(request, entry.form));
    if (is_new) found->second = entry.find(request);
    return found->second;
  }
  return {nullptr, fmt::format("there is no kernel {} for {}", request.name, target.platform)};
}

void register_handlers(const pjrt::Plugin& plugin, const targets::Target& target) {
  if (target.kernels != KernelForm::Ffi) return;
  for (const Entry& entry : entries()) {
    if (entry.form != KernelForm::Ffi) continue;
    if (!pjrt::register_ffi_handler(plugin, target_of(entry), "Host", entry.handler))
      raise<PluginError>("[kernels] expected a plugin that takes handlers, got {}", plugin.path().string());
  }
}

}  // namespace flambeau::kernels
