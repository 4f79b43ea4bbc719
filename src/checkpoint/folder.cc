#include "checkpoint/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"

namespace flambeau::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "train_state.json";
// Format 1 had the names of fused tensors (attention.qkv, feed_forward.w13, output), which train/state.cc reads too.
constexpr int64_t kFormat = 2;
constexpr int kMaxDepth = 8;  // of the state's JSON, which has 4; a deep file would exhaust the stack
constexpr std::string_view kTemporary = ".tmp-step-", kDeleted = ".deleted-step-";

std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename();
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc{} || stop != end || name != fmt::format("step-{}", step)) return std::nullopt;
  return step;
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

[[noreturn]] void damaged(const fs::path& path, std::string_view what) {
  raise<InvalidArgument>("{}: damaged checkpoint: {}; delete the folder {} to go on from an older step", path.string(), what,
                         path.parent_path().string());
}

Json read_state(const fs::path& path) {
  if (!fs::exists(path)) {
    raise<InvalidArgument>("{}: no such file, so {} is not a checkpoint; name a step-N folder, or delete it to go on from an "
                           "older step", path.string(), path.parent_path().string());
  }
  const std::string text = read_file(path, 1 << 26);
  try {
    const Json whole = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) damaged(path, "it is nested too deeply");
      return true;
    });
    const Json& state = whole.at("state");
    if (whole.at("xxh3").get<std::string>() != hex(hash_string(state.dump()))) damaged(path, "its checksum does not match");
    const int64_t format = state.at("format").get<int64_t>();
    if (format < 1 || format > kFormat) damaged(path, "it was written by another version");
    return state;
  } catch (const Json::exception&) {
    damaged(path, "it is not the JSON that was written");
  }
}

NamedTensors read_verified(const fs::path& folder, const char* name, const Json& files) {
  const fs::path path = folder / name;
  if (!fs::exists(path)) damaged(path, "the file is missing");
  const Json& entry = files.at(name);
  const uint64_t bytes = fs::file_size(path);
  if (bytes != entry.at("bytes").get<uint64_t>()) damaged(path, fmt::format("expected {} bytes, got {}", entry.at("bytes").dump(), bytes));
  const auto read = [&] {
    try {
      return SafetensorsReader(path).read_with_checksum();
    } catch (const InvalidArgument& e) {
      damaged(path, e.what());
    }
  };
  auto [tensors, checksum] = read();
  if (hex(checksum) != entry.at("xxh3").get<std::string>()) damaged(path, "its checksum does not match");
  return std::move(tensors);
}

}  // namespace

State load(const fs::path& step_folder) {
  if (!fs::is_directory(step_folder)) {
    raise<InvalidArgument>("{}: no such checkpoint; check the path", step_folder.string());
  }
  const Json state = read_state(step_folder / kState);
  try {
    return {.step = state.at("step").get<int64_t>(),
            .tokens_seen = state.at("tokens_seen").get<int64_t>(),
            .data_cursor = state.at("data_cursor").get<std::string>(),
            .model = state.at("model").get<std::string>(),
            .optimizer_kind = state.value("optimizer_kind", std::string()),
            .went_back_to = state.value("went_back_to", int64_t{-1}),
            .parameters = read_verified(step_folder, kModel, state.at("files")),
            .optimizer = read_verified(step_folder, kOptimizer, state.at("files"))};
  } catch (const Json::exception&) {
    damaged(step_folder / kState, "a field is missing or of another type");
  }
}

int64_t went_back_to(const fs::path& step_folder) {
  try {
    return read_state(step_folder / kState).value("went_back_to", int64_t{-1});
  } catch (const Json::exception&) {
    damaged(step_folder / kState, "a field is of another type");
  }
}

Folder::Folder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) raise<IoError>("{}: cannot create the folder: {}; choose another dump_folder", path_.string(), error.message());
  lock_ = ::open((path_ / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) raise<IoError>("{}: cannot write in the folder: {}; choose another dump_folder", path_.string(), std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    raise<InvalidArgument>("{}: another run uses this folder; wait for it or choose another dump_folder", path_.string());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kTemporary) || name.starts_with(kDeleted)) fs::remove_all(entry.path());
  }
}

Folder::~Folder() { ::close(lock_); }

fs::path Folder::step_path(int64_t step) const { return path_ / fmt::format("step-{}", step); }

std::vector<int64_t> Folder::steps() const {
  std::vector<int64_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (const std::optional<int64_t> step = step_of(entry.path()); step && entry.is_directory()) found.push_back(*step);
  }
  std::ranges::sort(found);
  return found;
}

void Folder::save(const State& state, int64_t keep) const {
  try {
    if (fs::exists(step_path(state.step))) return;
    write(state);
    remove_old(state.step, keep);
  } catch (const fs::filesystem_error& e) {
    raise<IoError>("{}: cannot save a checkpoint: {}; free space on the disk or choose another dump_folder", path_.string(),
                   e.code().message());
  }
}

std::vector<std::string> Folder::abandon_after(int64_t step) const {
  std::vector<std::string> names;
  for (const int64_t later : steps()) {
    if (later <= step) continue;
    const fs::path plain = path_ / fmt::format("abandoned-step-{}", later);
    fs::path aside = plain;
    for (int n = 2; fs::exists(aside); ++n) aside = fmt::format("{}.{}", plain.string(), n);
    std::error_code error;
    fs::rename(step_path(later), aside, error);
    if (error) {
      raise<IoError>("{}: cannot rename to {}: {}; make the folder writable", step_path(later).string(), aside.string(),
                     error.message());
    }
    names.push_back(aside.filename());
  }
  if (!names.empty()) sync_path(path_);
  return names;
}

void Folder::write(const State& state) const {
  const fs::path temporary = path_ / fmt::format("{}{}", kTemporary, state.step);
  fs::remove_all(temporary);
  fs::create_directory(temporary);

  Json files = Json::object();
  const auto put = [&](const char* name, const NamedTensors& tensors) {
    const uint64_t checksum = write_safetensors(temporary / name, tensors, {{"format", "pt"}});
    files[name] = {{"bytes", fs::file_size(temporary / name)}, {"xxh3", hex(checksum)}};
  };
  put(kModel, state.parameters);
  put(kOptimizer, state.optimizer);
  const Json fields = {{"format", kFormat},          {"step", state.step},   {"tokens_seen", state.tokens_seen},
                       {"data_cursor", state.data_cursor}, {"model", state.model}, {"optimizer_kind", state.optimizer_kind},
                       {"went_back_to", state.went_back_to}, {"files", files}};
  write_file_atomically(temporary / kState, Json{{"state", fields}, {"xxh3", hex(hash_string(fields.dump()))}}.dump(2) + "\n");
  sync_path(temporary);
  fs::rename(temporary, step_path(state.step));
  sync_path(path_);
}

void Folder::remove_old(int64_t written, int64_t keep) const {
  const std::vector<int64_t> all = steps();
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < all.size(); ++i) {
    if (all[i] == written) continue;
    const fs::path gone = path_ / fmt::format("{}{}", kDeleted, all[i]);
    fs::rename(step_path(all[i]), gone);
    fs::remove_all(gone);
  }
}

}  // namespace flambeau::checkpoint
