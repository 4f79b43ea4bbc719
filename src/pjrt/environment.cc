#include "pjrt/environment.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace flambeau::pjrt {
namespace {

// A collective of virtual CPU devices waits for all its threads. On a busy machine that may take long, and the
// default is to abort the process after 40 seconds: warn after two minutes, give up after a day.
constexpr XlaFlag kFlags[] = {
    {"xla_cpu_collective_call_warn_stuck_timeout_seconds", "120"},
    {"xla_cpu_collective_call_terminate_timeout_seconds", "86400"},
};

struct Search {
  const void* base = nullptr;  // of the library
  std::string_view needle;
  bool found = false;
};

int search_segments(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (reinterpret_cast<const void*>(info->dlpi_addr) != search.base) return 0;
  for (int i = 0; i < info->dlpi_phnum && !search.found; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    // String literals are in the segment that is neither executable nor writable.
    if (segment.p_type != PT_LOAD || (segment.p_flags & (PF_R | PF_W | PF_X)) != PF_R) continue;
    const auto* start = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    search.found = memmem(start, segment.p_filesz, search.needle.data(), search.needle.size()) != nullptr;
  }
  return 1;
}

// Whether the library that `api` is in has the C string `text`: names of flags are kept as such.
bool library_has_string(const PJRT_Api* api, std::string_view text) {
  Dl_info where{};
  if (dladdr(api, &where) == 0) return false;
  std::string needle;
  needle.append(1, '\0').append(text).append(1, '\0');
  Search search{where.dli_fbase, needle, false};
  dl_iterate_phdr(search_segments, &search);
  return search.found;
}

}  // namespace

void prepare_to_load() { setenv("TF_CPP_MIN_LOG_LEVEL", "1", /*overwrite=*/0); }

std::string merge_flags(std::string current, const std::vector<std::pair<XlaFlag, bool>>& known, std::string& ours) {
  const size_t start = current.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && current[start] != '-') return current;  // the name of a file with the flags
  if (!ours.empty()) {
    if (const size_t at = current.find(ours); at != std::string::npos) current.erase(at, ours.size());
    ours.clear();
  }
  for (const auto& [flag, is_known] : known) {
    if (is_known && current.find(flag.name) == std::string::npos) {
      ours.append(" --").append(flag.name).append("=").append(flag.value);
    }
  }
  return current + ours;
}

void prepare_flags(const PJRT_Api* api) {
  static std::string ours;  // guarded by the lock under which plugins are loaded
  std::vector<std::pair<XlaFlag, bool>> known;
  for (const XlaFlag& flag : kFlags) known.emplace_back(flag, library_has_string(api, flag.name));
  const char* current = std::getenv("XLA_FLAGS");
  const std::string merged = merge_flags(current == nullptr ? "" : current, known, ours);
  if (merged.empty()) {
    unsetenv("XLA_FLAGS");
  } else {
    setenv("XLA_FLAGS", merged.c_str(), /*overwrite=*/1);
  }
}

}  // namespace flambeau::pjrt
