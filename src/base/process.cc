#include "base/process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
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

}  // namespace

// ---- a child ----------------------------------------------------------------------------------------------------------------

Child::Child(const std::vector<std::string>& command, int standard_output, int standard_error, bool own_group) : name_(command.at(0)) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, standard_output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, standard_error, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (own_group) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // of the child's own number
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int failed = posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) raise<IoError>("cannot start {}: {}", name_, std::strerror(failed));
}

Child::~Child() {
  if (pid_ == 0) return;
  end();
  for (int status = 0; waitpid(pid_, &status, 0) < 0 && errno == EINTR;) {
  }
}

std::optional<int> Child::ended() {
  int status = 0;
  const pid_t which = waitpid(pid_, &status, WNOHANG);
  if (which == 0 || (which < 0 && errno == EINTR)) return std::nullopt;
  if (which < 0) raise<IoError>("cannot wait for {}: {}", name_, std::strerror(errno));
  pid_ = 0;
  return status;
}

void Child::end() { kill(pid_, SIGKILL); }

int64_t Child::memory() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  int64_t total = 0, resident = 0;
  return file >> total >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

// ---- from its beginning to its end ----------------------------------------------------------------------------------------

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

ProcessResult run_process(const std::vector<std::string>& command, std::chrono::seconds time_limit) {
  const Scratch output, error;
  Child child(command, output.fd(), error.fd(), /*own_group=*/false);
  const auto deadline = std::chrono::steady_clock::now() + time_limit;
  ProcessResult result;
  std::optional<int> status;
  for (auto pause = std::chrono::milliseconds(1); !(status = child.ended()); pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    if (!result.timed_out && std::chrono::steady_clock::now() >= deadline) {
      child.end();
      result.timed_out = true;
    }
    std::this_thread::sleep_for(pause);
  }
  result.exit_code = WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
  result.output = output.content();
  result.error = error.content();
  return result;
}

}  // namespace flambeau
