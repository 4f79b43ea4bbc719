// The safetensors file format: tensors with names, as Hugging Face reads and writes them.
//
// A file is the length of a JSON header (8 bytes, little endian), the header (name -> dtype, shape, data_offsets; and
// __metadata__), and the tensors' bytes, row-major and little endian, without gaps. Nothing in a file is trusted: sizes, offsets, overlaps,
// duplicate names and the header's form are checked before anything is allocated, so a damaged file is an error with its path and
// never a crash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the file
};

class SafetensorsReader {
 public:
  // Reads the header. IoError when the file cannot be read, InvalidArgument when it is not a whole safetensors file.
  explicit SafetensorsReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The tensor on the CPU, in its own dtype. InvalidArgument for an unknown name.
  at::Tensor read(const std::string& name) const;
  // All of them, in the file's order.
  NamedTensors read_all() const;
  // The same with the XXH3 checksum of the file's bytes, from one reading of them.
  std::pair<NamedTensors, uint64_t> read_with_checksum() const;

 private:
  std::filesystem::path path_;
  std::string head_;  // the bytes in front of the tensors
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes the tensors, copying them from their device one after another, and syncs the file. Returns the XXH3 checksum of its bytes.
uint64_t write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                           const std::map<std::string, std::string>& metadata = {});

// The XXH3 checksum of a tensor's bytes, row-major.
uint64_t tensor_checksum(const at::Tensor& tensor);

}  // namespace flambeau::checkpoint
