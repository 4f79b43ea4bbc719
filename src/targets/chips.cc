#include "targets/chips.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace flambeau::targets {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kGibi = double{1 << 30};
constexpr int64_t kMebi = int64_t{1} << 20;
constexpr double kGigabit = 1e9 / 8;

// From Google Cloud's documentation, cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, "System architecture" (the page about
// TPU7x has figures of v5p and v6e too), unless a line says otherwise.
//
// ICI: those pages give the sum of both directions of all links (v5e 400 GB/s, v6e 800, v5p and TPU7x 1,200); here stands
// what is sent, half of it. Older pages gave the half, in bits: 1,600 Gbit/s for v5e, 4,800 for v5p (and 3,584 for v6e, 12 %
// above what is given now). The 9,600 Gbit/s that are told of TPU7x are both directions.
//
// To the host's memory: "How To Scale Your Model", chapter 2 (jax-ml.github.io/scaling-book) gives 16 GB/s, and 32 for v6e; nothing is
// published for TPU7x, which stands with v6e's.
//
// device_memory: libtpu 0.0.52, attribute device_memory_bytes_limit; smaller slices have up to 0.01 % more. on_chip_memory: as
// was seen of its programs.
constexpr std::array<Chip, 5> kChips = {{
    {.generation = Generation::V4,
     .name = "v4",
     .other_names = {},
     .libtpu_name = "v4",
     .device_kind = "TPU v4",
     .devices = 1,
     .counted = 2,
     .peak = {.bf16_flops = 275 * kTera,
              .hbm_bytes = 32 * kGibi,
              .hbm_bandwidth = 1200 * kGiga,
              // All-reduce of a pod: 1.1 PB/s. The 2,400 Gbit/s that are told too would be 12 % more.
              .ici_bandwidth = 270 * kGiga,
              // "How To Scale Your Model", chapter 2 (jax-ml.github.io/scaling-book): 25 GB/s a host, of four chips.
              .dcn_bandwidth = 50 * kGigabit,
              .host_bandwidth = 16 * kGiga},
     .device_memory = 33'012'318'208,
     .on_chip_memory = 16 * kMebi,
     .links = 6,
     .dimensions = 3,
     .largest_slice = 4096,
     .most_chips = 0},
    {.generation = Generation::V5e,
     .name = "v5e",
     .other_names = {"v5litepod", "v5lite"},
     .libtpu_name = "v5e",
     .device_kind = "TPU v5 lite",
     .devices = 1,
     .counted = 1,
     .peak = {.bf16_flops = 197 * kTera,
              .hbm_bytes = 16 * kGibi,
              .hbm_bandwidth = 819 * kGiga,
              .ici_bandwidth = 200 * kGiga,
              .dcn_bandwidth = 25 * kGigabit,  // 6.4 Tbit/s for the 256 chips of a pod
              .host_bandwidth = 16 * kGiga},
     .device_memory = 16'909'205'504,
     .on_chip_memory = 128 * kMebi,
     .links = 4,
     .dimensions = 2,
     .largest_slice = 256,
     .most_chips = 0},
    {.generation = Generation::V5p,
     .name = "v5p",
     .other_names = {"v5"},
     .libtpu_name = "v5",
     .device_kind = "TPU v5",
     .devices = 1,
     .counted = 2,
     .peak = {.bf16_flops = 459 * kTera,
              .hbm_bytes = 95 * kGibi,
              .hbm_bandwidth = 2765 * kGiga,
              .ici_bandwidth = 600 * kGiga,
              .dcn_bandwidth = 50 * kGigabit,
              .host_bandwidth = 16 * kGiga},
     .device_memory = 102'783'516'672,
     .on_chip_memory = 16 * kMebi,
     .links = 6,
     .dimensions = 3,
     .largest_slice = 6144,  // of the 8,960 chips of a pod: "the largest job that can be scheduled"
     .most_chips = 18'432},
    {.generation = Generation::V6e,
     .name = "v6e",
     .other_names = {"trillium"},
     .libtpu_name = "v6e",
     .device_kind = "TPU v6 lite",
     .devices = 1,
     .counted = 1,
     .peak = {.bf16_flops = 918 * kTera,
              .hbm_bytes = 32 * kGibi,
              .hbm_bandwidth = 1638 * kGiga,
              .ici_bandwidth = 400 * kGiga,
              .dcn_bandwidth = 100 * kGigabit,
              .host_bandwidth = 32 * kGiga},
     .device_memory = 33'545'912'320,
     .on_chip_memory = 128 * kMebi,
     .links = 4,
     .dimensions = 2,
     .largest_slice = 256,
     .most_chips = 0},
    {.generation = Generation::V7x,
     .name = "tpu7x",
     .other_names = {"v7x", "7x", "tpu7", "ironwood"},
     .libtpu_name = "tpu7x",
     .device_kind = "TPU7x",
     .devices = 2,
     .counted = 2,
     .peak = {.bf16_flops = 2307 * kTera,
              .hbm_bytes = 192 * kGibi,
              .hbm_bandwidth = 7380 * kGiga,
              .ici_bandwidth = 600 * kGiga,
              .dcn_bandwidth = 100 * kGigabit,
              .host_bandwidth = 32 * kGiga},
     .device_memory = 101'715'017'728,
     .on_chip_memory = 64 * kMebi,
     .links = 6,
     .dimensions = 3,
     .largest_slice = 9216,
     .most_chips = 0},
}};

// The first row whose text is part of the name counts, so the more special ones come first.
struct Gpu {
  std::string_view part;
  double tflops;
};
constexpr std::array kGpus = {
    Gpu{"A100", 312},    Gpu{"H100 NVL", 835}, Gpu{"H100 PCIe", 756}, Gpu{"H100", 989},    Gpu{"H200", 989},
    Gpu{"H20", 148},     Gpu{"GB200", 2500},   Gpu{"GB300", 2500},    Gpu{"B200", 2250},   Gpu{"B300", 2250},
    Gpu{"MI250X", 191.5}, Gpu{"MI300X", 1300},  Gpu{"MI325X", 1300},   Gpu{"MI355X", 2500},
};

}  // namespace

