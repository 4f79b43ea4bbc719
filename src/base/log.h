// Messages for people, on standard error. Colour on a terminal (unless NO_COLOR is set), plain lines into a pipe.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace flambeau {

enum class LogLevel { Debug, Info, Warning, Error };

// The least level that is shown; Info unless FLAMBEAU_LOG=debug|info|warning|error says otherwise.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

// One line. While a status line is shown (log.h: set_status_line), it is wiped first and drawn again after.
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::Info)) log_line(LogLevel::Info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::Warning)) log_line(LogLevel::Warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::Debug)) log_line(LogLevel::Debug, fmt::format(format, std::forward<Args>(args)...));
}

// A line at the bottom of a terminal that is redrawn in place; does nothing where standard error is not a terminal.
// An empty text removes it.
void set_status_line(std::string_view text);

// Whether the stream (1 or 2) is a terminal that wants colour.
bool wants_colour(int file_descriptor);

}  // namespace flambeau
