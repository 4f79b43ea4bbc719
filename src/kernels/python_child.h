// Kernels that a child process lowers: a Python that has JAX runs a script of python/flambeau, which is built into this program, and a
// cache of the user keeps what it prints.
//
// The cache: $FLAMBEAU_CACHE (or $XDG_CACHE_HOME/flambeau, ~/.cache/flambeau) / TOOL / *.json. A file's name holds all that a kernel depends
// on, the versions of JAX too. Files appear whole. What is read is checked as what comes from outside: a file that does not describe the
// kernel that is asked for is made anew.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/registry.h"

namespace flambeau::kernels {

// A script. It prints, for --versions, what its kernels depend on, and else JSON with the keys "format", "versions" and those of its own.
struct Tool {
  const char* name;  // "tpu_attention"
  const char* script;
  int format;        // of what it prints
};

// `file`: the part of a file's name that says which kernel. `read` makes calls of what the script has printed; InvalidArgument or
// nlohmann's exceptions for what describes no such kernel.
Answer lower_in_child(const Tool& tool, const std::string& file, const std::vector<std::string>& arguments,
                      const std::function<Calls(const nlohmann::json&)>& read);

}  // namespace flambeau::kernels
