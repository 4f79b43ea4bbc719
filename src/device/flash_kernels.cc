#include "device/flash_kernels.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "flambeau_tpu_attention.h"
#include "ops/flash_attention.h"
#include "pjrt/pjrt.h"

namespace flambeau::device {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLanes = 128, kLongestBlock = 512;
constexpr size_t kLargestFile = size_t{64} << 20;

fs::path cache_folder() {
  if (const auto given = environment("FLAMBEAU_CACHE"); !given.empty()) return fs::path(given) / "tpu_attention";
  if (const auto given = environment("XDG_CACHE_HOME"); !given.empty()) return fs::path(given) / "flambeau" / "tpu_attention";
  const auto home = environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "flambeau" / "tpu_attention";
}

// One line of what a child said.
std::string told(const ProcessResult& result) {
  if (result.timed_out) return "it took too long";
  std::string text = result.error.substr(0, result.error.find_last_not_of("\n ") + 1);
  text = text.substr(text.rfind('\n') + 1).substr(0, 300);
  return text.empty() ? fmt::format("exit code {}", result.exit_code) : text;
}

ProcessResult run_helper(const fs::path& python, std::vector<std::string> arguments, std::chrono::seconds limit) {
  std::vector<std::string> command{python.string(), "-c", kTpuAttentionScript};
  command.insert(command.end(), std::make_move_iterator(arguments.begin()), std::make_move_iterator(arguments.end()));
  try {
    return run_process(command, limit);
  } catch (const IoError& e) {  // no such Python
    return {.exit_code = 127, .timed_out = false, .output = {}, .error = e.what()};
  }
}

// The Python that has JAX, and the versions that kernels depend on; none: `why` says why.
struct Helper {
  fs::path python;
  std::string versions, why;
};

const Helper& helper() {
  static const Helper instance = [] {
    Helper h;
    h.python = pjrt::find_python();
    if (h.python.empty()) {
      h.why = "there is no Python environment near; set FLAMBEAU_PYTHON to an interpreter that has JAX";
      return h;
    }
    const ProcessResult result = run_helper(h.python, {"--versions"}, std::chrono::seconds(60));
    if (result.exit_code == 0) h.versions = result.output.substr(0, result.output.find('\n'));
    else h.why = fmt::format("{} has no JAX ({}); install jax and jaxlib there, or set FLAMBEAU_PYTHON", h.python.string(), told(result));
    return h;
  }();
  return instance;
}

// Lengths of blocks, chosen where they are not given; `why` where none fit.
std::optional<AttentionBlocks> choose_blocks(const FlashShape& shape, std::string& why) {
  if (shape.length % kLanes != 0 || shape.head_dim % kLanes != 0) {
    why = fmt::format("a kernel wants rows and heads of multiples of {}, and these are {} tokens and {} wide", kLanes, shape.length,
                      shape.head_dim);
    return std::nullopt;
  }
  const auto choose = [&](int64_t given) {
    if (given != 0) return given;
    int64_t block = kLongestBlock;
    while (shape.length % block != 0) block /= 2;
    return block;
  };
  const AttentionBlocks blocks{choose(shape.blocks.q), choose(shape.blocks.kv)};
  for (const int64_t block : {blocks.q, blocks.kv}) {
    if (block % kLanes == 0 && shape.length % block == 0) continue;
    why = fmt::format("a kernel wants blocks of multiples of {} that divide a row, and {} does not", kLanes, block);
    return std::nullopt;
  }
  return blocks;
}

std::vector<std::string> arguments_of(const FlashShape& s) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* name, auto value) {
    arguments.emplace_back(name);
    arguments.push_back(fmt::format("{}", value));
  };
  add("--batch", s.batch);
  add("--heads", s.heads);
  add("--kv-heads", s.kv_heads);
  add("--length", s.length);
  add("--head-dim", s.head_dim);
  add("--dtype", torch_name(s.dtype));
  add("--block-q", s.blocks.q);
  add("--block-kv", s.blocks.kv);
  if (s.documents) arguments.emplace_back("--documents");
  return arguments;
}

std::string file_name(const FlashShape& s, std::string versions) {
  std::ranges::replace_if(versions, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)) && c != '.'; }, '_');
  return fmt::format("b{}_h{}_kv{}_s{}_e{}_{}{}_q{}_kv{}_{}_{}.json", s.batch, s.heads, s.kv_heads, s.length, s.head_dim, torch_name(s.dtype),
                     s.documents ? "_documents" : "", s.blocks.q, s.blocks.kv, versions, kFlashKernelsFormat);
}

