#include "pjrt/call.h"

#include "pjrt/pjrt.h"

namespace flambeau::pjrt {

thread_local int CallbackScope::depth_ = 0;

namespace {

std::string_view code_name(PJRT_Error_Code code) {
  constexpr std::string_view kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

constexpr std::string_view kQuote = "'", kWordEnds = ",: \n";

// What `text` has between `before` and any of the characters `ends`; empty where it has not.
std::string_view between(std::string_view text, std::string_view before, std::string_view ends) {
  const size_t found = text.find(before);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + before.size());
  return text.substr(0, text.find_first_of(ends));
}

// XLA's three ways to refuse an option, each as one line for whoever wrote it into the configuration.
void raise_refused_option(std::string_view where, const std::string& text) {
  if (const std::string option(between(text, "No such compile option: '", kQuote)); !option.empty()) {
    throw RefusedOption(fmt::format("[pjrt.{}] expected an option that the plugin knows, got {}; correct it in compile.options, or "
                                    "remove it", where, option), option);
  }
  const auto raise_for = [&](std::string_view option, std::string_view value) {
    if (option.empty() || value.empty()) return;
    throw RefusedOption(fmt::format("[pjrt.{}] expected a value that {} can take, got {}; correct it in compile.options", where, option,
                                    value), std::string(option));
  };
  raise_for(between(text, "' into flag ", kWordEnds), between(text, "Failed to parse '", kQuote));
  raise_for(between(text, "While setting option ", kWordEnds), between(text, ", '", kQuote));
}

}  // namespace

std::string take_error_text(const PJRT_Api* api, PJRT_Error* error) {
  if (error == nullptr) return {};
  std::string text = "UNKNOWN";
  if (offers<&PJRT_Api::PJRT_Error_GetCode>(api)) {
    PJRT_Error_GetCode_Args args{};
    args.struct_size = sizeof(args);
    args.error = error;
    if (PJRT_Error* nested = api->PJRT_Error_GetCode(&args)) {
      if (nested != error) take_error_text(api, nested);
    } else {
      text = code_name(args.code);
    }
  }
  // These two return nothing and are as old as the API: only a broken table lacks them.
  if (api->PJRT_Error_Message != nullptr) {
    PJRT_Error_Message_Args args{};
    args.struct_size = sizeof(args);
    args.error = error;
    api->PJRT_Error_Message(&args);
    text.append(": ").append(args.message, args.message_size);
  }
  if (api->PJRT_Error_Destroy != nullptr) {
    PJRT_Error_Destroy_Args args{};
    args.struct_size = sizeof(args);
    args.error = error;
    api->PJRT_Error_Destroy(&args);
  }
  return text;
}

void raise_error(const PJRT_Api* api, std::string_view where, PJRT_Error* error) {
  const std::string text = take_error_text(api, error);
  if (text.starts_with("RESOURCE_EXHAUSTED")) raise<OutOfMemory>("[pjrt.{}] {}", where, text);
  raise_refused_option(where, text);
  raise<PluginError>("[pjrt.{}] {}", where, text);
}

void raise_missing(const PJRT_Api* api, std::string_view where) {
  raise<PluginError>("[pjrt.{}] the plugin (PJRT {}.{}) does not offer this call; use a newer plugin", where,
                     api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version);
}

}  // namespace flambeau::pjrt
