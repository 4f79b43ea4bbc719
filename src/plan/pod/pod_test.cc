// Names of pods: what they mean, which are refused and how, and that libtpu knows the ones that are not.
#include "plan/pod/pod.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"

namespace flambeau::plan {
namespace {

using pjrt::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr Generation kGenerations[] = {Generation::V4, Generation::V5e, Generation::V5p, Generation::V6e, Generation::V7x};

// All single slices of a generation.
std::vector<Pod> legal_pods(Generation generation) {
  std::vector<Pod> pods;
  for (const targets::SliceShape& shape : targets::slices(chip_of(generation))) pods.push_back({.generation = generation, .shape = shape});
  return pods;
}

// ---- names --------------------------------------------------------------------------------------------------------------

TEST(ParsePod, KnowsWhatUsersSay) {
  const struct {
    std::string said;
    std::string name, topology;
    int64_t chips, devices;
    std::vector<int64_t> wrap, host;
  } kCases[] = {
      {"v5e:4x4", "v5e:4x4", "v5e:4x4", 16, 16, {0, 0, 0}, {2, 2, 1}},
      {"v5e:1x1", "v5e:1x1", "v5e:1x1", 1, 1, {0, 0, 0}, {1, 1, 1}},
      {"v5litepod-8", "v5e:2x4", "v5e:2x4", 8, 8, {0, 0, 0}, {2, 4, 1}},
      {"v5litepod-16", "v5e:4x4", "v5e:4x4", 16, 16, {0, 0, 0}, {2, 2, 1}},
      {"v5e-128", "v5e:8x16", "v5e:8x16", 128, 128, {0, 1, 0}, {2, 2, 1}},
      {"V6E-256", "v6e:16x16", "v6e:16x16", 256, 256, {1, 1, 0}, {2, 2, 1}},
      {"trillium-32", "v6e:4x8", "v6e:4x8", 32, 32, {0, 0, 0}, {2, 2, 1}},
      {"v5p:8x8x16", "v5p:8x8x16", "v5:8x8x16", 1024, 1024, {1, 1, 1}, {2, 2, 1}},
      {"v5:4x4x4", "v5p:4x4x4", "v5:4x4x4", 64, 64, {1, 1, 1}, {2, 2, 1}},
      {"v5p:16x16x24", "v5p:16x16x24", "v5:16x16x24", 6144, 6144, {1, 1, 1}, {2, 2, 1}},
      {"tpu-v5p-4x4X4", "v5p:4x4x4", "v5:4x4x4", 64, 64, {1, 1, 1}, {2, 2, 1}},
      {"v4:2x2x1", "v4:2x2x1", "v4:2x2x1", 4, 4, {0, 0, 0}, {2, 2, 1}},
      {"v4-32", "v4:2x2x4", "v4:2x2x4", 16, 16, {0, 0, 0}, {2, 2, 1}},
      {"v4-64", "v4:2x4x4", "v4:2x4x4", 32, 32, {0, 0, 0}, {2, 2, 1}},
      {"tpu7x:2x2x1", "tpu7x:2x2x1", "tpu7x:2x2x1", 4, 8, {0, 0, 0}, {2, 2, 1}},
      {"tpu7x-2", "tpu7x:1x1x1", "tpu7x:1x1x1", 1, 2, {0, 0, 0}, {1, 1, 1}},
      {"tpu7x-64", "tpu7x:2x4x4", "tpu7x:2x4x4", 32, 64, {0, 0, 0}, {2, 2, 1}},
      {"v7x-128", "tpu7x:4x4x4", "tpu7x:4x4x4", 64, 128, {1, 1, 1}, {2, 2, 1}},
      {" TPU-7x : 16x16x32 ", "tpu7x:16x16x32", "tpu7x:16x16x32", 8192, 16384, {1, 1, 1}, {2, 2, 1}},
      {"ironwood-18432", "tpu7x:16x24x24", "tpu7x:16x24x24", 9216, 18432, {1, 1, 1}, {2, 2, 1}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.said);
    const Pod pod = parse_pod(c.said);
    EXPECT_EQ(pod.name(), c.name);
    EXPECT_EQ(pod.topology(), c.topology);
    EXPECT_EQ(pod.chips(), c.chips);
    EXPECT_EQ(pod.devices(), c.devices);
    EXPECT_EQ(pod.wrap(), c.wrap);
    EXPECT_EQ(pod.host(), c.host);
  }
}

// Accelerator types with the topologies that Google's own tools give them.
TEST(ParsePod, ChoosesTheStandardShapeOfACount) {
  const std::pair<std::string, std::string> kCases[] = {
      {"v4-8", "2x2x1"},        {"v4-1536", "8x8x12"},        {"v4-4096", "8x16x16"},       {"v5p-16", "2x2x2"},
      {"v5p-128", "4x4x4"},     {"v5p-384", "4x4x12"},        {"v5p-640", "4x4x20"},        {"v5p-768", "4x8x12"},
      {"v5p-1152", "4x12x12"},  {"v5p-2048", "8x8x16"},       {"v5p-3072", "8x12x16"},      {"v5p-3456", "12x12x12"},
      {"v5p-4480", "4x20x28"},  {"v5p-6912", "12x12x24"},     {"v5p-7680", "12x16x20"},     {"v5p-9216", "12x16x24"},
      {"v5p-10368", "12x12x36"}, {"v5p-11520", "12x20x24"},   {"v5p-12288", "16x16x24"},    {"tpu7x-7808", "4x4x244"},
      {"tpu7x-13824", "12x24x24"}, {"tpu7x-16384", "16x16x32"}, {"tpu7x-17920", "16x20x28"}, {"v6e-64", "8x8"},
  };
  for (const auto& [said, shape] : kCases) EXPECT_THAT(parse_pod(said).name(), testing::EndsWith(":" + shape)) << said;
}

TEST(ParsePod, RefusesInOneLineWithTheNearest) {
  const struct {
    std::string said, expected, nearest;
  } kCases[] = {
      {"", "v4, v5e, v5p, v6e or tpu7x", ""},
      {"v3-8", "v4, v5e, v5p, v6e or tpu7x", ""},
      {"h100:8", "got 'h100:8'", ""},
      {"cpu", "v4, v5e, v5p, v6e or tpu7x", ""},
      {"v5e--4", "v4, v5e, v5p, v6e or tpu7x", ""},
      {"v4\n:2x2x1", "got 'v4?:2x2x1'", ""},
      {std::string(5000, 'v'), "vvv...'", ""},
      {"v5e", "such as v5e:4x8 or v5e-128", ""},
      {"v5p:", "such as v5p:4x4x8 or v5p-128", ""},
      {"v5e:4x", "a shape or a size", ""},
      {"v5e:4xa", "a shape or a size", ""},
      {"v4:4x4x8_twisted", "a shape or a size", ""},
      {"v5e-1.5", "a shape or a size", ""},
      {"v5e:0x4", "dimensions of at least 1", "v5e:2x4"},
      {"v5e:-4x4", "dimensions of at least 1", "v5e:2x4"},
      {"v5p:0x0x0", "dimensions of at least 1", "v5p:2x2x1"},
      {"v5e:16", "2 dimensions for v5e", "v5e:4x4"},
      {"v5e:4x4x4", "2 dimensions for v5e", "v5e:8x8"},
      {"v5p:8x8", "3 dimensions for v5p", "v5p:4x4x4"},
      {"v5p:4x4x4x4", "3 dimensions for v5p", "v5p:4x8x8"},
      {"v5e:32x32", "at most 256 chips in a slice of v5e", "v5e:16x16, v5e:8x16 or v5e:8x8"},
      {"v5e:99999999999999999999x1", "at most 256 chips in a slice of v5e", "v5e:16x16"},
      {"v5p:16x20x28", "at most 6,144 chips in a slice of v5p", "v5p:16x16x24"},
      {"v5p:999999999x999999999x999999999", "at most 6,144 chips in a slice of v5p", "v5p:16x16x24"},
      {"v4:16x16x20", "at most 4,096 chips in a slice of v4", "v4:16x16x16"},
      {"tpu7x:16x24x28", "at most 9,216 chips in a slice of tpu7x", "tpu7x:16x24x24"},
      {"v5e:3x5", "1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16 for v5e", "v5e:4x4"},
      {"v6e:16x8", "1x1, 2x2", "nearest: v6e:8x16"},
      {"v5e:4x16", "1x1, 2x2", "v5e:4x8"},
      {"v5p:5x5x5", "or ascending multiples of 4 up to 256 for v5p", "v5p:4x4x4"},
      {"v5p:8x4x4", "ascending multiples of 4", "nearest: v5p:4x4x8"},
      {"v5p:1x1x1", "2x2x1, 2x2x2, 2x2x4, 2x4x4 or", "v5p:2x2x1"},
      {"v4:2x2x8", "2x2x1, 2x2x2, 2x2x4, 2x4x4 or", "v4:2x2x4"},
      {"v4:1x2x2", "2x2x1, 2x2x2, 2x2x4, 2x4x4 or", "nearest: v4:2x2x1"},
      {"v5p:4x4x260", "multiples of 4 up to 256", "v5p:4x4x256"},
      {"v5e-0", "a slice of v5e has (the number counts chips)", "nearest: v5e-1 (1x1)"},
      {"v5litepod-12", "the number counts chips", "nearest: v5e-8 (2x4) or v5e-16 (4x4)"},
      {"v6e-512", "the number counts chips", "nearest: v6e-256 (16x16)"},
      {"v5p-2000", "the number counts TensorCores, 2 a chip", "nearest: v5p-1920 (4x12x20) or v5p-2048 (8x8x16)"},
      {"v5p-2047", "the number counts TensorCores, 2 a chip", "v5p-2048 (8x8x16)"},
      {"v5p-17920", "a slice of v5p has", "nearest: v5p-12288 (16x16x24)"},
      {"v4-2", "a slice of v4 has", "nearest: v4-8 (2x2x1)"},
      {"tpu7x-4", "a slice of tpu7x has", "nearest: tpu7x-2 (1x1x1) or tpu7x-8 (2x2x1)"},
      {"tpu7x-99999999999999999999", "a slice of tpu7x has", "nearest: tpu7x-18432 (16x24x24)"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.said);
    const std::string message = message_of<InvalidArgument>([&] { parse_pod(c.said); });
    EXPECT_THAT(message, AllOf(testing::StartsWith("[plan.pod] expected "), HasSubstr(c.expected), HasSubstr(c.nearest)));
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_LT(message.size(), 250u);
  }
}

TEST(ParsePod, CountsSlices) {
  const Pod pod = parse_pod("tpu7x-128", 2);
  EXPECT_EQ(pod.chips(), 128);
  EXPECT_EQ(pod.devices(), 256);
  EXPECT_EQ(pod.attributes().at("num_slices"), pjrt::Attribute(int64_t{2}));
  EXPECT_EQ(pod.spoken(), "2 slices of tpu7x:4x4x4 (128 chips, 256 devices)");
  EXPECT_EQ(parse_pod("v5p-12288", 3).chips(), 18432);

  const struct {
    std::string said;
    int64_t slices;
    std::string want;
  } kRefused[] = {
      {"v5e:4x4", 0, "expected 1 to 256 slices, got 0"},
      {"v5e:4x4", -1, "expected 1 to 256 slices, got -1"},
      {"v5e:4x4", 257, "expected 1 to 256 slices, got 257"},
      {"v5e:4x4", INT64_MAX, "expected 1 to 256 slices"},
      {"v5p:16x16x24", 4, "at most 18,432 chips of v5p in all slices, got 4 slices of v5p:16x16x24, 24,576 chips; ask for "
                          "at most 3"},
      {"tpu7x:16x24x24", 8, "at most 65,536 chips of tpu7x in all slices, got 8 slices of tpu7x:16x24x24, 73,728 chips; ask "
                            "for at most 7"},
  };
  for (const auto& c : kRefused) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { parse_pod(c.said, c.slices); }), HasSubstr(c.want));
  }
}