// Builds what the kernels would be used for, which checks every type.
void check(const FlashKernels& kernels, const FlashShape& s) {
  hlo::Graph graph;
  hlo::Builder b(graph);
  const auto tensor = [&](DType dtype, hlo::Dims dims) { return ops::Operand{graph.add_parameter({dtype, std::move(dims)})}; };
  const hlo::Dims heads{s.batch, s.heads, s.length, s.head_dim}, kv_heads{s.batch, s.kv_heads, s.length, s.head_dim};
  const ops::Operand q = tensor(s.dtype, heads), k = tensor(s.dtype, kv_heads), v = tensor(s.dtype, kv_heads);
  const ops::Argument documents =
      s.documents ? ops::Argument(tensor(DType::S32, {s.batch, s.length})) : ops::Argument(std::monostate{});
  const std::vector<ops::Argument> forward = {q, k, v, documents, kernels.forward};
  const auto out = ops::kFlashAttention.lower(b, forward, nullptr);
  const std::vector<ops::Argument> backward = {tensor(s.dtype, heads), q, k, v, documents, ops::Operand{out[0]},
                                               ops::Operand{out[1]}, kernels.dq, kernels.dkv};
  ops::kFlashAttentionBackward.lower(b, backward, nullptr);
}

// Of a text from outside, which nlohmann's dump() would follow to any depth. json::exception for what is no JSON.
json parse_shallow(const std::string& text) {
  static constexpr int kDeepest = 16;
  return json::parse(text, [](int depth, json::parse_event_t, const json&) {
    if (depth > kDeepest) raise<InvalidArgument>("[flash_attention] expected a text of at most {} levels, got more", kDeepest);
    return true;
  });
}

// InvalidArgument for a text that does not describe kernels of this shape.
FlashKernels parse(const std::string& text, const FlashShape& shape, const std::string& versions) try {
  const json content = parse_shallow(text);
  if (content.at("format") != kFlashKernelsFormat || content.at("versions") != versions)
    raise<InvalidArgument>("[flash_attention] expected kernels of format {} by {}", kFlashKernelsFormat, versions);
  FlashKernels kernels{content.at("forward").dump(), content.at("dq").dump(), content.at("dkv").dump()};
  check(kernels, shape);
  return kernels;
} catch (const json::exception& e) {
  raise<InvalidArgument>("[flash_attention] expected a description of kernels, got {}", e.what());
}

std::optional<FlashKernels> read_cached(const fs::path& file, const FlashShape& shape, const std::string& versions) {
  std::error_code error;
  if (file.empty() || !fs::is_regular_file(file, error)) return std::nullopt;
  try {
    return parse(read_file(file, kLargestFile), shape, versions);
  } catch (const Error& e) {
    log_debug("{}: made anew: {}", file.string(), e.what());
    return std::nullopt;
  }
}

void write_cached(const fs::path& file, const std::string& text) {
  if (file.empty()) return;
  try {
    fs::create_directories(file.parent_path());
    write_file_atomically(file, text);
  } catch (const std::exception& e) {  // a cache that cannot be written costs time only
    log_debug("{}: not kept: {}", file.string(), e.what());
  }
}

std::shared_ptr<const FlashKernels> find_or_make(FlashShape shape, std::string& why) {
  const std::optional<AttentionBlocks> blocks = choose_blocks(shape, why);
  if (!blocks) return nullptr;
  shape.blocks = *blocks;
  const Helper& h = helper();
  if (h.versions.empty()) {
    why = h.why;
    return nullptr;
  }
  const fs::path folder = cache_folder(), file = folder.empty() ? fs::path() : folder / file_name(shape, h.versions);
  if (auto cached = read_cached(file, shape, h.versions)) return std::make_shared<const FlashKernels>(std::move(*cached));
  const ProcessResult result = run_helper(h.python, arguments_of(shape), std::chrono::seconds(300));
  if (result.exit_code != 0) {
    why = fmt::format("{} made no kernel ({})", h.versions, told(result));
    return nullptr;
  }
  try {
    auto kernels = std::make_shared<const FlashKernels>(parse(result.output, shape, h.versions));
    write_cached(file, result.output);
    return kernels;
  } catch (const Error& e) {
    why = fmt::format("{} made a kernel that does not fit ({})", h.versions, e.what());
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<const FlashKernels> flash_kernels(const FlashShape& shape, std::string& why) {
  struct Answer {
    std::shared_ptr<const FlashKernels> kernels;
    std::string why;
  };
  static std::mutex mutex;
  static auto* answers = new std::map<std::string, Answer>;
  const std::lock_guard lock(mutex);
  auto [found, is_new] = answers->try_emplace(file_name(shape, ""));
  if (is_new) found->second.kernels = find_or_make(shape, found->second.why);
  why = found->second.why;
  return found->second.kernels;
}

}  // namespace flambeau::device
