#include "train/metrics.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "runtime/engine.h"
#include "targets/chips.h"

namespace flambeau::train {

DeviceFacts device_facts(at::Device device, double peak_override) {
  DeviceFacts facts;
  if (device.is_cpu()) {
    facts.name = "cpu (PyTorch eager)";
  } else {
    const pjrt::Client& client = runtime::Engine::get().client();
    facts.name = fmt::format("{} through {}", client.addressable_devices().at(0).kind,
                             client.plugin().path().filename().string());
    if (const auto peak = targets::peak_flops(client.addressable_devices().at(0).kind)) facts.peak_tflops = *peak / 1e12;
  }
  if (peak_override > 0) facts.peak_tflops = peak_override;
  return facts;
}

int64_t peak_memory_bytes(at::Device device) {
  if (!device.is_cpu()) return runtime::memory_use().peak;
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

std::string with_commas(int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string duration(double seconds) {
  const int64_t s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}h {:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string console_line(const StepMetrics& m) {
  return fmt::format("step: {:2}  loss: {:8.5f}  {}grad_norm: {:7.4f}  memory: {:5.2f}GiB  tps: {}  tflops: {:.2f}  mfu: {}", m.step,
                     m.loss, m.z_loss ? fmt::format("z_loss: {:8.5f}  ", *m.z_loss) : "", m.grad_norm, m.memory_gib, with_commas(std::llround(m.tps)), m.tflops,
                     m.mfu ? fmt::format("{:.2f}% (causal {:.2f}%)", *m.mfu, m.mfu_causal.value()) : "peak unknown");
}

namespace {

// Rewrites the file with its lines up to `last_step`.
void keep_lines(const std::filesystem::path& path, int64_t last_step) {
  std::string kept;
  const std::string old = last_step > 0 ? read_file(path) : "";
  for (size_t at = 0, end; (end = old.find('\n', at)) != std::string::npos; at = end + 1) {
    const auto line = nlohmann::json::parse(old.begin() + static_cast<std::ptrdiff_t>(at),
                                            old.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    const bool ours = line.is_object() && line.contains("step") && line["step"].is_number_integer();
    if (ours && line["step"].get<int64_t>() <= last_step) kept += old.substr(at, end + 1 - at);
  }
  write_file_atomically(path, kept);
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t continued_step) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // writing says what is wrong
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), ignored);
  // What is no file (a pipe, /dev/null) is only appended to. Where a link leads to a file, that file is rewritten, not the link.
  const bool regular = fs::is_regular_file(path, ignored);
  const bool absent = fs::symlink_status(path, ignored).type() == fs::file_type::not_found;
  try {
    if (regular) keep_lines(fs::canonical(path), continued_step);
    else if (absent) write_file_atomically(path, "");
  } catch (const std::exception& e) {
    raise<IoError>("metrics.jsonl: cannot write {}: {}; choose another file", path.string(), e.what());
  }
  out_.open(path, std::ios::app);
  if (!out_) raise<IoError>("metrics.jsonl: cannot write {}; choose another file", path.string());
}

void MetricsFile::write(const StepMetrics& m) {
  const auto or_null = [](const std::optional<double>& value) { return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(); };
  nlohmann::ordered_json line = {
      {"step", m.step}, {"loss", m.loss},
      {"grad_norm", m.grad_norm}, {"lr", m.lr},
      {"tps", m.tps}, {"step_time_s", m.step_time_s},
      {"mfu", or_null(m.mfu)}, {"mfu_causal", or_null(m.mfu_causal)},
      {"memory_gib", m.memory_gib}, {"attention", m.attention},
  };
  if (m.z_loss) line["z_loss"] = *m.z_loss;
  out_ << line.dump() << "\n" << std::flush;
  if (!out_) raise<IoError>("metrics.jsonl: cannot write {}; free space on the disk or choose another file", path_.string());
}

}  // namespace flambeau::train
