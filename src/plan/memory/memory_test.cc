// What buffers hold, of a step small enough to be written out: a forward loop that stacks rows, a backward one that takes them
// off and stacks gradients, an update of the weights.
#include "plan/memory/memory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "compiled/test_module.h"

namespace flambeau::plan {
namespace {

using namespace compiled::testing;
using ::testing::Contains;
using ::testing::Pair;

const std::string kIndex = shape(kS32), kStack = shape(kF32, {4, 1024}), kRow = shape(kF32, {1, 1024}),
                  kWide = shape(kF32, {8, 1024});
constexpr int64_t kStackBytes = 4 * 1024 * 4, kRowBytes = 1024 * 4;

std::string condition(int64_t id, const std::string& state) {
  return computation(id,
                     {parameter(30, state), element(31, 30, 0), constant(32, 4),
                      instruction(33, "compare", shape(kPred), {31, 32}, ProtoWriter().bytes(63, "LT").str())},
                     33);
}

// Names of instructions are unique in a module, but ids in a computation only: the bodies' begin at 100 and 200.
std::string step_module() {
  const std::string forward = tuple({kIndex, kStack, kRow}), backward = tuple({kIndex, kStack, kRow, kStack});
  return module(
      {computation(1,
                   {parameter(100, forward), element(101, 100, 0), constant(102, 1),
                    instruction(103, "add", kIndex, {101, 102}), element(104, 100, 1, kStack), element(105, 100, 2, kRow),
                    instruction(106, "negate", kRow, {105}, op_name("layers/act")),
                    instruction(107, "dynamic-update-slice", kStack, {104, 105, 101, 101}, op_name("layers/input")),
                    instruction(108, "tuple", forward, {103, 107, 106})},
                   108),
       condition(2, forward),
       computation(3,
                   {parameter(200, backward), element(201, 200, 0), constant(202, 1),
                    instruction(203, "add", kIndex, {201, 202}), element(204, 200, 1, kStack), element(205, 200, 2, kRow),
                    element(206, 200, 3, kStack), instruction(207, "dynamic-slice", kRow, {204, 201, 201}),
                    instruction(208, "add", kRow, {205, 207}, op_name("backward/layers/act")),
                    instruction(209, "dynamic-update-slice", kStack, {206, 208, 201, 201}, op_name("backward/layers/w")),
                    instruction(210, "tuple", backward, {203, 204, 208, 209})},
                   210),
       condition(4, backward),
       computation(
           5,
           {constant(1, 0), parameter(2, kStack, 0), parameter(3, kStack, 1), parameter(4, kRow, 2),
            instruction(5, "broadcast", kStack, {1}), instruction(6, "tuple", forward, {1, 5, 4}),
            instruction(7, "while", forward, {6}, calls({1, 2})), element(8, 7, 1, kStack), element(9, 7, 2, kRow),
            instruction(10, "broadcast", kStack, {1}), instruction(11, "tuple", backward, {1, 8, 9, 10}),
            instruction(12, "while", backward, {11}, calls({3, 4})), element(13, 12, 3, kStack),
            instruction(14, "all-gather", kWide, {2}), instruction(15, "add", kStack, {13, 3}, op_name("optimizer/m")),
            instruction(16, "negate", kWide, {14}, op_name("head"))},
           15)},
      5);
}

std::string allocation(int64_t size, const std::string& use) {
  return fmt::format("allocation 1: size {}, page 0, {}:\n", size, use);
}
std::string value(const std::string& name, int64_t size, int64_t offset, const std::string& shape) {
  return fmt::format(" value: <1 {} @0> (size={},offset={}): {}{{1,0:T(8,128)}}\n", name, size, offset, shape);
}

const std::vector<Argument> kArguments = {{MemoryKind::Parameters, "w"}, {MemoryKind::OptimizerStates, "w, exp_avg"},
                                          {MemoryKind::Batch, "tokens"}};

Memory memory_from(const std::string& buffers, const std::string& ranges,
                   const std::vector<Argument>& arguments = kArguments) {
  const auto module = compiled::parse_module(step_module());
  const auto analysis = analyze(module, 2);
  const auto parsed = compiled::parse_buffers(buffers, "  BufferLiveRange:\n" + ranges);
  return memory_of({module, analysis, loop_roles(module, analysis), parsed, arguments}, 1 << 20);
}

int64_t sum(const Memory& memory) {
  int64_t total = 0;
  for (const auto& [kind, bytes] : memory.by_kind) total += bytes;
  return total;
}

std::map<MemoryKind, int64_t> kinds(const Memory& memory) { return {memory.by_kind.begin(), memory.by_kind.end()}; }

const std::string kArgumentBuffers = allocation(2 * kStackBytes, "parameter 0, shape |f32[4,1024]| at ShapeIndex {}") +
                                     value("parameter.2", 2 * kStackBytes, 0, "f32[4,1024]") +
                                     allocation(kStackBytes, "parameter 1, shape |f32[4,1024]| at ShapeIndex {}") +
                                     value("parameter.3", kStackBytes, 0, "f32[4,1024]") +
                                     allocation(kRowBytes, "parameter 2, shape |f32[1,1024]| at ShapeIndex {}") +
                                     value("parameter.4", kRowBytes, 0, "f32[1,1024]");

TEST(Memory, KnowsWhatBuffersHold) {
  // 0: the saved stack; then the gradients, a row of the backward loop, a hole, what is gathered before that.
  const std::string buffers =
      kArgumentBuffers + allocation(3 * kStackBytes + 2 * kRowBytes, "preallocated-temp") +
      value("broadcast.5", kStackBytes, 0, "f32[4,1024]") + value("while.7{1}", kStackBytes, 0, "f32[4,1024]") +
      value("parameter.200{1}", kStackBytes, 0, "f32[4,1024]") +
      value("broadcast.10", kStackBytes, kStackBytes, "f32[4,1024]") +
      value("dynamic-update-slice.209", kStackBytes, kStackBytes, "f32[4,1024]") +
      value("add.208", kRowBytes, 2 * kStackBytes, "f32[1,1024]") +
      value("all-gather.14", 2 * kStackBytes, kStackBytes, "f32[8,1024]");
  const std::string ranges =
      "    broadcast.5{}:5-10\n    while.7{1}:7-20\n    parameter.200{1}:11-30\n    broadcast.10{}:21-25\n"
      "    dynamic-update-slice.209{}:24-30\n    add.208{}:25-26\n    all-gather.14{}:31-40\n";
  const Memory memory = memory_from(buffers, ranges);
  EXPECT_EQ(memory.total, 3 * kStackBytes + kRowBytes + 3 * kStackBytes + 2 * kRowBytes);
  EXPECT_EQ(sum(memory), memory.total);
  EXPECT_EQ(memory.limit, 1 << 20);
  EXPECT_TRUE(memory.fits());
  // At 25: the stack, the gradients, a row.
  const std::map<MemoryKind, int64_t> want = {{MemoryKind::Parameters, kStackBytes},
                                              {MemoryKind::OptimizerStates, kStackBytes},
                                              {MemoryKind::Batch, kRowBytes},
                                              {MemoryKind::SavedActivations, kStackBytes},
                                              {MemoryKind::Gradients, kStackBytes + kRowBytes},
                                              {MemoryKind::Padding, kStackBytes + kStackBytes + kRowBytes}};
  EXPECT_EQ(kinds(memory), want);

  ASSERT_EQ(memory.largest.size(), 7u);
  EXPECT_EQ(memory.largest[0].name, "w");
  EXPECT_EQ(memory.largest[0].padding, kStackBytes);
  EXPECT_EQ(memory.largest[0].shape, "f32[4,1024]");
  EXPECT_TRUE(memory.largest[0].at_peak);
  EXPECT_EQ(memory.largest[1].name, "w (gathered)");
  EXPECT_EQ(memory.largest[1].kind, MemoryKind::Collectives);
  EXPECT_FALSE(memory.largest[1].at_peak);
  std::map<std::string, MemoryKind> by_name;
  for (const Buffer& b : memory.largest) by_name[b.name] = b.kind;
  EXPECT_EQ(by_name["backward/layers/w"], MemoryKind::Gradients);
  EXPECT_EQ(by_name["w, exp_avg"], MemoryKind::OptimizerStates);

  const int64_t always = 3 * kStackBytes + kRowBytes;
  EXPECT_EQ(memory.over_step.front(), std::pair(0.0, always));
  EXPECT_THAT(memory.over_step, Contains(Pair(::testing::_, always + 2 * kStackBytes + kRowBytes)));
  for (const auto& [at, bytes] : memory.over_step) {
    EXPECT_GE(at, 0);
    EXPECT_LE(at, 1);
    EXPECT_LE(bytes, memory.total);
  }
}

TEST(Memory, CountsNoByteTwice) {
  // A fusion's result over a part of its operand, both alive; a tuple's table within the same granule.
  const std::string buffers = allocation(2 * kStackBytes, "preallocated-temp") +
                              value("all-gather.14", 2 * kStackBytes, 0, "f32[8,1024]") +
                              value("negate.16", kStackBytes, kRowBytes, "f32[4,1024]") +
                              value("unheard of", 8, 2 * kStackBytes - 8, "(f32[4], f32[4])");
  const Memory memory = memory_from(buffers, "    all-gather.14{}:1-5\n    negate.16{}:5-9\n");
  EXPECT_EQ(memory.total, 2 * kStackBytes);
  EXPECT_EQ(sum(memory), memory.total);
  EXPECT_EQ(kinds(memory)[MemoryKind::Collectives], 2 * kStackBytes);
}

TEST(Memory, TakesUpdatedStatesForStates) {
  const std::string buffers = allocation(kStackBytes, "preallocated-temp") + value("add.15", kStackBytes, 0, "f32[4,1024]");
  EXPECT_EQ(kinds(memory_from(buffers, "")), (std::map<MemoryKind, int64_t>{{MemoryKind::OptimizerStates, kStackBytes}}));
  // Where nobody says what arguments are, a buffer is a temporary.
  EXPECT_EQ(kinds(memory_from(buffers, "", {})), (std::map<MemoryKind, int64_t>{{MemoryKind::Temporaries, kStackBytes}}));
}

TEST(Memory, HoldsASpikeNoLongerThanItLasts) {
  // Of 100,001 moments: a row lives through all, a stack for two, in one of the 400 parts that are told apart.
  const std::string buffers = allocation(kStackBytes + kRowBytes, "preallocated-temp") + value("negate.106", kRowBytes, 0, "f32[1,1024]") +
                              value("add.15", kStackBytes, kRowBytes, "f32[4,1024]");
  const Memory memory = memory_from(buffers, "    negate.106{}:0-100000\n    add.15{}:10010-10011\n");
  EXPECT_THAT(memory.over_step, ::testing::ElementsAre(Pair(0, kRowBytes), Pair(40 / 400.0, kRowBytes + kStackBytes),
                                                       Pair(41 / 400.0, kRowBytes), Pair(399 / 400.0, kRowBytes),
                                                       Pair(1.0, 0)));
}

TEST(Memory, OfNothing) {
  const Memory memory = memory_from("", "");
  EXPECT_EQ(memory.total, 0);
  EXPECT_TRUE(memory.by_kind.empty());
  EXPECT_TRUE(memory.over_step.empty());
}

}  // namespace
}  // namespace flambeau::plan
