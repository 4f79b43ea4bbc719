// What a run tells about itself: the console line, the JSON lines file, and the device's facts that MFU needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace flambeau::train {

struct DeviceFacts {
  std::string name;
  std::optional<double> peak_tflops;  // of dense bfloat16 products; unknown for devices not in the table
};
// `peak_override`, in TFLOPS, replaces the published figure when positive.
DeviceFacts device_facts(at::Device device, double peak_override);

// Most bytes in use so far: of the device's storages, or of the process on the CPU.
int64_t peak_memory_bytes(at::Device device);

struct StepMetrics {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::optional<double> z_loss;  // with a z-loss: its part, which `loss` does not count
  double tps = 0;          // tokens a second and device, since the last line
  double step_time_s = 0;  // mean since the last line
  double tflops = 0;       // models::TokenFlops, the standard figure
  std::optional<double> mfu, mfu_causal;  // percent, of the standard figure and of the causal one
  double memory_gib = 0;
  std::string attention;      // how it is computed, as nn::describe says it
};

// "step:  1  loss:  5.76832  grad_norm:  1.2345  memory:  0.51GiB  tps: 3,456  tflops: 0.12  mfu: peak unknown"
std::string console_line(const StepMetrics& metrics);

// One JSON object a line. A run that continues from step N keeps the lines up to N, so that the file reads as one run.
// Pipes and devices are only written to.
class MetricsFile {
 public:
  // IoError when the file cannot be written.
  MetricsFile(const std::filesystem::path& path, int64_t continued_step);
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

// "2m 05s", "3h 10m".
std::string duration(double seconds);
// "1,234,567".
std::string with_commas(int64_t value);

}  // namespace flambeau::train
