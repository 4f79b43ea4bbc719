// Running another program and reading what it writes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace flambeau {

struct ProcessResult {
  int exit_code = 0;       // of a program that ended by itself; 128 + signal of one that was ended
  bool timed_out = false;  // it was ended when the time was over
  std::string output, error;  // what it wrote
};

// Starts `command` (a path or a name of PATH, then arguments) without input, and waits. IoError when it cannot be started.
ProcessResult run_process(const std::vector<std::string>& command, std::chrono::seconds time_limit);

}  // namespace flambeau
