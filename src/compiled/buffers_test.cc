// Reading XLA's reports of buffers, among them texts that are none.
#include "compiled/buffers.h"

#include <gmock/gmock.h>

#include <random>

#include "base/error.h"

namespace flambeau::compiled {
namespace {

using ::testing::HasSubstr;

const std::string kAssignment = R"(BufferAssignment:
allocation 0: size 1024, page 0, thread-local:
 value: <258 add.417 @0> (size=1024,offset=0): pred[]
allocation 1: size 1572864, page 0, parameter 8, shape |(f32[6,4], s32[])| at ShapeIndex {0}, maybe-live-out:
 value: <2236 param.9 @0> (size=1572864,offset=0): f32[6,4,4,32,32]{4,3,2,1,0:T(8,128)}
 value: <2518 copy-start{0} @0> (size=1572864,offset=0): f32[6,4,4,32,32]{4,3,2,1,0:T(8,128)}
allocation 2: size 512, page 0, constant:
 value: <9 constant.1 @0> (size=512,offset=0): f32[]{:T(128)}
allocation 3: size 512, page 0, output shape is |(f32[3], constant)|, maybe-live-out:
allocation 4: size 2048, color 4, page 0, preallocated-temp:
allocation 5: size 8192, page 0, preallocated-temp:
 value: <11 while.9{1} (phi) @0> (size=4096,offset=4096): f32[6,32]{1,0:T(8,128)}
 value: <12 copy.3{} @0> (size=16,offset=0): (f32[6,32]{1,0:T(8,128)}, u32[])

Total bytes used: 67555392 (64.43MiB)

Used values:
allocation 6: nothing of this kind
)";
const std::string kRanges = R"(HloLiveRange (max 9):
  InstructionSequence:
    0:param.9
  BufferLiveRange:
    param.9{}:0-8
    while.9{1}:3-7
    copy.3{}:4-5
  Live ranges at 4 (peak):
    param.9{}: 1572864 bytes (cumulative: 1572864 bytes)
)";

TEST(Buffers, AreRead) {
  const Buffers b = parse_buffers(kAssignment, kRanges);
  ASSERT_EQ(b.allocations.size(), 6u);
  using Use = Allocation::Use;
  const Use kUses[] = {Use::ThreadLocal, Use::Parameter, Use::Constant, Use::Other, Use::Temporary, Use::Temporary};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(b.allocations[i].use, kUses[i]) << i;
  EXPECT_EQ(b.allocations[1].parameter, 8);
  EXPECT_EQ(b.allocations[4].color, 4);
  EXPECT_EQ(b.hbm_bytes(), 1572864 + 512 + 512 + 8192);
  EXPECT_EQ(b.host_bytes(), 2048);
  Allocation offloaded;
  offloaded.color = 5;
  EXPECT_TRUE(offloaded.on_host());
  EXPECT_EQ(b.schedule_length, 9);
  const BufferValue &parameter = b.allocations[1].values.at(0), &state = b.allocations[5].values.at(0),
                    &copy = b.allocations[5].values.at(1);
  EXPECT_EQ(parameter.name, "param.9");
  EXPECT_EQ(parameter.shape, "f32[6,4,4,32,32]{4,3,2,1,0:T(8,128)}");
  EXPECT_EQ(b.allocations[1].values.at(1).name, "copy-start{0}");
  EXPECT_EQ(b.allocations[1].values.at(1).first, -1);
  EXPECT_EQ(state.name, "while.9{1}");
  EXPECT_EQ(std::tuple(state.offset, state.size, state.first, state.last), std::tuple(4096, 4096, 3, 7));
  EXPECT_EQ(copy.name, "copy.3");
  EXPECT_EQ(copy.last, 5);
  EXPECT_TRUE(parse_buffers("", "").allocations.empty());
}

std::string refusal(const std::string& assignment, const std::string& ranges = {}) {
  try {
    parse_buffers(assignment, ranges);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Buffers, MustMakeSense) {
  const std::string kHuge = "allocation 0: size 9223372036854775807, page 0, constant:\n";
  const struct {
    std::string assignment, ranges, want;
  } kCases[] = {
      {"allocation 0: size -1, page 0:\n", "", "at least 0"},
      {"allocation 0: size 99999999999999999999, page 0:\n", "", "at least 0"},
      {"allocation 0: size 1, color red, page 0:\n", "", "at least 0"},
      {" value: <1 a @0> (size=1,offset=0): f32[]\n", "", "below their allocations"},
      {"allocation 0: size 8, page 0:\n value: <1 a @0> (size=4,offset=5): f32[]\n", "", "within 8 bytes"},
      {"allocation 0: size 8, page 0:\n value: <1 a @0> (size=4,offset=9223372036854775807): f32[]\n", "", "within 8 bytes"},
      {"allocation 0: size 8, page 0:\n value: <1 a\n", "", "at least 0"},
      {kHuge + kHuge, "", "63 bits"},
      {"", "  BufferLiveRange:\n    a{}:5-4\n", "a range"},
      {"", "  BufferLiveRange:\n    a{}:5-9223372036854775807\n", "a range"},
      {"", "  BufferLiveRange:\n    a{}:x-4\n", "at least 0"},
      {"nothing of the kind", "nor here", "accepted"},
  };
  for (const auto& c : kCases) EXPECT_THAT(refusal(c.assignment, c.ranges), HasSubstr(c.want)) << c.assignment << c.ranges;
}

TEST(Buffers, SurviveManyChanges) {
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string assignment = kAssignment, ranges = kRanges;
    for (int change = 0; change <= round % 3; ++change) {
      assignment[random() % assignment.size()] = static_cast<char>(random());
      ranges[random() % ranges.size()] = static_cast<char>(random());
    }
    accepted += refusal(assignment.substr(0, random() % 10 == 0 ? random() % assignment.size() : std::string::npos), ranges) ==
                "accepted";
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Buffers, ShapesHaveSizes) {
  const struct {
    const char* text;
    int64_t want;
  } kCases[] = {{"f32[6,32]{1,0:T(8,128)}", 768}, {"bf16[]{:T(128)}", 2}, {"pred[7]", 7},         {"f32[0,5]", 0},
                {"(f32[6], s32[])", 0},           {"f32", 0},             {"f32[6", 0},           {"f32]6[", 0},
                {"what[6]", 0},                   {"f32[-6]", 0},         {"f32[99999999999,99999999999]", 0}};
  for (const auto& c : kCases) EXPECT_EQ(bytes_of_shape(c.text), c.want) << c.text;
}

}  // namespace
}  // namespace flambeau::compiled
