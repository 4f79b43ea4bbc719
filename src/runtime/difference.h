// How two recordings of one function differ.
#pragma once

#include <optional>
#include <string>

#include "runtime/trace.h"

namespace flambeau::runtime {

// Null when the recordings are the same program over the same storages; else what differs first, in words.
std::optional<std::string> difference(const Trace& first, const Trace& second);

}  // namespace flambeau::runtime
