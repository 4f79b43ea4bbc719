#include "data/source.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"

namespace flambeau::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStdlib = "stdlib:";

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

// Appends the paths of the regular files in `folder`, and in those below it, whose names match.
void list_files(const fs::path& folder, const std::vector<std::string>& patterns, const std::vector<std::string>& skipped_folders,
                std::vector<fs::path>& files) {
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure)) {
    std::string name = entry->path().filename().string();
    std::error_code gone;  // a link to nothing, or removed meanwhile: not a regular file
    if (name.starts_with('.')) continue;
    if (entry->is_directory(gone)) {
      bool skipped = std::count(skipped_folders.begin(), skipped_folders.end(), name) > 0;
      if (!skipped && !entry->is_symlink(gone)) list_files(entry->path(), patterns, skipped_folders, files);
    } else if (entry->is_regular_file(gone) && matches(name, patterns)) {
      files.push_back(entry->path());
    }
  }
  if (failure) raise<IoError>("[data] cannot list '{}': {}", folder.string(), failure.message());
}

class Reader {
 public:
  explicit Reader(const SourceOptions& options) : options_(options) {}

  void read(const fs::path& path, std::string name) {
    std::error_code failure;
    auto size = fs::file_size(path, failure);
    if (failure) raise<IoError>("[data] cannot read '{}': {}", path.string(), failure.message());
    if (size > static_cast<uint64_t>(options_.max_file_bytes)) {
      raise<InvalidArgument>("[data] expected files of at most {} bytes, got {} in '{}'; split it, or raise the limit",
                             options_.max_file_bytes, size, path.string());
    }
    std::string text = read_file(path, static_cast<size_t>(options_.max_file_bytes));
    if (text.empty()) return;
    total_ += static_cast<int64_t>(text.size());
    if (total_ > options_.max_total_bytes) {
      raise<InvalidArgument>("[data] expected at most {} bytes of text, got more at '{}'; use fewer files, or raise the limit",
                             options_.max_total_bytes, path.string());
    }
    documents_.push_back({std::move(name), std::move(text)});
  }

  void read_folder(const fs::path& root, const std::vector<std::string>& patterns, const std::vector<std::string>& skipped = {}) {
    size_t before = documents_.size();
    std::vector<fs::path> files;
    list_files(root, patterns, skipped, files);
    std::vector<std::pair<std::string, fs::path>> named;
    for (fs::path& file : files) named.emplace_back(file.lexically_relative(root).generic_string(), std::move(file));
    std::sort(named.begin(), named.end());
    for (auto& [name, file] : named) read(file, std::move(name));
    if (documents_.size() == before) {
      raise<InvalidArgument>(
          "[data] expected text under '{}', got no file with content that matches {}; check the folder and the patterns",
          root.string(), patterns.empty() ? "*" : fmt::format("{}", fmt::join(patterns, ", ")));
    }
  }

  void read_source(const std::string& source) {
    if (source == kStdlib) return read_folder(python_stdlib(), {"*.py"}, {"site-packages", "dist-packages"});
    fs::path path(source);
    std::error_code failure;
    fs::file_status status = fs::status(path, failure);
    if (fs::is_directory(status)) return read_folder(path, options_.patterns);
    if (!fs::is_regular_file(status)) {
      raise<IoError>("[data] expected a text file, a folder or '{}', got '{}': {}", kStdlib, source,
                     failure ? failure.message() : "neither a regular file nor a folder");
    }
    size_t before = documents_.size();
    read(path, path.filename().string());
    if (documents_.size() == before) raise<InvalidArgument>("[data] expected text in '{}', got an empty file", source);
  }

  std::vector<Document> take() { return std::move(documents_); }

 private:
  const SourceOptions& options_;
  std::vector<Document> documents_;
  int64_t total_ = 0;
};

// What a command prints on its first line; empty when it fails.
std::string first_line_of(const char* command) {
  FILE* pipe = popen(command, "r");
  if (!pipe) return {};
  std::string line;
  std::array<char, 4096> buffer;
  if (std::fgets(buffer.data(), buffer.size(), pipe)) line = buffer.data();
  pclose(pipe);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

bool is_stdlib(const fs::path& folder) {
  std::error_code ignored;
  return !folder.empty() && fs::is_regular_file(folder / "os.py", ignored);
}

}  // namespace

std::filesystem::path python_stdlib() {
  fs::path answer = first_line_of("python3 -c 'import sysconfig; print(sysconfig.get_paths()[\"stdlib\"])' 2>/dev/null");
  if (is_stdlib(answer)) return answer;
  fs::path newest;
  int newest_minor = -1;
  std::error_code failure;
  for (fs::directory_iterator entry("/usr/lib", failure), end; !failure && entry != end; entry.increment(failure)) {
    int minor = 0, read = 0;
    std::string name = entry->path().filename().string();
    bool named = std::sscanf(name.c_str(), "python3.%d%n", &minor, &read) == 1 && static_cast<size_t>(read) == name.size();
    if (named && minor > newest_minor && is_stdlib(entry->path())) {
      newest = entry->path();
      newest_minor = minor;
    }
  }
  if (newest.empty()) {
    raise<IoError>(
        "[data] expected a Python standard library for '{}', got none from python3 nor under '/usr/lib'; install Python, or "
        "name a folder of text instead",
        kStdlib);
  }
  return newest;
}

std::vector<Document> read_documents(const std::vector<std::string>& sources, const SourceOptions& options) {
  if (sources.empty()) {
    raise<InvalidArgument>("[data] expected at least one source, got none; name a file, a folder or '{}'", kStdlib);
  }
  Reader reader(options);
  for (const std::string& source : sources) reader.read_source(source);
  return reader.take();
}

}  // namespace flambeau::data
