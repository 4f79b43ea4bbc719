#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"

namespace flambeau::checkpoint {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr uint64_t kMaxHeader = 100 << 20;  // as the reference implementation limits it
constexpr size_t kBlock = 1 << 20;

struct DTypeName {
  const char* name;
  at::ScalarType dtype;
};
constexpr std::array kDTypes = {
    DTypeName{"F64", at::kDouble}, DTypeName{"F32", at::kFloat},       DTypeName{"F16", at::kHalf},
    DTypeName{"BF16", at::kBFloat16}, DTypeName{"I64", at::kLong},     DTypeName{"I32", at::kInt},
    DTypeName{"I16", at::kShort},  DTypeName{"I8", at::kChar},         DTypeName{"U8", at::kByte},
    DTypeName{"BOOL", at::kBool},  DTypeName{"F8_E4M3", at::kFloat8_e4m3fn}, DTypeName{"F8_E5M2", at::kFloat8_e5m2},
};

// An open file with whole reads and writes.
class File {
 public:
  File(const std::filesystem::path& path, int flags) : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail("open");
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const {
    struct stat status;
    if (::fstat(fd_, &status) != 0) fail("read");
    if (!S_ISREG(status.st_mode)) raise<InvalidArgument>("{}: expected a file, got something else; check the path", path_.string());
    return static_cast<uint64_t>(status.st_size);
  }
  void read_at(uint64_t offset, void* out, size_t count) const {
    for (auto* p = static_cast<char*>(out); count > 0;) {
      const ssize_t n = ::pread(fd_, p, std::min(count, size_t{1} << 30), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("read");
      if (n == 0) raise<InvalidArgument>("{}: expected {} more bytes at {}; the file was cut while it was read", path_.string(), count, offset);
      p += n, offset += static_cast<uint64_t>(n), count -= static_cast<size_t>(n);
    }
  }
  void write(const void* data, size_t count) {
    for (auto* p = static_cast<const char*>(data); count > 0;) {
      const ssize_t n = ::write(fd_, p, std::min(count, size_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write");
      p += n, count -= static_cast<size_t>(n);
    }
  }
  void sync() {
    if (::fsync(fd_) != 0) fail("write");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    raise<IoError>("{}: cannot {} the file: {}", path_.string(), what, std::strerror(errno));
  }
  std::filesystem::path path_;
  int fd_;
};

[[noreturn]] void damaged(const std::filesystem::path& path, std::string_view what) {
  raise<InvalidArgument>("{}: not a whole safetensors file: {}; use another copy of the file", path.string(), what);
}

// Parses with checks that a plain parse leaves out: no name twice, no deep nesting.
Json parse_header(const std::filesystem::path& path, const std::string& text) {
  std::vector<std::set<std::string>> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > 4) damaged(path, "the header is nested too deeply");
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second) {
      damaged(path, "the header has a name twice");
    }
    return true;
  };
  try {
    Json header = Json::parse(text, check);
    if (!header.is_object()) damaged(path, "the header is not an object");
    return header;
  } catch (const Json::exception&) {
    damaged(path, "the header is not JSON");
  }
}

std::optional<uint64_t> unsigned_value(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

TensorInfo parse_entry(const std::filesystem::path& path, const std::string& name, const Json& entry, uint64_t data_size) {
  const auto bad = [&](std::string_view what) { damaged(path, fmt::format("tensor \"{}\" {}", name, what)); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    bad("lacks dtype, shape or data_offsets");
  }
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) bad("has a malformed entry");
  const auto known = std::ranges::find(kDTypes, dtype.get<std::string>(), [](const DTypeName& d) { return std::string(d.name); });
  if (known == kDTypes.end()) bad("has a dtype that is not known here");

  TensorInfo info{.dtype = known->dtype, .shape = {}};
  uint64_t bytes = c10::elementSize(info.dtype);
  for (const Json& size : shape) {
    const std::optional<uint64_t> d = unsigned_value(size);
    // Without the second limit a shape like [0, 2^62, 2^62] would overflow where torch multiplies.
    if (!d || *d > uint64_t{1} << 40 || (*d != 0 && bytes > (uint64_t{1} << 62) / *d)) bad("has an impossible shape");
    bytes *= *d;
    info.shape.push_back(static_cast<int64_t>(*d));
  }
  if (shape.size() > 64) bad("has too many dimensions");
  const std::optional<uint64_t> begin = unsigned_value(offsets[0]), end = unsigned_value(offsets[1]);
  if (!begin || !end || *begin > *end || *end > data_size) bad("lies outside of the file");
  if (*end - *begin != bytes) bad("has a size that does not fit its shape");
  info.begin = *begin;
  info.end = *end;
  return info;
}

void check_layout(const std::filesystem::path& path, const std::map<std::string, TensorInfo>& tensors, uint64_t data_size) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, info] : tensors) ranges.emplace_back(info.begin, info.end);
  std::ranges::sort(ranges);
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) damaged(path, begin < at ? "tensors overlap" : "there is a gap between tensors");
    at = end;
  }
  if (at != data_size) damaged(path, fmt::format("expected {} bytes of tensors, got {}", at, data_size));
}

