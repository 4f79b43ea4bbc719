// The files through which compile_apart and its child talk. Internal to src/pjrt.
//
// In a folder: `job` (JSON) and `program` from the parent; `result` (JSON), `hlo`, `buffers` and `ranges` from the child,
// which writes `result` last; `stderr`; `dump`, where XLA writes its reports.
#pragma once

#include <filesystem>
#include <string>

#include "pjrt/topology_compiler.h"

namespace flambeau::pjrt {

void write_job(const std::filesystem::path& folder, const TopologyJob& job);
TopologyJob read_job(const std::filesystem::path& folder);

enum class JobEnd { Compiled, OutOfMemory, Invalid, Refused };

// `does_not_fit`: the compiler's text when that was the end; empty: the program is compiled.
void write_result(const std::filesystem::path& folder, const TopologyResult& result, const std::string& does_not_fit = {});
void write_failure(const std::filesystem::path& folder, JobEnd end, const std::string& text);

// What the child wrote, and `diagnostics` with it; raises what it met. PluginError where the file is not whole.
TopologyResult read_result(const std::filesystem::path& folder, std::string diagnostics);

// Fills in what XLA's files in `folder` say: the reports, and the module where `result` does not know it yet.
void read_dump(const std::filesystem::path& folder, TopologyResult& result);

}  // namespace flambeau::pjrt
