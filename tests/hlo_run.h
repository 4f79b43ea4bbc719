// Running a program of hlo on a plugin's client.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hlo_cases.h"
#include "pjrt/pjrt.h"

namespace flambeau::tests {

// The library of a plugin ("cpu", "xla-cpu", "tpu"), where it is installed.
std::optional<std::filesystem::path> installed(const std::string& plugin);

// The bytes of each result on each device, device-major. Every device gets the same inputs.
std::vector<std::vector<std::string>> execute(const pjrt::Client& client, const Program& program, const std::string& text,
                                              int partitions = 1);

}  // namespace flambeau::tests
