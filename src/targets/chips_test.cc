// The table of chips against the totals that the same pages give, and the names that plugins and users have for them.
#include "targets/chips.h"

#include <gmock/gmock.h>

namespace flambeau::targets {
namespace {

// What the pages give of whole pods and hosts agrees with the table.
TEST(Chips, AgreeWithPublishedTotals) {
  const auto near = [](double want) { return testing::DoubleNear(want, 0.02 * want); };
  const Chip &v4 = chip_of(Generation::V4), &v5e = chip_of(Generation::V5e), &v6e = chip_of(Generation::V6e);
  EXPECT_THAT(4096 * v4.peak.bf16_flops, near(1.126e18));     // 1.1 exaFLOP/s
  EXPECT_THAT(256 * v5e.peak.bf16_flops, near(50.63e15));
  EXPECT_THAT(256 * v5e.peak.dcn_bandwidth * 8, near(6.4e12));
  EXPECT_THAT(256 * v6e.peak.bf16_flops, near(234.9e15));
  EXPECT_THAT(4096 * v4.peak.ici_bandwidth, near(1.1e15));    // "all-reduce bandwidth per pod"
  EXPECT_THAT(256 * v5e.peak.ici_bandwidth, near(51.2e12));
  EXPECT_THAT(256 * v6e.peak.ici_bandwidth, near(102.4e12));
  // Of a 16 x 16 torus, cut in two across 16 rings, 32 links in each direction: "bisection bandwidth".
  EXPECT_THAT(32 * v5e.link_bandwidth(), near(1.6e12));
  EXPECT_THAT(32 * v6e.link_bandwidth(), near(3.2e12));
}

TEST(Chips, GiveDevicesTheirPart) {
  for (const Chip& chip : chips()) {
    SCOPED_TRACE(std::string(chip.name));
    EXPECT_EQ(&chip_of(chip.generation), &chip);
    const Peak device = chip.device_peak();
    EXPECT_EQ(device.bf16_flops * static_cast<double>(chip.devices), chip.peak.bf16_flops);
    EXPECT_EQ(chip.links, 2 * chip.dimensions);
    // libtpu's limit is a device's, the sheet's memory a chip's; sheets round (95 GiB of v5p are 96).
    EXPECT_GT(static_cast<double>(chip.device_memory), 0.95 * device.hbm_bytes);
    EXPECT_LT(static_cast<double>(chip.device_memory), 1.01 * device.hbm_bytes);
  }
  const Chip& v7x = chip_of(Generation::V7x);
  EXPECT_EQ(v7x.devices, 2);
  EXPECT_EQ(v7x.device_peak().bf16_flops, 1153.5e12);
  EXPECT_EQ(v7x.device_peak().hbm_bytes, 96.0 * (1 << 30));
}

TEST(Chips, HavePeaksByTheDevicesName) {
  EXPECT_EQ(peak_flops("TPU v5 lite"), 197e12);
  EXPECT_EQ(peak_flops("TPU v5"), 459e12);
  EXPECT_EQ(peak_flops("TPU v5p"), 459e12);
  EXPECT_EQ(peak_flops("TPU v6e"), 918e12);
  EXPECT_EQ(peak_flops("TPU7x"), 1153.5e12);  // of a device, which is half a chip
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_flops("cpu"), std::nullopt);
}

TEST(Chips, HaveNames) {
  for (const char* name : {"v5litepod", "trillium", "ironwood", "v4", "v5"}) EXPECT_NE(chip_named(name), nullptr) << name;
  for (const char* name : {"", "v3", "TPU v4"}) EXPECT_EQ(chip_named(name), nullptr) << name;
}

}  // namespace
}  // namespace flambeau::targets