TEST(Pod, IsSpokenOf) {
  EXPECT_EQ(parse_pod("v5p-2048").spoken(), "v5p:8x8x16 (1,024 chips)");
  EXPECT_EQ(parse_pod("v5e-1").spoken(), "v5e:1x1 (1 chip)");
  EXPECT_EQ(parse_pod("tpu7x-18432").spoken(), "tpu7x:16x24x24 (9,216 chips, 18,432 devices)");
}

// ---- all pods there are -------------------------------------------------------------------------------------------------

TEST(LegalPods, ParseBackAndFollowTheRules) {
  for (const Generation generation : kGenerations) {
    const Chip& chip = chip_of(generation);
    const std::vector<Pod> pods = legal_pods(generation);
    std::set<int64_t> sizes;
    for (const Pod& pod : pods) {
      SCOPED_TRACE(pod.name());
      EXPECT_EQ(parse_pod(pod.name()), pod);
      EXPECT_EQ(parse_pod(pod.topology()), pod);
      int64_t chips = 1, host = 1;
      for (size_t i = 0; i < 3; ++i) {
        const int64_t d = i < pod.shape.size() ? pod.shape[i] : 1;
        chips *= d;
        host *= pod.host()[i];
        EXPECT_EQ(d % pod.host()[i], 0);                   // libtpu refuses hosts that do not divide the slice
        if (pod.wrap()[i] == 1) {
          EXPECT_EQ(d % 4, 0);
        }
      }
      EXPECT_EQ(pod.chips(), chips);
      EXPECT_EQ(pod.devices(), chips * (generation == Generation::V7x ? 2 : 1));
      EXPECT_LE(chips, chip.largest_slice);
      EXPECT_LE(host, 8);
      EXPECT_EQ(static_cast<int64_t>(pod.shape.size()), chip.dimensions);
      // The first of a size is the one that the size alone means.
      const std::string counted = fmt::format("{}-{}", chip.name, chips * chip.counted);
      if (sizes.insert(chips).second) {
        EXPECT_EQ(parse_pod(counted), pod) << counted;
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(pods, {}, &Pod::chips));
    EXPECT_EQ(pods.back().chips(), chip.largest_slice);
  }
  EXPECT_EQ(legal_pods(Generation::V6e).size(), 8u);
  // 64 cubes in at most 4,096 chips: 4 parts of cubes, and every a <= b <= c with abc <= 64.
  size_t blocks = 0;
  for (int a = 1; a <= 64; ++a) {
    for (int b = a; b <= 64; ++b) {
      for (int c = b; c <= 64; ++c) blocks += a * b * c <= 64 ? 1 : 0;
    }
  }
  EXPECT_EQ(legal_pods(Generation::V4).size(), 4 + blocks);
}

// How fast devices of a slice send to each other, in links of a chip.
TEST(Pod, CountsTheLinksOfAGroup) {
  const struct {
    const char* pod;
    int64_t first_stride, first_size, second_stride, second_size;  // of the axes along which the group lies
    double links;
  } kCases[] = {
      {"v5p:8x8x16", 1, 1024, 0, 1, 6},  // all: two in each dimension
      {"v5p:8x8x16", 1, 8, 0, 1, 2},     // a ring of the first dimension
      {"v5p:8x8x16", 8, 128, 0, 1, 4},   // the two others
      {"v5p:8x8x16", 1, 4, 0, 1, 1},     // half a ring is a line
      {"v5p:8x8x16", 2, 4, 0, 1, 1},     // every other chip of a ring, whose links two groups share
      {"v5p:8x8x16", 1, 16, 0, 1, 3},    // a ring and a line of two
      {"v5p:8x8x16", 1, 8, 64, 16, 4},   // the first and the last dimension
      {"v5e:4x4", 1, 16, 0, 1, 2},       // no rings: the chip in a corner has two links
      {"v5e:4x4", 1, 4, 0, 1, 1},
      {"v5e:4x4", 1, 8, 0, 1, 2},
      {"v5e:16x16", 1, 256, 0, 1, 4},
      {"v6e:8x16", 8, 16, 0, 1, 2},      // a ring where a dimension has all 16
      {"v5e:1x1", 1, 1, 0, 1, 4},        // nobody to send to
      {"tpu7x:4x4x4", 2, 4, 0, 1, 1},    // a ring of four chips, each of which is two devices
      {"tpu7x:4x4x4", 1, 2, 0, 1, 3},    // the two devices of a chip
  };
  for (const auto& c : kCases) {
    const Pod pod = parse_pod(c.pod);
    std::vector<int64_t> group;
    for (int64_t i = 0; i < c.first_size; ++i)
      for (int64_t j = 0; j < c.second_size; ++j) group.push_back(i * c.first_stride + j * c.second_stride);
    EXPECT_DOUBLE_EQ(pod.ici_bandwidth(group) / pod.chip().link_bandwidth(), c.links) << c.pod << " " << c.first_stride << " " << c.first_size;
  }
}

// ---- libtpu -------------------------------------------------------------------------------------------------------------

class Libtpu : public pjrt::LibtpuTest {
 protected:
  pjrt::TopologyResult compile_for(const Pod& pod) const {
    const std::string program = pjrt::module(R"(func.func public @main(%a: tensor<8x128xf32>) -> tensor<8x128xf32> {
      %0 = "stablehlo.add"(%a, %a) : (tensor<8x128xf32>, tensor<8x128xf32>) -> tensor<8x128xf32>
      return %0 : tensor<8x128xf32>
    })");
    return pjrt::compile_apart({.plugin = libtpu_,
                                .topology = pod.topology(),
                                .attributes = pod.attributes(),
                                .program = program,
                                .options = {},
                                .whole = !pod.has_first_phase(),
                                .time_limit = std::chrono::seconds(300)});
  }
};

