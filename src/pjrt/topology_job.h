// The files through which compile_apart and its child talk. Internal to src/pjrt.
//
// In a folder: `job` (JSON) and `program` from the parent; `result` (JSON) and `hlo` from the child, which writes `result`
// last; `stderr`; `dump`, where XLA writes its reports.
#pragma once

#include <filesystem>
#include <string>

#include "pjrt/topology_compiler.h"

namespace flambeau::pjrt {

void write_job(const std::filesystem::path& folder, const TopologyJob& job);
TopologyJob read_job(const std::filesystem::path& folder);

enum class JobEnd { Compiled, OutOfMemory, Invalid, Refused };

void write_result(const std::filesystem::path& folder, const TopologyResult& result);
void write_failure(const std::filesystem::path& folder, JobEnd end, const std::string& text);

// What the child wrote; raises what it met. PluginError where the file is not whole.
TopologyResult read_result(const std::filesystem::path& folder);

// What a compiler's "memory usage report" in `folder` says; none where there is no such report.
std::optional<MemoryUsage> read_memory_report(const std::filesystem::path& folder);

}  // namespace flambeau::pjrt
