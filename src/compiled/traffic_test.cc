// Bytes of HBM, and what runs beside collectives, of small modules made by hand.
#include <gmock/gmock.h>

#include "compiled/analysis.h"
#include "compiled/test_module.h"

namespace flambeau::compiled {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::Pair;

const std::string kArray = shape(kF32, {4, 1024}), kRow = shape(kF32, {1, 1024}), kIndex = shape(kS32);
constexpr double kBytes = 4 * 1024 * 4, kRowBytes = 1024 * 4;

TEST(Layout, SaysWhatAnArrayTakes) {
  const struct {
    int type;
    std::vector<int64_t> dims, tile;
    int64_t space, want, in_hbm;
  } kCases[] = {
      {kF32, {320, 100}, {}, 0, 320 * 100 * 4, 320 * 100 * 4},
      {kF32, {321, 100}, {8, 128}, 0, 328 * 128 * 4, 328 * 128 * 4},
      {kBF16, {3, 5, 129}, {8, 128}, 0, 3 * 8 * 256 * 2, 3 * 8 * 256 * 2},
      {kF32, {}, {128}, 0, 512, 512},
      {kF32, {7}, {1024}, 0, 4096, 4096},
      {kF32, {7}, {1024}, 1, 4096, 0},
      {kF32, {0, 5}, {8, 128}, 0, 0, 0},
      {kF32, {7}, {-1}, 0, 28, 28},  // combines dimensions: not read
  };
  for (const auto& c : kCases) {
    const Module m = parse_module(module({computation(1, {parameter(1, placed(c.type, c.dims, c.space, c.tile))}, 1)}, 1));
    const Shape& shape = m.entry_computation().instructions[0].shape;
    EXPECT_EQ(shape.laid_out_bytes(), c.want) << c.want;
    EXPECT_EQ(shape.hbm_bytes(), c.in_hbm) << c.want;
  }
}

// Reads and writes of the entry's one operation.
std::pair<double, double> moved(const std::vector<std::string>& computations, int64_t entry) {
  const Analysis analysis = analyze(parse_module(module(computations, entry)));
  EXPECT_LE(analysis.operations.size(), 1u);
  if (analysis.operations.empty()) return {0, 0};
  return {analysis.operations[0].bytes_read, analysis.operations[0].bytes_written};
}

TEST(Traffic, OfSingleInstructions) {
  const std::string on_chip = placed(kF32, {4, 1024}, 1), pair = tuple({kArray, on_chip, shape(kS32)});
  auto target = [](const char* name) { return ProtoWriter().bytes(28, name).str(); };
  auto noted = [](const std::string& bytes) {
    return ProtoWriter().bytes(43, R"({"custom_call_config":{"cost_estimate":{"flops":1,"bytes_accessed":)" + bytes + "}}}").str();
  };
  const struct {
    const char* what;
    std::string instruction;
    double read, written;
  } kCases[] = {
      {"both operands and the result", instruction(9, "add", kArray, {1, 1}), 2 * kBytes, kBytes},
      {"memory on the chip is free", instruction(9, "add", on_chip, {1, 2}), kBytes, 0},
      {"a slice reads what it takes", instruction(9, "dynamic-slice", kRow, {1, 3, 3}), kRowBytes + 8, kRowBytes},
      {"an update writes the update", instruction(9, "dynamic-update-slice", kArray, {1, 4, 3, 3}), kRowBytes + 8, kRowBytes},
      {"a bitcast", instruction(9, "bitcast", kArray, {1}), 0, 0},
      {"a tuple", instruction(9, "tuple", tuple({kArray}), {1}), 0, 0},
      {"onto the chip", instruction(9, "copy-start", tuple({on_chip, kArray, shape(kS32)}), {1}), kBytes, 0},
      {"from the chip", instruction(9, "copy-start", pair, {2}), 0, kBytes},
      {"a gather's start", instruction(9, "all-gather-start", tuple({kRow, kArray}), {4}), kRowBytes, kBytes},
      {"a reduction's start", instruction(9, "all-reduce-start", kArray, {1}), kBytes, kBytes},
      {"an allocation", instruction(9, "custom-call", kArray, {}, target("AllocateBuffer")), 0, 0},
      {"a kernel", instruction(9, "custom-call", kArray, {1}, target("tpu_custom_call")), kBytes, kBytes},
      {"a kernel that reads again", instruction(9, "custom-call", kArray, {1}, noted("50000")), 50000 - kBytes, kBytes},
      {"a kernel that says less than its arrays", instruction(9, "custom-call", kArray, {1}, noted("50")), kBytes, kBytes},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(moved({computation(1,
                                   {parameter(1, kArray), parameter(2, on_chip, 1), parameter(3, kIndex, 2),
                                    parameter(4, kRow, 3), c.instruction},
                                   9)},
                      1),
                Pair(c.read, c.written))
        << c.what;
  }
}

TEST(Traffic, OfFusions) {
  const std::string both = tuple({kArray, kRow});
  const struct {
    const char* what;
    std::vector<std::string> inside;  // of parameters 1 (an array), 2 (a row), 3 (an index)
    std::string result;
    double read, written;
  } kCases[] = {
      {"all of an operand once", {instruction(9, "add", kArray, {1, 1})}, kArray, kBytes, kBytes},
      {"a slice of an operand, through a bitcast",
       {instruction(4, "bitcast", kArray, {1}), instruction(5, "dynamic-slice", kRow, {4, 3, 3}),
        instruction(9, "add", kRow, {5, 2})},
       kRow, 2 * kRowBytes + 4, kRowBytes},
      {"a slice and the whole",
       {instruction(4, "dynamic-slice", kRow, {1, 3, 3}), instruction(5, "negate", kArray, {1}),
        instruction(9, "dynamic-update-slice", kArray, {5, 4, 3, 3})},
       kArray, kBytes + 4, kBytes},
      {"an update in place",
       {instruction(4, "negate", kRow, {2}), instruction(9, "dynamic-update-slice", kArray, {1, 4, 3, 3})},
       kArray, kRowBytes + 4, kRowBytes},
      {"an update in place beside another result",
       {instruction(4, "negate", kRow, {2}), instruction(5, "dynamic-update-slice", kArray, {1, 4, 3, 3}),
        instruction(6, "bitcast", kArray, {5}), instruction(9, "tuple", both, {6, 4})},
       both, kRowBytes + 4, 2 * kRowBytes},
      {"an operand that is passed on", {instruction(4, "negate", kRow, {2}), instruction(9, "tuple", both, {1, 4})}, both,
       kRowBytes, kRowBytes},
      {"an operand that a fusion renames", {instruction(4, "fusion", kArray, {1}, calls({3})), instruction(9, "negate", kArray, {4})},
       kArray, kBytes, kBytes},
      {"one that it renames and a slice is taken of",
       {instruction(4, "fusion", kArray, {1}, calls({3})), instruction(9, "dynamic-slice", kRow, {4, 3, 3})}, kRow, kRowBytes + 4, kRowBytes},
      {"a slice of what is copied and converted on the way",
       {instruction(4, "copy", kArray, {1}), instruction(5, "convert", shape(kBF16, {4, 1024}), {4}),
        instruction(9, "dynamic-slice", shape(kBF16, {1, 1024}), {5, 3, 3})},
       shape(kBF16, {1, 1024}), kRowBytes + 4, kRowBytes / 2},
      {"a slice of what a fusion copies",
       {instruction(4, "fusion", kArray, {1}, calls({4})), instruction(9, "dynamic-slice", kRow, {4, 3, 3})}, kRow, kRowBytes + 4, kRowBytes},
      {"an update in place of what a fusion copies",
       {instruction(4, "fusion", kArray, {1}, calls({4})), instruction(9, "dynamic-update-slice", kArray, {4, 2, 3, 3})}, kArray,
       kRowBytes + 4, kRowBytes},
      {"a copy", {instruction(4, "fusion", kArray, {1}, calls({4})), instruction(9, "bitcast", kArray, {4})}, kArray, kBytes, kBytes},
      {"one that it renames and nobody reads",
       {instruction(4, "fusion", kArray, {1}, calls({3})), instruction(5, "negate", kRow, {2}), instruction(9, "tuple", both, {4, 5})}, both,
       kRowBytes, kRowBytes},
      {"an update of fresh memory",
       {instruction(4, "broadcast", kArray, {3}), instruction(9, "dynamic-update-slice", kArray, {4, 2, 3, 3})},
       kArray, kRowBytes + 4, kBytes},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> inside = {parameter(1, kArray), parameter(2, kRow, 1), parameter(3, kIndex, 2)};
    inside.insert(inside.end(), c.inside.begin(), c.inside.end());
    EXPECT_THAT(moved({computation(3, {parameter(30, kArray), instruction(31, "bitcast", kArray, {30})}, 31),
                       computation(4, {parameter(40, kArray), instruction(41, "copy", kArray, {40})}, 41), computation(1, inside, 9),
                       computation(2,
                                   {parameter(1, kArray), parameter(2, kRow, 1), parameter(3, kIndex, 2),
                                    instruction(8, "fusion", c.result, {1, 2, 3}, calls({1}))},
                                   8)},
                      2),
                Pair(c.read, c.written))
        << c.what;
  }
}

// ---- what runs beside collectives ---------------------------------------------------------------------------------------

std::string negate(int64_t id, int64_t of) { return instruction(id, "negate", kArray, {of}); }

// What is moved while a collective of the entry is under way.
double bytes_beside(const Analysis& a, const Collective& c) {
  double bytes = 0;
  for (size_t i = c.begin; i < c.end; ++i) bytes += a.operations[i].bytes();
  return bytes;
}

TEST(Overlap, IsWhatRunsBetweenStartAndDone) {
  const std::string gathered = tuple({kRow, kArray});
  const struct {
    const char* what;
    std::vector<std::string> instructions;
    double want;  // bytes moved meanwhile
  } kCases[] = {
      {"nothing beside a synchronous one", {negate(3, 1), instruction(4, "all-gather", kArray, {2}), negate(5, 3)}, 0},
      {"nothing between", {instruction(3, "all-gather-start", gathered, {2}), instruction(4, "all-gather-done", kArray, {3}),
                           negate(5, 1)}, 0},
      {"two operations between",
       {negate(3, 1), instruction(4, "all-gather-start", gathered, {2}), negate(5, 1), negate(6, 5),
        instruction(7, "all-gather-done", kArray, {4}), negate(8, 1)},
       4 * kBytes},
      {"an update on the way",
       {instruction(4, "all-gather-start", gathered, {2}), negate(5, 1), instruction(6, "all-gather-update", gathered, {4}),
        negate(7, 1), instruction(8, "all-gather-done", kArray, {6})},
       4 * kBytes},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> all = {parameter(1, kArray), parameter(2, kRow, 1)};
    all.insert(all.end(), c.instructions.begin(), c.instructions.end());
    const Analysis a = analyze(parse_module(module({computation(1, all, 1)}, 1)), 4);
    ASSERT_EQ(a.collectives.size(), 1u) << c.what;
    EXPECT_EQ(bytes_beside(a, a.collectives[0]), c.want) << c.what;
  }
}

// As TPU's compiler has what its SparseCores do: started with nothing, begun by the update that brings the operand.
TEST(Overlap, BeginsWhereOperandsAreBrought) {
  const std::string nothing = tuple({tuple({}), tuple({}), tuple({kIndex})}), state = tuple({tuple({kRow}), kArray, tuple({kIndex})});
  const std::string gather = computation(1, {parameter(1, kRow), instruction(2, "all-gather", kArray, {1})}, 2);
  const std::string entry = computation(
      2,
      {parameter(1, kArray), parameter(2, kRow, 1), instruction(3, "async-start", nothing, {}, calls({1})), negate(4, 1),
       instruction(5, "async-update", state, {3, 2}), negate(6, 4), instruction(7, "async-done", kArray, {5}), negate(8, 6)},
      8);
  const Analysis a = analyze(parse_module(module({gather, entry}, 2)), 4);
  ASSERT_EQ(a.collectives.size(), 1u);
  EXPECT_EQ(a.collectives[0].operand_bytes, 1024 * 4);
  EXPECT_EQ(bytes_beside(a, a.collectives[0]), 2 * kBytes);
  EXPECT_EQ(a.operations[a.collectives[0].operation].bytes_read, kRowBytes);
  EXPECT_EQ(a.operations[a.collectives[0].operation].bytes_written, kBytes);
  EXPECT_EQ(a.hbm_bytes(), kRowBytes + kBytes + 3 * 2 * kBytes);
}

// One that is begun in a fusion, goes on in another beside its computation, and ends in a third.
TEST(Overlap, GoesThroughFusionsOfOneChannel) {
  auto config = [](const char* flag) {
    return ProtoWriter().bytes(43, std::string(R"({"async_collective_fusion_config":{"flag_start":")") + flag + "\"}}").str();
  };
  const std::string state = tuple({kRow, kArray}), channel = integer_field(26, 3);
  auto target = [](const char* name) { return ProtoWriter().bytes(28, name).str(); };
  const std::string begin = computation(
      1,
      {parameter(1, kRow), instruction(2, "all-gather", kArray, {1}, channel + config("-1")),
       instruction(3, "custom-call", state, {2}, target("AsyncCollectiveStart"))},
      3);
  const std::string middle = computation(
      2,
      {parameter(1, kRow), parameter(2, kArray, 1), parameter(3, kArray, 2),
       instruction(4, "all-gather", kArray, {1}, channel + config("2")), instruction(5, "negate", kArray, {3}),
       instruction(6, "tuple", tuple({kArray, kArray, kRow, kArray}), {5, 4, 1, 2})},
      6);
  const std::string end = computation(
      3,
      {parameter(1, kRow), parameter(2, kArray, 1), instruction(3, "all-gather", kArray, {1}, channel + config("2")),
       instruction(4, "custom-call", kArray, {1, 2, 3}, target("AsyncCollectiveDone"))},
      4);
  const std::string entry = computation(
      4,
      {parameter(1, kRow), parameter(2, kArray, 1), instruction(3, "fusion", state, {1}, calls({1})), element(4, 3, 0, kRow),
       element(5, 3, 1, kArray), instruction(6, "fusion", tuple({kArray, kArray, kRow, kArray}), {4, 5, 2}, calls({2})),
       element(7, 6, 2, kRow), element(8, 6, 3, kArray), negate(9, 2),
       instruction(10, "fusion", kArray, {7, 8}, calls({3})), negate(11, 2)},
      10);
  const Analysis a = analyze(parse_module(module({begin, middle, end, entry}, 4)), 4);
  ASSERT_EQ(a.collectives.size(), 1u);
  // The gather's own bytes count where it begins; the middle one's negation and the one after it run meanwhile.
  EXPECT_EQ(bytes_beside(a, a.collectives[0]), 4 * kBytes);
  EXPECT_EQ(a.hbm_bytes(), kRowBytes + kBytes + 3 * 2 * kBytes);
}

}  // namespace
}  // namespace flambeau::compiled
