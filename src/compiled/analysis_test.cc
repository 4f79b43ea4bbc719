// Trip counts, groups and FLOPs of small modules made by hand. tests/compiled_test.cc analyzes what compilers make.
#include "compiled/analysis.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "base/error.h"
#include "compiled/test_module.h"

namespace flambeau::compiled {
namespace {

using namespace testing;

// A loop from `start` by `step` while `i direction bound`, where the bound is the second element of the state.
std::string counting_loop(int64_t start, int64_t step, const std::string& direction, int64_t bound,
                          bool bound_first = false) {
  const std::string state = tuple({shape(kS32), shape(kS32)});
  const std::vector<int64_t> sides = bound_first ? std::vector<int64_t>{32, 31} : std::vector<int64_t>{31, 32};
  return module(
      {computation(
           2,
           {parameter(20, state), element(21, 20, 0), constant(22, step), instruction(23, "add", shape(kS32), {21, 22}),
            element(24, 20, 1), instruction(25, "copy", shape(kS32), {24}), instruction(26, "tuple", state, {23, 25})},
           26),
       computation(3,
                   {parameter(30, state), element(31, 30, 0), element(32, 30, 1),
                    instruction(33, "compare", shape(kPred), sides, ProtoWriter().bytes(63, direction).str())},
                   33),
       computation(4,
                   {constant(40, start), constant(41, bound), instruction(42, "copy", shape(kS32), {40}),
                    instruction(43, "tuple", state, {42, 41}), instruction(44, "while", state, {43}, calls({2, 3}))},
                   44)},
      4);
}

std::optional<int64_t> trips(const std::string& module) {
  const Analysis analysis = analyze(parse_module(module));
  EXPECT_EQ(analysis.loops.size(), 1u);
  return analysis.loops.at(0).trips;
}

TEST(Analysis, CountsTurns) {
  const std::optional<int64_t> kUnknown;
  const int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  const struct {
    int64_t start, step;
    const char* direction;
    int64_t bound;
    std::optional<int64_t> want;
  } kCases[] = {
      {0, 1, "LT", 6, 6},
      {0, 1, "LE", 6, 7},
      {2, 3, "LT", 9, 3},
      {2, 3, "LT", 8, 2},
      {2, 3, "LE", 8, 3},
      {6, 1, "LT", 6, 0},
      {9, 1, "LT", 6, 0},
      {6, -1, "GT", 0, 6},
      {6, -1, "GE", 0, 7},
      {7, -2, "GT", 0, 4},
      {0, 1, "NE", 4, 4},
      {8, -2, "NE", 2, 3},
      {0, 3, "NE", 4, kUnknown},
      {0, -1, "NE", 4, kUnknown},
      {0, 0, "LT", 4, kUnknown},
      {0, -1, "LT", 4, kUnknown},
      {0, 1, "EQ", 0, kUnknown},
      {0, 1, "", 0, kUnknown},
      {kMin, 1, "LT", kMax, kUnknown},
      {kMax, 1, "GT", kMin, kUnknown},
      {kMin, kMax, "LT", kMax, 3},
  };
  for (const auto& c : kCases) {
    const auto label = ::testing::Message() << c.start << " by " << c.step << " while " << c.direction << " " << c.bound;
    EXPECT_EQ(trips(counting_loop(c.start, c.step, c.direction, c.bound)), c.want) << label;
    std::string mirrored = c.direction;
    if (!mirrored.empty() && mirrored[0] != 'N' && mirrored[0] != 'E') mirrored[0] = mirrored[0] == 'L' ? 'G' : 'L';
    EXPECT_EQ(trips(counting_loop(c.start, c.step, mirrored, c.bound, /*bound_first=*/true)), c.want)
        << label << ", mirrored";
  }
}

TEST(Analysis, DoesNotGuessTurns) {
  const std::string state = tuple({shape(kS32)});
  // `next` makes the state's element of instruction 21, the state's; `bound` is instruction 32.
  auto loop = [&](const std::string& next, const std::string& bound, const std::string& start) {
    return module(
        {computation(2, {parameter(20, state), element(21, 20, 0), next, instruction(26, "tuple", state, {23})}, 26),
         computation(3,
                     {parameter(30, state), element(31, 30, 0), bound,
                      instruction(33, "compare", shape(kPred), {31, 32}, ProtoWriter().bytes(63, "LT").str())},
                     33),
         computation(4, {start, instruction(42, "tuple", state, {40}), instruction(43, "while", state, {42}, calls({2, 3}))},
                     43)},
        4);
  };
  const std::string doubled = instruction(23, "add", shape(kS32), {21, 21}),
                    kept = instruction(23, "copy", shape(kS32), {21});
  const std::string unknown = instruction(23, "multiply", shape(kS32), {21, 21});
  for (const std::string& next : {doubled, kept, unknown})
    EXPECT_EQ(trips(loop(next, constant(32, 5), constant(40, 0))), std::nullopt);
  EXPECT_EQ(trips(loop(kept, constant(32, 5), parameter(40, shape(kS32)))), std::nullopt);
  EXPECT_EQ(trips(loop(kept, constant(32, 5), constant(40, 5))), 0);
}

TEST(Analysis, TakesTheCompilersCount) {
  const std::string state = tuple({shape(kS32)});
  auto with_note = [&](const std::string& note) {
    return module({computation(2, {parameter(20, state)}, 20), computation(3, {constant(30, 1)}, 30),
                   computation(4,
                               {parameter(42, state),
                                instruction(43, "while", state, {42}, calls({2, 3}) + ProtoWriter().bytes(43, note).str())},
                               43)},
                  4);
  };
  EXPECT_EQ(trips(with_note(R"({"known_trip_count":{"n":"12"},"x":1})")), 12);
  EXPECT_EQ(trips(with_note(R"({"known_trip_count":{"n":"99999999999999999999"}})")), std::nullopt);
  EXPECT_EQ(trips(with_note(R"({"known_trip_count":{"n":")")), std::nullopt);
  EXPECT_EQ(trips(with_note("")), std::nullopt);
}

// One collective on 2 x 128 bfloat16 of eight devices.
Collective collective(const std::string& opcode, const std::string& more) {
  const Analysis analysis = analyze(
      parse_module(module(
          {computation(1, {parameter(1, shape(kBF16, {2, 128})), instruction(2, opcode, shape(kBF16, {2, 128}), {1}, more)},
                       2)},
          1)),
      8);
  EXPECT_EQ(analysis.collectives.size(), 1u) << opcode;
  return analysis.collectives.empty() ? Collective{} : analysis.collectives[0];
}

std::string field(int number, const ProtoWriter& message) { return ProtoWriter().bytes(number, message.str()).str(); }

TEST(Analysis, ReadsEveryFormOfGroups) {
  const std::string group = ProtoWriter().bytes(1, packed({0, 1, 2, 3})).str(),
                    other = ProtoWriter().bytes(1, packed({4, 5, 6, 7})).str();
  const ProtoWriter iota = ProtoWriter().integer(1, 4).integer(2, 2).bytes(3, packed({8})).bytes(4, packed({0}));
  auto axis = [](const char* name, int64_t size) { return ProtoWriter().bytes(1, name).integer(2, size).str(); };
  auto mesh = [&] { return ProtoWriter().bytes(1, ProtoWriter().bytes(1, axis("a", 2)).bytes(1, axis("b", 4)).str()); };
  const std::string part = ProtoWriter().integer(1, 1).bytes(2, ProtoWriter().integer(1, 2).integer(2, 2).str()).str();
  const struct {
    std::string more;
    int64_t want;
  } kCases[] = {
      {"", 8},  // all
      {ProtoWriter().bytes(49, group).bytes(49, other).str(), 4},
      {field(87, ProtoWriter().bytes(1, group).bytes(1, other)), 4},
      {field(87, ProtoWriter().bytes(2, iota.str())), 2},
      {field(92, iota), 2},
      {field(93, mesh().bytes(2, ProtoWriter().integer(1, 1).str())), 4},
      {field(93, mesh().bytes(2, "").bytes(2, ProtoWriter().integer(1, 1).str())), 8},
      {field(93, mesh().bytes(2, "").bytes(2, part)), 4},
  };
  for (const auto& c : kCases) {
    const Collective reduce = collective("all-reduce", c.more), gather = collective("all-gather-start", c.more),
                     scatter = collective("reduce-scatter", c.more);
    EXPECT_EQ(reduce.group_size, c.want);
    EXPECT_EQ(reduce.kind, "all-reduce");
    EXPECT_EQ(reduce.type, "bf16");
    EXPECT_EQ(reduce.bytes(), 512);
    EXPECT_EQ(gather.kind, "all-gather");
    EXPECT_EQ(gather.bytes(), 512 * c.want);
    EXPECT_EQ(gather.operand_bytes, 512);
    EXPECT_EQ(scatter.bytes(), 512);
    EXPECT_EQ(scatter.result_bytes, 512 / c.want);
  }
}

TEST(Analysis, FindsTheRingOfAPermute) {
  const struct {
    std::vector<std::pair<int64_t, int64_t>> pairs;
    int64_t want;
  } kCases[] = {
      {{{0, 1}, {1, 2}, {2, 3}, {3, 0}}, 4}, {{{2, 3}, {0, 1}, {1, 2}}, 4},  // open, as a pipeline's
      {{{0, 1}, {1, 0}, {2, 3}, {3, 2}}, 2}, {{{0, 0}}, 1},
      {{{0, 2}, {1, 2}, {2, 0}}, 3},  // two senders to one: no permutation, and no endless walk
  };
  for (const auto& c : kCases) {
    std::string more;
    for (const auto& [source, target] : c.pairs) more += field(52, ProtoWriter().integer(1, source).integer(2, target));
    EXPECT_EQ(collective("collective-permute", more).group_size, c.want);
  }
}

TEST(Analysis, CountsAnAsynchronousCollectiveOnce) {
  const std::string f32 = shape(kF32, {4}), channel = integer_field(26, 5);
  const std::string m =
      module({computation(1, {parameter(1, f32), instruction(2, "all-reduce", f32, {1}, channel)}, 2),
              computation(2,
                          {parameter(1, f32), instruction(2, "async-start", tuple({tuple({f32}), f32}), {1}, calls({1})),
                           instruction(3, "async-done", f32, {2}, calls({1})),
                           instruction(4, "all-gather-start", tuple({f32, f32}), {1}),
                           instruction(5, "all-gather-done", f32, {4}), instruction(6, "fusion", f32, {1}, calls({1}))},
                          3)},
             2);
  const Analysis analysis = analyze(parse_module(m), 4);
  ASSERT_EQ(analysis.collectives.size(), 2u);
  EXPECT_EQ(analysis.collectives[0].kind, "all-reduce");
  EXPECT_EQ(analysis.collectives[1].kind, "all-gather");
}

// As TPU's compiler has it: what is summed is sent to the runtime and received again, under one name.
TEST(Analysis, ReadsTransfersBetweenSlices) {
  const std::string f32 = shape(kF32, {4}), large = shape(kF32, {8}), token = ProtoWriter().integer(2, 17).str();
  const auto about = [](const std::string& kind, const std::string& target, const std::string& rendezvous) {
    ProtoWriter all;
    for (const auto& [key, value] : {std::pair<std::string, std::string>{"_xla_host_transfer_rendezvous", rendezvous},
                                     {"_xla_megascale_target", target},
                                     {"_xla_megascale_transfer_type", kind}})
      all.bytes(1, ProtoWriter().bytes(1, key).bytes(2, value).str());
    return ProtoWriter().bytes(68, all.str()).str();
  };
  const std::string sum = about("ALL_REDUCE", "{1,2}x{0:3}", "a"), gather = about("ALL_GATHER", "{1:2}x{0,1}", "b"),
                    odd = about("ALL_REDUCE", "everywhere", "c");
  const std::string m = module(
      {computation(1,
                   {parameter(1, f32), instruction(2, "after-all", token), instruction(3, "send", tuple({f32, shape(kS32), token}), {1, 2}, sum),
                    instruction(4, "recv", tuple({f32, shape(kS32), token}), {2}, sum), instruction(5, "send-done", token, {3}),
                    instruction(6, "negate", f32, {1}), instruction(7, "recv-done", tuple({f32, token}), {4}),
                    instruction(8, "send", tuple({f32, shape(kS32), token}), {1, 2}, gather),
                    instruction(9, "recv", tuple({large, shape(kS32), token}), {2}, gather),
                    instruction(10, "send", tuple({f32, shape(kS32), token}), {1, 2}, odd),
                    instruction(11, "send", tuple({f32, shape(kS32), token}), {1, 2})},
                   7)},
      1);
  const Analysis analysis = analyze(parse_module(m), 8);
  ASSERT_EQ(analysis.collectives.size(), 3u);  // the last send is no transfer between slices
  const Collective &a = analysis.collectives[0], &b = analysis.collectives[1], &c = analysis.collectives[2];
  EXPECT_EQ(a.kind, "all-reduce");
  EXPECT_TRUE(a.between_slices);
  EXPECT_EQ(a.type, "f32");
  EXPECT_EQ(std::pair(a.operand_bytes, a.result_bytes), std::pair(int64_t{16}, int64_t{16}));
  EXPECT_EQ(a.groups.devices(), (std::vector<int64_t>{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(a.end - a.begin, 1u);  // the negation runs meanwhile
  EXPECT_EQ(b.kind, "all-gather");
  EXPECT_EQ(std::pair(b.operand_bytes, b.result_bytes), std::pair(int64_t{16}, int64_t{32}));
  EXPECT_EQ(b.groups.devices(), (std::vector<int64_t>{0, 2, 1, 3}));
  EXPECT_EQ(c.group_size, 8);
}

// Collectives that a program's author wrote may all have the same channel; an instruction that stands alone is never a piece.
TEST(Analysis, TellsCollectivesOfOneChannelApart) {
  const std::string f32 = shape(kF32, {4}), row = shape(kF32, {2}), channel = integer_field(26, 1);
  const std::string scatter = computation(1, {parameter(10, f32), instruction(11, "reduce-scatter", row, {10}, channel)}, 11);
  const auto entry = [&](std::vector<std::string> instructions) {
    instructions.insert(instructions.begin(), parameter(1, f32));
    return analyze(parse_module(module({scatter, computation(2, instructions, 1)}, 2)), 2);
  };
  const struct {
    const char* what;
    Analysis analysis;
    std::vector<std::string> want;
  } kCases[] = {
      {"kinds", entry({instruction(2, "all-gather", f32, {1}, channel), instruction(3, "all-to-all", f32, {1}, channel)}),
       {"all-gather", "all-to-all"}},
      {"one kind twice", entry({instruction(2, "all-to-all", f32, {1}, channel), instruction(3, "all-to-all", f32, {1}, channel)}),
       {"all-to-all", "all-to-all"}},
      {"another in a fusion", entry({instruction(2, "all-to-all", f32, {1}, channel), instruction(3, "fusion", row, {1}, calls({1}))}),
       {"all-to-all", "reduce-scatter"}},
      {"two under way at once",
       entry({instruction(2, "async-start", tuple({tuple({f32}), row}), {1}, calls({1})),
              instruction(3, "async-start", tuple({tuple({f32}), row}), {1}, calls({1})), instruction(4, "async-done", row, {2}),
              instruction(5, "async-done", row, {3})}),
       {"reduce-scatter", "reduce-scatter"}},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> kinds;
    for (const Collective& collective : c.analysis.collectives) kinds.push_back(collective.kind);
    EXPECT_EQ(kinds, c.want) << c.what;
  }
}

TEST(Analysis, BoundsWhatTransfersAndTuplesSay) {
  const auto target = [](const std::string& text) {
    const auto pair = [](const char* key, const std::string& value) { return ProtoWriter().bytes(1, key).bytes(2, value).str(); };
    return field(68, ProtoWriter().bytes(1, pair("_xla_megascale_transfer_type", "ALL_REDUCE")).bytes(1, pair("_xla_megascale_target", text)));
  };
  const std::string f32 = shape(kF32, {4}), token = ProtoWriter().integer(2, 17).str();
  const std::string most = std::to_string(std::numeric_limits<int64_t>::max());
  const std::vector<std::string> targets = {"{1,2}x{" + most + ":" + most + "}", "{1," + most + "}x{0:3}", "{1,2}x{0:99999999}",
                                            "{1}x{2:1}"};
  for (const std::string& text : targets) {
    const Analysis analysis = analyze(parse_module(module(
        {computation(1, {parameter(1, f32), instruction(2, "send", tuple({f32, token}), {1}, target(text))}, 1)}, 1)), 8);
    ASSERT_EQ(analysis.collectives.size(), 1u) << text;
    EXPECT_EQ(analysis.collectives[0].groups.count, 0) << text;
    EXPECT_EQ(analysis.collectives[0].group_size, 8) << text;
  }
  const std::string huge = shape(kF32, {int64_t{1} << 57});
  const std::string sum = instruction(2, "all-reduce", huge, std::vector<int64_t>(16, 1));
  EXPECT_THROW(analyze(parse_module(module({computation(1, {parameter(1, huge), sum}, 2)}, 1))), InvalidArgument);
}

// Begun in the entry, going on in a loop of six iterations, waited for behind it; one that lies in the loop alone runs six times.
TEST(Analysis, CountsACollectiveThatSpansALoopOnce) {
  const std::string f32 = shape(kF32, {4}), state = tuple({shape(kS32)}), channel = integer_field(26, 5), other = integer_field(26, 6);
  const auto begins = [](const char* target) { return ProtoWriter().bytes(28, target).str(); };
  const std::string m = module(
      {computation(1, {parameter(10, f32), instruction(11, "all-gather", f32, {10}, channel),
                       instruction(12, "custom-call", f32, {11}, begins("AsyncCollectiveStart"))}, 12),
       computation(2, {parameter(20, f32), instruction(21, "all-gather", f32, {20}, channel)}, 21),
       computation(3, {parameter(30, f32), instruction(31, "all-gather", f32, {30}, channel),
                       instruction(32, "custom-call", f32, {31}, begins("AsyncCollectiveDone"))}, 32),
       computation(4, {parameter(40, state), element(41, 40, 0), constant(42, 1), instruction(43, "add", shape(kS32), {41, 42}),
                       instruction(44, "iota", f32, {}), instruction(45, "fusion", f32, {44}, calls({2})),
                       instruction(46, "all-reduce", f32, {44}, other), instruction(47, "tuple", state, {43})}, 47),
       computation(5, {parameter(50, state), element(51, 50, 0), constant(52, 6),
                       instruction(53, "compare", shape(kPred), {51, 52}, ProtoWriter().bytes(63, "LT").str())}, 53),
       computation(6, {parameter(60, f32), instruction(61, "fusion", f32, {60}, calls({1})), constant(62, 0),
                       instruction(63, "tuple", state, {62}), instruction(64, "while", state, {63}, calls({4, 5})),
                       instruction(65, "fusion", f32, {61}, calls({3}))}, 65)},
      6);
  const Analysis analysis = analyze(parse_module(m), 4);
  ASSERT_EQ(analysis.collectives.size(), 2u);
  EXPECT_EQ(analysis.collectives[0].kind, "all-gather");
  EXPECT_EQ(analysis.runs(analysis.collectives[0].loop), 1);
  EXPECT_EQ(analysis.collectives[1].kind, "all-reduce");
  EXPECT_EQ(analysis.runs(analysis.collectives[1].loop), 6);
}

TEST(Analysis, CountsMultiplyAddsThatCount) {
  const struct {
    const char* what;
    int64_t input, output;
    WindowDim window;
    double pairs;  // of window and output positions within the input
  } kCases[] = {
      {"a plain window", 10, 8, {.size = 3}, 24},
      {"padding", 10, 10, {.size = 3, .padding_low = 1, .padding_high = 1}, 28},
      {"strides", 10, 4, {.size = 3, .stride = 2}, 12},
      {"strides that start in the padding", 10, 5, {.size = 3, .stride = 2, .padding_low = 1}, 14},
      {"a dilated window", 10, 6, {.size = 3, .window_dilation = 2}, 18},
      {"a dilated input", 4, 7, {.size = 1, .base_dilation = 2}, 4},
      {"a batch of four products as a convolution", 4, 4, {.size = 4, .stride = 3, .padding_low = 0, .base_dilation = 4}, 4},
      {"a window beyond the input", 2, 1, {.size = 9, .padding_low = 3, .padding_high = 4}, 2},
  };
  for (const auto& c : kCases) {
    const WindowDim& w = c.window;
    const std::string window = field(15, ProtoWriter().bytes(1, ProtoWriter()
                                                                    .integer(1, w.size)
                                                                    .integer(2, w.stride)
                                                                    .integer(3, w.padding_low)
                                                                    .integer(4, w.padding_high)
                                                                    .integer(5, w.window_dilation)
                                                                    .integer(6, w.base_dilation)
                                                                    .str()));
    // Input [batch 2, feature 5, spatial], kernel [input feature 5, output feature 7, spatial], output [2, 7, spatial].
    const std::string dims = field(16, ProtoWriter()
                                           .integer(7, 0)
                                           .integer(8, 1)
                                           .integer(11, 2)
                                           .integer(3, 0)
                                           .integer(4, 1)
                                           .integer(6, 2)
                                           .integer(9, 0)
                                           .integer(10, 1)
                                           .integer(12, 2));
    const Analysis analysis = analyze(parse_module(
        module({computation(1,
                            {parameter(1, shape(kF32, {2, 5, c.input})), parameter(2, shape(kF32, {5, 7, w.size}), 1),
                             instruction(3, "convolution", shape(kF32, {2, 7, c.output}), {1, 2}, window + dims)},
                            3)},
               1)));
    EXPECT_EQ(analysis.flops(), 2.0 * 2 * 5 * 7 * c.pairs) << c.what;
  }
}

TEST(Analysis, BelievesAKernelsOwnCount) {
  const struct {
    const char* config;
    double want;
  } kCases[] = {
      {R"({"custom_call_config":{"body":"TUw","cost_estimate":{"flops":"123","bytes_accessed":"7"}}})", 123},
      {R"({"custom_call_config": {"cost_estimate": {"transcendentals": 5, "flops": 456}}})", 456},
      {R"({"custom_call_config":{"flops":"123"}})", 0},
      {R"({"cost_estimate":{"flops":"-5"}})", 0},
      {R"({"cost_estimate":{"flops")", 0},
      {R"({"cost_estimate":{"flops":)", 0},
      {"", 0},
  };
  for (const auto& c : kCases) {
    const Analysis analysis = analyze(parse_module(module(
        {computation(1, {instruction(1, "custom-call", shape(kF32, {4}), {}, ProtoWriter().bytes(43, c.config).str())}, 1)},
        1)));
    EXPECT_EQ(analysis.flops(), c.want) << c.config;
  }
}

}  // namespace
}  // namespace flambeau::compiled