std::string make_header(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto known = std::ranges::find(kDTypes, tensor.scalar_type(), &DTypeName::dtype);
    if (known == kDTypes.end()) raise<InvalidArgument>("[safetensors] {} has a dtype that the format does not know; convert it", name);
    FLAMBEAU_CHECK(!header.contains(name), "tensors of a file have different names");
    const uint64_t end = offset + static_cast<uint64_t>(tensor.numel()) * c10::elementSize(tensor.scalar_type());
    header[name] = {{"dtype", known->name}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // tensors begin at a multiple of 8 bytes
  return text;
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::filesystem::path path) : path_(std::move(path)) {
  const File file(path_, O_RDONLY);
  const uint64_t size = file.size();
  uint64_t header_size = 0;
  if (size < sizeof header_size) damaged(path_, fmt::format("it has {} bytes", size));
  file.read_at(0, &header_size, sizeof header_size);
  if (header_size > kMaxHeader || header_size > size - 8) damaged(path_, fmt::format("its header claims {} bytes", header_size));
  std::string text(header_size, '\0');
  file.read_at(8, text.data(), text.size());

  head_.assign(reinterpret_cast<const char*>(&header_size), sizeof header_size);
  head_ += text;
  const Json header = parse_header(path_, text);
  const uint64_t start = 8 + header_size, data_size = size - start;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) damaged(path_, "__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) damaged(path_, "__metadata__ holds something else than texts");
        metadata_[key] = value.get<std::string>();
      }
    } else {
      tensors_[name] = parse_entry(path_, name, entry, data_size);
    }
  }
  check_layout(path_, tensors_, data_size);
  for (auto& [name, info] : tensors_) info.begin += start, info.end += start;
}

at::Tensor SafetensorsReader::read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    raise<InvalidArgument>("{}: expected a tensor named {}, found none; use a checkpoint of the same model", path_.string(), name);
  }
  const TensorInfo& info = found->second;
  const at::Tensor tensor = at::empty(info.shape, at::TensorOptions(info.dtype));
  File(path_, O_RDONLY).read_at(info.begin, tensor.data_ptr(), info.end - info.begin);
  return tensor;
}

NamedTensors SafetensorsReader::read_all() const { return read_with_checksum().first; }

std::pair<NamedTensors, uint64_t> SafetensorsReader::read_with_checksum() const {
  NamedTensors out;
  for (const auto& [name, info] : tensors_) out.emplace_back(name, at::Tensor());
  std::ranges::sort(out, {}, [&](const auto& entry) { return tensors_.at(entry.first).begin; });
  const File file(path_, O_RDONLY);
  Checksum checksum;
  checksum.update(head_.data(), head_.size());
  for (auto& [name, tensor] : out) {  // there are no gaps between them
    const TensorInfo& info = tensors_.at(name);
    tensor = at::empty(info.shape, at::TensorOptions(info.dtype));
    auto* to = static_cast<char*>(tensor.data_ptr());
    for (uint64_t at = info.begin; at < info.end;) {  // hashed while it is in the cache
      const size_t count = std::min<uint64_t>(kBlock, info.end - at);
      file.read_at(at, to, count);
      checksum.update(to, count);
      at += count, to += count;
    }
  }
  return {std::move(out), checksum.digest()};
}

uint64_t write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                           const std::map<std::string, std::string>& metadata) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  Checksum checksum;
  const auto put = [&](const void* data, size_t count) {
    checksum.update(data, count);
    file.write(data, count);
  };
  const std::string header = make_header(tensors, metadata);
  const uint64_t header_size = header.size();
  put(&header_size, sizeof header_size);
  put(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.detach().cpu().contiguous();
    put(dense.data_ptr(), dense.nbytes());
  }
  file.sync();
  return checksum.digest();
}

uint64_t tensor_checksum(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  return hash_bytes(dense.data_ptr(), dense.nbytes());
}

}  // namespace flambeau::checkpoint
