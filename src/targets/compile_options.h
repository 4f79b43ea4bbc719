// What a compiler is told beside the program: options of XLA, by name.
//
// Some are asked for by whoever configures a run ([compile] options); others are preferred for a generation of TPUs, since
// the compiler's own defaults there are not what training wants. What is asked for comes before what is preferred.
#pragma once

#include <span>
#include <string_view>

#include "pjrt/pjrt.h"
#include "targets/target.h"

namespace flambeau::targets {

// "xla_a=true,xla_b=3": names of XLA's options with true or false, an integer, a number or a text each. InvalidArgument for what
// has no such form, and for an option that stands twice.
pjrt::CompileFlags parse_compile_options(std::string_view text);

// A row of the table of preferences.
struct PreferredOption {
  std::string_view generation;  // Target::generation
  std::string_view name;
  pjrt::CompileFlags::mapped_type value;
  std::string_view reason;
};
std::span<const PreferredOption> preferred_options();
// Those for programs of `target`. Empty for what is no TPU.
pjrt::CompileFlags preferred_options(const Target& target);

}  // namespace flambeau::targets
