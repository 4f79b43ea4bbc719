// Compiling with what a plugin knows of what is preferred. Internal to src/pjrt.
#pragma once

#include <string>
#include <utility>

#include "base/log.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {

// What `compile` gives of the serialized options; once more, without it, for each preference that the plugin does not know: plugins
// gain and lose options from version to version. They are looked at before anything is compiled, so this costs nothing.
template <class Compile>
auto with_known_options(CompileOptions options, Compile&& compile) {
  for (;;) {
    try {
      return compile(std::as_const(options).to_proto());
    } catch (const RefusedOption& refused) {
      if (options.overrides.contains(refused.option()) || options.preferences.erase(refused.option()) == 0) throw;
      log_debug("left out: {}", refused.what());
    }
  }
}

}  // namespace flambeau::pjrt
