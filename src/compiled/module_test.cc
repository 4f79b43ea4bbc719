// Reading modules, among them bytes that are none.
#include "compiled/module.h"

#include <gmock/gmock.h>

#include <random>

#include "base/error.h"
#include "compiled/analysis.h"
#include "compiled/test_module.h"

namespace flambeau::compiled {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::string& bytes) {
  try {
    analyze(parse_module(bytes));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

// An entry that adds a parameter to itself in a loop of a fusion's.
std::string good_module() {
  const std::string state = tuple({shape(kS32), shape(kF32, {4, 8})});
  return module({computation(1, {parameter(10, shape(kF32, {4, 8})), instruction(11, "add", shape(kF32, {4, 8}), {10, 10})},
                             11),
                 computation(2,
                             {parameter(20, state), element(21, 20, 0), constant(22, 1),
                              instruction(23, "add", shape(kS32), {21, 22}), element(24, 20, 1, kF32),
                              instruction(25, "fusion", shape(kF32, {4, 8}), {24}, calls({1})),
                              instruction(26, "tuple", state, {23, 25})},
                             26),
                 computation(3,
                             {parameter(30, state), element(31, 30, 0), constant(32, 7),
                              instruction(33, "compare", shape(kPred), {31, 32}, ProtoWriter().bytes(63, "LT").str())},
                             33),
                 computation(4,
                             {constant(40, 0), parameter(41, shape(kF32, {4, 8})), instruction(42, "tuple", state, {40, 41}),
                              instruction(43, "while", state, {42}, calls({2, 3})), element(44, 43, 1, kF32)},
                             44, "main")},
                4) +
         ProtoWriter()
             .bytes(7,
                    ProtoWriter()
                        .bytes(1, ProtoWriter().integer(1, 4).bytes(2, ProtoWriter().bytes(1, packed({41, 40})).str()).str())
                        .str())
             .bytes(8, ProtoWriter().bytes(1, ProtoWriter().integer(2, 0).str()).str())
             .str();
}

TEST(ParseModule, ReadsWhatAnalysesNeed) {
  const Module m = parse_module(good_module());
  EXPECT_EQ(m.name, "m");
  EXPECT_EQ(m.computations.size(), 4u);
  const Computation& entry = m.entry_computation();
  EXPECT_EQ(entry.name, "main");
  EXPECT_THAT(entry.schedule, ElementsAre(1, 0));
  const Instruction& loop = entry.instructions[3];
  EXPECT_EQ(loop.opcode, "while");
  EXPECT_THAT(loop.operands, ElementsAre(2));
  EXPECT_THAT(loop.called, ElementsAre(1, 2));
  EXPECT_TRUE(loop.shape.is_tuple());
  EXPECT_EQ(loop.shape.bytes(), 4 + 4 * 8 * 4);
  EXPECT_EQ(entry.instructions[0].integer, 0);
  EXPECT_THAT(m.aliased_parameters, ElementsAre(0));
  const Analysis a = analyze(m);
  ASSERT_EQ(a.parameters.size(), 1u);
  EXPECT_THAT(a.parameters[0].shape.dims, ElementsAre(4, 8));
  EXPECT_EQ(a.parameters[0].shape.type, "f32");
  EXPECT_TRUE(a.parameters[0].aliased);
  ASSERT_EQ(a.loops.size(), 1u);
  EXPECT_EQ(a.loops[0].trips, 7);
}

std::string config_at(int64_t place) { return ProtoWriter().bytes(99, ProtoWriter().integer(2, place).str()).str(); }

TEST(ParseModule, GivesInstructionsWhatTheyShare) {
  const std::string f32 = shape(kF32);
  const std::string bytes = module({computation(1, {parameter(1, f32), instruction(2, "negate", f32, {1}, config_at(1)),
                                                    instruction(3, "negate", f32, {2}, ProtoWriter().bytes(43, "own").str()),
                                                    instruction(4, "negate", f32, {3}, config_at(0)), instruction(5, "negate", f32, {4}, config_at(1)),
                                                    instruction(6, "negate", f32, {5}, ProtoWriter().bytes(99, "").str())},
                                                6)}, 1);
  const Module m = parse_module(bytes + ProtoWriter().bytes(22, "first").bytes(22, "second").str());
  std::vector<std::string> configs;
  for (const Instruction& i : m.entry_computation().instructions) configs.push_back(i.backend_config);
  EXPECT_THAT(configs, ElementsAre("", "second", "own", "first", "second", ""));
  EXPECT_THAT(refusal(bytes + ProtoWriter().bytes(22, std::string(size_t{200} << 20, 'x')).bytes(22, std::string(size_t{100} << 20, 'x')).str()),
              HasSubstr("too large"));
}

TEST(ParseModule, RefusesWhatIsNoModule) {
  const std::string f32 = shape(kF32);
  auto entry = [](std::vector<std::string> instructions, int64_t root) {
    return module({computation(1, instructions, root)}, 1);
  };
  std::string deep = f32;
  for (int i = 0; i < 1000; ++i) deep = tuple({deep});
  const int64_t large = int64_t{1} << 31;
  const std::string huge_length = std::string("\x1a") + "\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
  const struct {
    const char* what;
    std::string bytes, want;
  } kCases[] = {
      {"nothing", "", "entry computation"},
      {"text", "module @m {}", "broken"},
      {"a length beyond the end", huge_length, "broken"},
      {"a number that does not end", std::string("\x30") + std::string(20, '\xff'), "broken"},
      {"a group's wire type", "\x0b", "broken"},
      {"field zero", std::string("\x00\x00", 2), "broken"},
      {"an unknown entry", module({computation(1, {parameter(1, f32)}, 1)}, 2), "entry computation"},
      {"an unknown root", entry({parameter(1, f32)}, 2), "a root"},
      {"an unknown operand", entry({instruction(1, "negate", f32, {9})}, 1), "before their user"},
      {"itself as an operand", entry({instruction(1, "negate", f32, {1})}, 1), "before their user"},
      {"a later operand", entry({instruction(1, "negate", f32, {2}), parameter(2, f32)}, 1), "before their user"},
      {"the same id twice", entry({parameter(1, f32), parameter(1, f32)}, 1), "unique"},
      {"two computations of an id",
       module({computation(1, {parameter(1, f32)}, 1), computation(1, {parameter(1, f32)}, 1)}, 1), "ids of their own"},
      {"an unknown callee", entry({instruction(1, "call", f32, {}, calls({7}))}, 1), "a computation to call"},
      {"a computation that calls itself", entry({instruction(1, "call", f32, {}, calls({1}))}, 1), "calls itself"},
      {"two that call each other",
       module({computation(1, {instruction(1, "call", f32, {}, calls({2}))}, 1),
               computation(2, {instruction(1, "call", f32, {}, calls({1}))}, 1)},
              1),
       "calls itself"},
      {"a shape a thousand deep", entry({parameter(1, deep)}, 1), "deep"},
      {"a negative dimension", entry({parameter(1, shape(kF32, {-1}))}, 1), "at least 0"},
      {"a shape beyond all sizes", entry({parameter(1, shape(kF32, {large, large, large}))}, 1), "62 bits"},
      {"a tile of many dimensions", entry({parameter(1, placed(kF32, {4}, 0, std::vector<int64_t>(500'000, 1)))}, 1), "few tiles"},
      {"packed integers cut short", entry({parameter(1, f32) + ProtoWriter().bytes(36, "\x80").str()}, 1), "packed"},
      {"an axis that the mesh lacks",
       entry({instruction(1, "all-reduce", f32, {},
                          ProtoWriter().bytes(93, ProtoWriter().bytes(2, ProtoWriter().integer(1, 3).str()).str()).str())},
             1),
       "axis of the mesh"},
      {"a configuration that the module lacks", entry({instruction(1, "negate", f32, {}, config_at(0))}, 1), "configurations"},
      {"a configuration before the first", entry({instruction(1, "negate", f32, {}, config_at(-1))}, 1), "configurations"},
      {"a dot of a dimension that is not there",
       entry({parameter(1, shape(kF32, {2})),
              instruction(2, "dot", f32, {1, 1}, ProtoWriter().bytes(30, ProtoWriter().integer(1, 5).str()).str())},
             2),
       "a dimension below 1"},
  };
  for (const auto& c : kCases) EXPECT_THAT(refusal(c.bytes), HasSubstr(c.want)) << c.what;
}

TEST(ParseModule, BoundsWhatItWalks) {
  const std::string f32 = shape(kF32);
  auto chain = [&](int length, std::vector<int64_t> (*callees)(int64_t)) {
    std::vector<std::string> computations = {computation(0, {parameter(1, f32)}, 1)};
    for (int64_t i = 1; i < length; ++i) {
      std::vector<std::string> instructions;
      for (const int64_t callee : callees(i))
        instructions.push_back(instruction(static_cast<int64_t>(instructions.size()), "call", f32, {}, calls({callee})));
      computations.push_back(computation(i, instructions, 0));
    }
    return module(computations, length - 1);
  };
  EXPECT_THAT(refusal(chain(100'000, [](int64_t i) { return std::vector{i - 1}; })), HasSubstr("deep"));
  EXPECT_THAT(refusal(chain(60, [](int64_t i) { return std::vector{i - 1, i - 1}; })), HasSubstr("visits"));
  EXPECT_EQ(refusal(chain(150, [](int64_t i) { return std::vector{i - 1}; })), "accepted");
}

// Whatever the bytes, the answer is a module or a refusal; the sanitizers see the rest.
TEST(ParseModule, SurvivesEveryPrefixAndManyChanges) {
  const std::string good = good_module();
  ASSERT_EQ(refusal(good), "accepted");
  for (size_t size = 0; size < good.size(); ++size) refusal(good.substr(0, size));
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (int change = 0; change <= round % 4; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    accepted += refusal(bytes) == "accepted";
  }
  EXPECT_GT(accepted, 100);  // changes in names and sizes: not all are seen at the door
}

}  // namespace
}  // namespace flambeau::compiled