// In a process of its own: libtpu wants its environment set before it is loaded.
void check_coordinates() {
  pjrt::prepare_to_compile_for_tpu();
  const pjrt::Plugin& plugin = pjrt::Plugin::load(pjrt::find_plugin("tpu"));
  for (const char* name : {"v5e:4x8", "v6e:16x16", "v5p:4x4x8", "tpu7x:2x2x4", "v4:2x2x4"}) {
    const Pod pod = parse_pod(name);
    const auto topology = pjrt::Topology::create(plugin, pod.topology(), pod.attributes());
    std::vector<pjrt::Device> devices = topology->devices();
    std::ranges::sort(devices, {}, &pjrt::Device::id);
    for (size_t i = 0; i < devices.size(); ++i) {
      std::vector<int64_t> told = std::get<std::vector<int64_t>>(devices[i].attributes.at("coords"));
      told.resize(pod.shape.size());
      EXPECT_EQ(pod.coordinates(static_cast<int64_t>(i)), told) << name << " " << i;
    }
  }
}

TEST_F(Libtpu, CountsChipsAlongTheFirstDimensionFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        check_coordinates();
        std::cerr << (testing::Test::HasFailure() ? "failed" : "checked") << std::endl;
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "checked");
}

// Smallest, middle and largest slice of every generation: libtpu has the topology, with as many devices, of the table's kind
// and memory, and compiles for it.
TEST_F(Libtpu, KnowsThePods) {
  std::vector<Pod> pods = {parse_pod("v5e-16", 4), parse_pod("tpu7x-128", 2)};
  for (const Generation generation : kGenerations) {
    const std::vector<Pod> legal = legal_pods(generation);
    for (const size_t i : {size_t{0}, legal.size() / 2, legal.size() - 1}) pods.push_back(legal[i]);
  }
  const auto check = [&](const Pod& pod) {
    SCOPED_TRACE(pod.spoken());
    const pjrt::TopologyResult result = compile_for(pod);
    EXPECT_EQ(result.device_count, pod.devices());
    EXPECT_EQ(result.device_kind, pod.chip().device_kind);
    EXPECT_NEAR(static_cast<double>(result.device_memory), static_cast<double>(pod.chip().device_memory),
                1e-3 * static_cast<double>(pod.chip().device_memory));
    EXPECT_THAT(result.diagnostics, testing::Not(HasSubstr("wrapping")));  // said of a ring where there can be none
  };
  // Two at a time: each is a process of about a second.
  auto other = std::async(std::launch::async, [&] {
    for (size_t i = 1; i < pods.size(); i += 2) check(pods[i]);
  });
  for (size_t i = 0; i < pods.size(); i += 2) check(pods[i]);
  other.get();
}

}  // namespace
}  // namespace flambeau::plan
