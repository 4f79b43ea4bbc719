// How this folder calls a plugin. Internal to src/pjrt.
//
// Every entry point of the PJRT C API takes one argument struct whose first field is its size. `call` makes that struct
// zeroed and sized, checks that the plugin's table reaches as far as the entry point (tables grow with minor versions and
// may have holes), makes the call and turns a PJRT_Error into a PluginError:
//
//   auto args = call<&PJRT_Api::PJRT_Client_PlatformName>(api, "client", [&](auto& a) { a.client = client; });
//   use(args.platform_name, args.platform_name_size);
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace flambeau::pjrt {

namespace internal {
template <class Member>
struct EntryPoint;
template <class Arguments>
struct EntryPoint<PJRT_Error* (*PJRT_Api::*)(Arguments*)> {
  using Args = Arguments;
};
}  // namespace internal

template <auto Slot>
using ArgsOf = typename internal::EntryPoint<decltype(Slot)>::Args;

// Whether the plugin has the entry point.
template <auto Slot>
bool offers(const PJRT_Api* api) {
  const auto* slot = reinterpret_cast<const char*>(&(api->*Slot));
  const auto end = static_cast<size_t>(slot - reinterpret_cast<const char*>(api)) + sizeof(void*);
  return end <= api->struct_size && (api->*Slot) != nullptr;
}

// "CODE: the plugin's text" of an error that the caller owns, and frees it. Empty for null.
std::string take_error_text(const PJRT_Api* api, PJRT_Error* error);

// Raises PluginError, OutOfMemory or RefusedOption, "[pjrt.<where>] ..." for an error that the caller owns.
[[noreturn]] void raise_error(const PJRT_Api* api, std::string_view where, PJRT_Error* error);
[[noreturn]] void raise_missing(const PJRT_Api* api, std::string_view where);

// Fills a zeroed argument struct with `fill`, calls, and returns the struct with the plugin's outputs.
template <auto Slot, class Fill>
ArgsOf<Slot> call(const PJRT_Api* api, std::string_view where, Fill&& fill) {
  if (!offers<Slot>(api)) [[unlikely]]
    raise_missing(api, where);
  ArgsOf<Slot> args{};
  args.struct_size = sizeof(args);
  fill(args);
  if (PJRT_Error* error = (api->*Slot)(&args)) [[unlikely]]
    raise_error(api, where, error);
  return args;
}

// The plugin's extension of a type, where it has one whose struct reaches as far as `size`; else null.
template <class Extension>
const Extension* find_extension(const PJRT_Api* api, PJRT_Extension_Type type, size_t size) {
  for (PJRT_Extension_Base* extension = api->extension_start; extension != nullptr; extension = extension->next) {
    if (extension->type != type) continue;
    return extension->struct_size < size ? nullptr : reinterpret_cast<const Extension*>(extension);
  }
  return nullptr;
}

// Once the process has begun to exit, the plugin's own globals may be gone: what is dropped from then on is left to the
// operating system. True from the first exit handler on, and in a forked child; see plugin.cc.
bool process_is_exiting();

// For destructors: frees an object of the plugin, cannot fail, and does nothing while the process exits.
template <auto Slot, class Fill>
void release(const PJRT_Api* api, Fill&& fill) noexcept {
  if (process_is_exiting() || !offers<Slot>(api)) return;
  ArgsOf<Slot> args{};
  args.struct_size = sizeof(args);
  fill(args);
  if (PJRT_Error* error = (api->*Slot)(&args)) take_error_text(api, error);
}

// Marks that this thread runs a callback of the plugin's: a client must not be destroyed on it, because the plugin
// would wait there for its own thread (client.cc).
class CallbackScope {
 public:
  CallbackScope() { ++depth_; }
  ~CallbackScope() { --depth_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
  static bool active() { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

}  // namespace flambeau::pjrt
