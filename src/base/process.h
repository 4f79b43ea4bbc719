// Running another program and reading what it writes, and what this one was told by the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace flambeau {

// A program that runs beside this one, without input: it is waited for, or ended when this goes.
class Child {
 public:
  // `command`: a path or a name of PATH, then arguments. What it writes goes to the two files. In a process group of its own a
  // terminal's Ctrl-C does not reach it: the parent is to answer. IoError when it cannot be started.
  Child(const std::vector<std::string>& command, int standard_output, int standard_error, bool own_group);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::optional<int> ended();  // the status of `waitpid`; none while it runs
  void end();                  // kills it; ended() gives the status soon
  int64_t memory() const;      // bytes that it occupies; 0 where that is not told

 private:
  std::string name_;
  pid_t pid_ = 0;  // 0: it has been waited for
};

// The value of an environment variable; empty where it is not set.
std::string environment(const char* name);

struct ProcessResult {
  int exit_code = 0;       // of a program that ended by itself; 128 + signal of one that was ended
  bool timed_out = false;  // it was ended when the time was over
  std::string output, error;  // what it wrote
};

// Starts `command`, as Child does, and waits.
ProcessResult run_process(const std::vector<std::string>& command, std::chrono::seconds time_limit);

}  // namespace flambeau
