#include "base/process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

namespace flambeau {
namespace {

// A file without a name that goes away with its owner.
class Scratch {
 public:
  Scratch() : fd_(memfd_create("flambeau", MFD_CLOEXEC)) {
    if (fd_ < 0) raise<IoError>("cannot make a file in memory: {}", std::strerror(errno));
  }
  ~Scratch() { close(fd_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  int fd() const { return fd_; }
  std::string content() const {
    std::string text;
    char block[1 << 16];
    for (ssize_t n = 0; (n = pread(fd_, block, sizeof(block), static_cast<off_t>(text.size()))) > 0;) text.append(block, static_cast<size_t>(n));
    return text;
  }

 private:
  int fd_;
};

pid_t spawn(const std::vector<std::string>& command, const Scratch& output, const Scratch& error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output.fd(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.fd(), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) raise<IoError>("cannot start {}: {}", command[0], std::strerror(failed));
  return child;
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command, std::chrono::seconds time_limit) {
  FLAMBEAU_CHECK(!command.empty(), "a program is named");
  const Scratch output, error;
  const pid_t child = spawn(command, output, error);
  const auto deadline = std::chrono::steady_clock::now() + time_limit;
  ProcessResult result;
  int status = 0;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    const pid_t ended = waitpid(child, &status, result.timed_out ? 0 : WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) raise<IoError>("cannot wait for {}: {}", command[0], std::strerror(errno));
    if (!result.timed_out && std::chrono::steady_clock::now() >= deadline) {
      kill(child, SIGKILL);
      result.timed_out = true;
    } else {
      std::this_thread::sleep_for(pause);
    }
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.output = output.content();
  result.error = error.content();
  return result;
}

}  // namespace flambeau
