#include "base/log.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include <unistd.h>

namespace flambeau {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("FLAMBEAU_LOG");
  std::string_view name = text ? text : "info";
  if (name == "debug") return LogLevel::Debug;
  if (name == "warning") return LogLevel::Warning;
  if (name == "error") return LogLevel::Error;
  return LogLevel::Info;
}

std::atomic<LogLevel>& least_level() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

struct Terminal {
  std::mutex mutex;
  std::string status;
};

Terminal& terminal() {
  static auto* t = new Terminal;  // never destroyed: threads may log while the process ends
  return *t;
}

constexpr std::string_view kWipe = "\r\033[K";

}  // namespace

void set_log_level(LogLevel level) { least_level() = level; }
bool log_enabled(LogLevel level) { return level >= least_level().load(std::memory_order_relaxed); }

bool wants_colour(int file_descriptor) {
  return isatty(file_descriptor) && !std::getenv("NO_COLOR") && std::string_view(std::getenv("TERM") ?: "") != "dumb";
}

void log_line(LogLevel level, std::string_view text) {
  static const bool colour = wants_colour(2);
  std::string line;
  if (level == LogLevel::Warning) line = colour ? "\033[33mwarning:\033[0m " : "warning: ";
  if (level == LogLevel::Error) line = colour ? "\033[31merror:\033[0m " : "error: ";
  line += text;
  Terminal& t = terminal();
  std::lock_guard lock(t.mutex);
  if (t.status.empty())
    fmt::print(stderr, "{}\n", line);
  else
    fmt::print(stderr, "{}{}\n{}", kWipe, line, t.status);
  std::fflush(stderr);
}

void set_status_line(std::string_view text) {
  static const bool shown = isatty(2) && std::string_view(std::getenv("TERM") ?: "") != "dumb";
  if (!shown) return;
  Terminal& t = terminal();
  std::lock_guard lock(t.mutex);
  t.status = text;
  fmt::print(stderr, "{}{}", kWipe, t.status);
  std::fflush(stderr);
}

}  // namespace flambeau
