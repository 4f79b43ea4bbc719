#include "kernels/python_child.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"

namespace flambeau::kernels {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kLargestFile = size_t{64} << 20;

// Empty where there is no place for it.
fs::path cache_folder() {
  if (const auto given = environment("FLAMBEAU_CACHE"); !given.empty()) return given;
  if (const auto given = environment("XDG_CACHE_HOME"); !given.empty()) return fs::path(given) / "flambeau";
  const auto home = environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "flambeau";
}

// One line of what a child said.
std::string told(const ProcessResult& result) {
  if (result.timed_out) return "it took too long";
  std::string text = result.error.substr(0, result.error.find_last_not_of("\n ") + 1);
  text = text.substr(text.rfind('\n') + 1).substr(0, 300);
  return text.empty() ? fmt::format("exit code {}", result.exit_code) : text;
}

ProcessResult run_script(const Tool& tool, const fs::path& python, const std::vector<std::string>& arguments, std::chrono::seconds limit) {
  std::vector<std::string> command{python.string(), "-c", tool.script};
  command.insert(command.end(), arguments.begin(), arguments.end());
  try {
    return run_process(command, limit);
  } catch (const IoError& e) {  // no such Python
    return {.exit_code = 127, .timed_out = false, .output = {}, .error = e.what()};
  }
}

// The Python that has JAX, and the versions that kernels depend on; none: `why_not` says why.
struct Python {
  fs::path path;
  std::string versions, why_not;
};

Python find_python_with_jax(const Tool& tool) {
  Python python{.path = pjrt::find_python(), .versions = {}, .why_not = {}};
  if (python.path.empty()) {
    python.why_not = "there is no Python environment near; set FLAMBEAU_PYTHON to an interpreter that has JAX";
    return python;
  }
  const ProcessResult result = run_script(tool, python.path, {"--versions"}, std::chrono::seconds(60));
  if (result.exit_code == 0) python.versions = result.output.substr(0, result.output.find('\n'));
  else
    python.why_not = fmt::format("{} has no JAX ({}); install jax and jaxlib there, or set FLAMBEAU_PYTHON", python.path.string(), told(result));
  return python;
}

// Each tool is asked once: what its kernels depend on is its own affair.
const Python& python_with_jax(const Tool& tool) {
  static std::mutex mutex;
  static auto* found = new std::map<std::string_view, Python>;
  const std::lock_guard lock(mutex);
  const auto [python, is_new] = found->try_emplace(tool.name);
  if (is_new) python->second = find_python_with_jax(tool);
  return python->second;
}

fs::path cached_file(const Tool& tool, const std::string& file, std::string versions) {
  const fs::path folder = cache_folder();
  if (folder.empty()) return {};
  std::ranges::replace_if(versions, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)) && c != '.'; }, '_');
  return folder / tool.name / fmt::format("{}_{}_{}.json", file, versions, tool.format);
}

// Of a text from outside, which nlohmann's dump() would follow to any depth. json::exception for what is no JSON.
json parse_shallow(const std::string& text) {
  static constexpr int kDeepest = 16;
  return json::parse(text, [](int depth, json::parse_event_t, const json&) {
    if (depth > kDeepest) raise<InvalidArgument>("[kernel] expected a text of at most {} levels, got more", kDeepest);
    return true;
  });
}

using Read = std::function<Calls(const json&)>;

// InvalidArgument for a text that does not describe the kernel.
std::shared_ptr<const Calls> parse(const Tool& tool, const std::string& text, const std::string& versions, const Read& read) try {
  const json content = parse_shallow(text);
  if (content.at("format") != tool.format || content.at("versions") != versions)
    raise<InvalidArgument>("[kernel] expected format {} of {} by {}", tool.format, tool.name, versions);
  return std::make_shared<const Calls>(read(content));
} catch (const json::exception& e) {
  raise<InvalidArgument>("[kernel] expected the description of kernels, got {}", e.what());
}

std::shared_ptr<const Calls> read_cached(const Tool& tool, const fs::path& file, const std::string& versions, const Read& read) {
  std::error_code error;
  if (file.empty() || !fs::is_regular_file(file, error)) return nullptr;
  try {
    return parse(tool, read_file(file, kLargestFile), versions, read);
  } catch (const Error& e) {
    log_debug("{}: made anew: {}", file.string(), e.what());
    return nullptr;
  }
}

void write_cached(const fs::path& file, const std::string& text) {
  if (file.empty()) return;
  try {
    fs::create_directories(file.parent_path());
    write_file_atomically(file, text);
  } catch (const std::exception& e) {  // a cache that cannot be written costs time only
    log_debug("{}: not kept: {}", file.string(), e.what());
  }
}

}  // namespace

Answer lower_in_child(const Tool& tool, const std::string& file, const std::vector<std::string>& arguments, const Read& read) {
  const Python& python = python_with_jax(tool);
  if (python.versions.empty()) return {nullptr, python.why_not};
  const fs::path kept = cached_file(tool, file, python.versions);
  if (auto calls = read_cached(tool, kept, python.versions, read)) return {std::move(calls), {}};
  const ProcessResult result = run_script(tool, python.path, arguments, std::chrono::seconds(300));
  if (result.exit_code != 0) return {nullptr, fmt::format("{} made no kernel ({})", python.versions, told(result))};
  try {
    Answer answer{parse(tool, result.output, python.versions, read), {}};
    write_cached(kept, result.output);
    return answer;
  } catch (const Error& e) {
    return {nullptr, fmt::format("{} made a kernel that does not fit ({})", python.versions, e.what())};
  }
}

}  // namespace flambeau::kernels
