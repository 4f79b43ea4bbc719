#include "compiled/dependence.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "compiled/test_module.h"

namespace flambeau::compiled {
namespace {

using namespace testing;

// {counter, a, b, c}: an iteration gives {counter + 1, a, a + b, b}; so c depends on what a and b are from the second iteration on.
TEST(Dependence, GoesThroughLoopsElementByElement) {
  const std::string f32 = shape(kF32, {4}), state = tuple({shape(kS32), f32, f32, f32});
  const Module m = parse_module(module(
      {computation(1,
                   {parameter(20, state), element(21, 20, 0), constant(22, 1), instruction(23, "add", shape(kS32), {21, 22}),
                    element(24, 20, 1, f32), element(25, 20, 2, f32), instruction(26, "add", f32, {24, 25}),
                    instruction(27, "tuple", state, {23, 24, 26, 25})},
                   27),
       computation(2,
                   {parameter(30, state), element(31, 30, 0), constant(32, 4),
                    instruction(33, "compare", shape(kPred), {31, 32}, ProtoWriter().bytes(63, "LT").str())},
                   33),
       computation(3, {parameter(1, f32), instruction(2, "negate", f32, {1})}, 2),
       computation(4,
                   {constant(40, 0), parameter(41, f32), parameter(42, f32, 1), parameter(43, f32, 2),
                    instruction(44, "copy", f32, {41}), instruction(45, "tuple", state, {40, 44, 42, 43}),
                    instruction(46, "while", state, {45}, calls({1, 2})), element(47, 46, 3, f32),
                    instruction(48, "fusion", f32, {47}, calls({3})), element(49, 46, 1, f32),
                    instruction(50, "fusion", f32, {49}, calls({3}))},
                   48)},
      4));
  const auto known = dependence(m, {1, 2, 4});
  const struct {
    const char* value;
    uint32_t bits;
    int64_t parameter;
  } kCases[] = {
      {"parameter.41", 1, 0},
      {"copy.44", 1, 0},
      {"while.46{0}", 0, Dependence::kNone},
      {"while.46{1}", 1, 0},
      {"while.46{2}", 3, Dependence::kSeveral},
      {"while.46{3}", 7, Dependence::kSeveral},
      {"parameter.20{2}", 3, Dependence::kSeveral},
      {"fusion.48", 7, Dependence::kSeveral},
      {"fusion.50", 1, 0},
  };
  for (const auto& c : kCases) {
    ASSERT_TRUE(known.contains(c.value)) << c.value;
    EXPECT_EQ(known.at(c.value).bits, c.bits) << c.value;
    EXPECT_EQ(known.at(c.value).parameter, c.parameter) << c.value;
  }
}

// Tuples, each of the one before many times.
TEST(Dependence, BoundsWhatTuplesHold) {
  const auto tuples = [](int64_t count, size_t times) {
    std::vector<std::string> instructions = {parameter(0, shape(kF32, {4}))};
    for (int64_t i = 1; i <= count; ++i)
      instructions.push_back(instruction(i, "tuple", shape(kF32), std::vector<int64_t>(times, i - 1)));
    return parse_module(module({computation(1, instructions, 0)}, 1));
  };
  EXPECT_EQ(dependence(tuples(3, 2), {1}).size(), 1u + 3 + 7 + 15);
  EXPECT_THROW(dependence(tuples(6, 3000), {1}), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::compiled
