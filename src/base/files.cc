#include "base/files.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace flambeau {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(std::string_view what, const fs::path& path) {
  raise<IoError>("{} {}: {}", what, path.string(), std::strerror(errno));
}

class File {
 public:
  File(const fs::path& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string read_file(const fs::path& path, size_t limit) {
  File file(path, O_RDONLY);
  if (file.get() < 0) fail("cannot open", path);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) fail("cannot stat", path);
  if (S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    fail("cannot read", path);
  }
  std::string content;
  content.reserve(static_cast<size_t>(info.st_size));
  char block[1 << 16];
  while (true) {
    ssize_t n = read(file.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read", path);
    if (n == 0) return content;
    content.append(block, static_cast<size_t>(n));
    if (content.size() > limit) raise<IoError>("cannot read {}: it is larger than {} bytes", path.string(), limit);
  }
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  fs::path temporary = path;
  temporary += ".tmp" + std::to_string(getpid());
  {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.get() < 0) fail("cannot create", temporary);
    while (!content.empty()) {
      ssize_t n = write(file.get(), content.data(), content.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        int reason = errno;
        unlink(temporary.c_str());
        errno = reason;
        fail("cannot write", temporary);
      }
      content.remove_prefix(static_cast<size_t>(n));
    }
    if (fsync(file.get()) != 0) fail("cannot sync", temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) fail("cannot rename to", path);
}

void sync_path(const fs::path& path) {
  File file(path, O_RDONLY);
  if (file.get() < 0) fail("cannot open", path);
  if (fsync(file.get()) != 0) fail("cannot sync", path);
}

}  // namespace flambeau
