// Files, with errors that name the path and the system's reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace flambeau {

// The whole file. IoError when it cannot be read or is larger than `limit` bytes.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 40);

// Writes to a temporary neighbour, syncs it and renames it: readers see the old content or the new, never a part.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Flushes a file's or folder's content to the disk (fsync).
void sync_path(const std::filesystem::path& path);

}  // namespace flambeau