Peak Chip::device_peak() const {
  const auto parts = static_cast<double>(devices);
  return {.bf16_flops = peak.bf16_flops / parts,
          .hbm_bytes = peak.hbm_bytes / parts,
          .hbm_bandwidth = peak.hbm_bandwidth / parts,
          .ici_bandwidth = peak.ici_bandwidth / parts,
          .dcn_bandwidth = peak.dcn_bandwidth / parts,
          .host_bandwidth = peak.host_bandwidth / parts};
}

double Chip::link_bandwidth() const { return peak.ici_bandwidth / static_cast<double>(links); }

std::span<const Chip> chips() { return kChips; }

const Chip& chip_of(Generation generation) {
  for (const Chip& chip : kChips) {
    if (chip.generation == generation) return chip;
  }
  FLAMBEAU_CHECK(false, "every generation has a row in the table of chips");
}

const Chip* chip_named(std::string_view name) {
  if (name.empty()) return nullptr;
  for (const Chip& chip : kChips)
    if (name == chip.name || std::ranges::find(chip.other_names, name) != chip.other_names.end()) return &chip;
  return nullptr;
}

const Chip* chip_of_kind(std::string_view device_kind) {
  // Some plugins say "TPU v5 lite", others "TPU v5e"; of v5p, "TPU v5", which begins others' names.
  for (const Chip& chip : kChips)
    if (device_kind == chip.device_kind || (device_kind.starts_with("TPU ") && device_kind.substr(4) == chip.name)) return &chip;
  return nullptr;
}

std::optional<double> peak_flops(std::string_view device_kind) {
  if (const Chip* chip = chip_of_kind(device_kind)) return chip->device_peak().bf16_flops;
  const auto found = std::ranges::find_if(kGpus, [&](const Gpu& gpu) { return device_kind.find(gpu.part) != std::string_view::npos; });
  return found == kGpus.end() ? std::nullopt : std::optional<double>(found->tflops * kTera);
}

}  // namespace flambeau::targets
