// Where training text comes from: files and folders, read whole as documents.
//
// A document is a name and bytes. The bytes need not be UTF-8, and nothing in them is trusted: sizes are bounded, and files that
// are not regular (pipes, devices) are never opened. The order is that of the sources given, within a folder that of the
// names (bytewise), so that the same files give the same documents on every machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace flambeau::data {

struct Document {
  std::string name;  // path relative to the source folder; a file's own name for a source that is a file
  std::string text;
};

struct SourceOptions {
  // Which files of a folder count, by name: "*.py", "chapter?.txt". Empty: all. A source that is a file always counts.
  std::vector<std::string> patterns = {};
  int64_t max_file_bytes = int64_t{4} << 30;
  int64_t max_total_bytes = int64_t{16} << 30;
};

// Reads every source: a file, a folder (recursively; names that begin with a dot and folders behind links are passed over), or
// "stdlib:", the *.py files of this machine's Python standard library without installed packages. Empty files are passed
// over. IoError or InvalidArgument that names the path when something is missing, unreadable, too large, or a source is empty.
std::vector<Document> read_documents(const std::vector<std::string>& sources, const SourceOptions& options = {});

// The folder of this machine's Python standard library: what `python3` says, else the newest /usr/lib/python3.*.
std::filesystem::path python_stdlib();

}  // namespace flambeau::data
