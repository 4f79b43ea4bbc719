// What loops of small modules made by hand are to the model.
#include "plan/loop_roles.h"

#include <gmock/gmock.h>

#include "compiled/test_module.h"

namespace flambeau::plan {
namespace {

using namespace compiled::testing;
using ::testing::ElementsAre;

const std::string kArray = shape(kF32, {4, 1024}), kRow = shape(kF32, {1, 1024}), kIndex = shape(kS32);

LoopRoles roles_of(const std::string& serialized) {
  const compiled::Module module = compiled::parse_module(serialized);
  return loop_roles(module, compiled::analyze(module));
}

// A loop of four iterations over {counter, state...}; `body` makes what instruction 90 and on return.
std::string loop_body(int64_t id, const std::string& state, std::vector<std::string> body, const std::vector<int64_t>& results) {
  std::vector<std::string> all = {parameter(20, state), element(21, 20, 0), constant(22, 1),
                                  instruction(23, "add", kIndex, {21, 22})};
  all.insert(all.end(), body.begin(), body.end());
  std::vector<int64_t> operands = {23};
  operands.insert(operands.end(), results.begin(), results.end());
  all.push_back(instruction(99, "tuple", state, operands));
  return computation(id, all, 99, "body" + std::to_string(id));
}

std::string condition(int64_t id, const std::string& state) {
  return computation(id,
                     {parameter(30, state), element(31, 30, 0), constant(32, 4),
                      instruction(33, "compare", shape(kPred), {31, 32}, ProtoWriter().bytes(63, "LT").str())},
                     33);
}

// A loop that stacks rows into an array, one in the middle, and one that takes them off; `names` are of what each does.
LoopRoles three_loops(const std::vector<std::string>& names) {
  const std::string stacks = tuple({kIndex, kArray, kRow}), plain = tuple({kIndex, kRow});
  auto named = [&](size_t i) { return names.empty() ? std::string() : op_name(names[i]); };
  return roles_of(module(
      {loop_body(1, stacks,
                 {element(40, 20, 1, kArray), element(41, 20, 2, kRow), instruction(42, "negate", kRow, {41}, named(0)),
                  instruction(43, "dynamic-update-slice", kArray, {40, 42, 21, 21})},
                 {43, 42}),
       condition(2, stacks),
       loop_body(3, plain, {element(40, 20, 1, kRow), instruction(42, "negate", kRow, {40}, named(1))}, {42}), condition(4, plain),
       loop_body(5, stacks,
                 {element(40, 20, 1, kArray), element(41, 20, 2, kRow), instruction(42, "dynamic-slice", kRow, {40, 21, 21}),
                  instruction(43, "add", kRow, {41, 42}, named(2))},
                 {40, 43}),
       condition(6, stacks),
       computation(7,
                   {constant(50, 0), parameter(51, kArray), parameter(52, kRow, 1),
                    instruction(53, "tuple", stacks, {50, 51, 52}), instruction(54, "while", stacks, {53}, calls({1, 2})),
                    element(55, 54, 1, kArray), element(56, 54, 2, kRow), instruction(57, "tuple", plain, {50, 56}),
                    instruction(58, "while", plain, {57}, calls({3, 4})), element(59, 58, 1, kRow),
                    instruction(60, "copy", kArray, {55}), instruction(61, "tuple", stacks, {50, 60, 59}),
                    instruction(62, "while", stacks, {61}, calls({5, 6}))},
                   62)},
      7));
}

TEST(LoopRoles, FollowFromStacks) {
  const LoopRoles roles = three_loops({});
  EXPECT_THAT(roles.innermost, ElementsAre(LoopRole::LayersForward, LoopRole::Loss, LoopRole::LayersBackward));
  for (const char* name : {"while.54{1}", "copy.60", "while.62{1}", "dynamic-update-slice.43", "parameter.20{1}"})
    EXPECT_TRUE(roles.saved_activations.contains(name)) << name;
  EXPECT_FALSE(roles.saved_activations.contains("while.54{2}"));
}

TEST(LoopRoles, FollowFromNames) {
  EXPECT_THAT(three_loops({"layers/a", "loss/head", "backward/layers/a"}).innermost,
              ElementsAre(LoopRole::LayersForward, LoopRole::Loss, LoopRole::LayersBackward));
  // A forward loop that does the backward's work ahead still stacks up what that takes off.
  const LoopRoles ahead = three_loops({"backward/layers/a", "loss/head", "backward/layers/a"});
  EXPECT_THAT(ahead.innermost, ElementsAre(LoopRole::LayersForward, LoopRole::Loss, LoopRole::LayersBackward));
  EXPECT_TRUE(ahead.saved_activations.contains("while.54{1}"));
  // Which loops are layers at all, names say.
  const LoopRoles roles = three_loops({"embedding", "step/layers/a", "x"});
  EXPECT_THAT(roles.innermost, ElementsAre(LoopRole::Other, LoopRole::LayersForward, LoopRole::Other));
  EXPECT_TRUE(roles.saved_activations.empty());
}

// A loop over microbatches, most of whose own operations are called after the layers that it holds.
LoopRoles accumulation(const std::string& first, const std::string& inner) {
  const std::string state = tuple({kIndex, kRow});
  const auto loop = [&](int64_t id, const std::string& name) {
    return loop_body(id, state, {element(40, 20, 1, kRow), instruction(42, "negate", kRow, {40}, op_name(name))}, {42});
  };
  // As all backward layers are: a loop within, and a constant of the loss that the compiler moved there.
  const std::string backward =
      loop_body(4, state,
                {element(40, 20, 1, kRow), constant(41, 0), instruction(42, "tuple", state, {41, 40}),
                 instruction(43, "while", state, {42}, calls({7, 5})), element(44, 43, 1, kRow),
                 instruction(45, "broadcast", kRow, {41}, op_name("loss/full")),
                 instruction(46, "add", kRow, {44, 45}, op_name("backward/layers/a")), instruction(47, "negate", kRow, {46}, op_name("backward/layers/a"))},
                {47});
  const std::string batches =
      loop_body(1, state,
                {element(40, 20, 1, kRow), constant(41, 0), instruction(42, "tuple", state, {41, 40}),
                 instruction(43, "while", state, {42}, calls({2, 5})), instruction(44, "while", state, {43}, calls({3, 5})),
                 instruction(45, "while", state, {44}, calls({4, 5})), element(46, 45, 1, kRow),
                 instruction(47, "add", kRow, {40, 46}, op_name("backward/layers/add"))},
                {47});
  return roles_of(module(
      {batches, loop(2, first), loop(3, "loss/head"), backward, condition(5, state),
       computation(6, {constant(50, 0), parameter(51, kRow), instruction(52, "tuple", state, {50, 51}),
                       instruction(53, "while", state, {52}, calls({1, 5}))}, 53),
       loop(7, inner)},
      6));
}

TEST(LoopRoles, SeeAccumulationAroundLayersAndLoss) {
  const LoopRoles roles = accumulation("layers/a", "layers/a");
  EXPECT_THAT(roles.innermost, ElementsAre(LoopRole::Accumulation, LoopRole::LayersForward, LoopRole::Loss, LoopRole::LayersBackward,
                                           LoopRole::LayersForward));
}

TEST(LoopRoles, PassToWhatIsInside) {
  const LoopRoles roles = accumulation("x", "x");
  EXPECT_THAT(roles.innermost, ElementsAre(LoopRole::Accumulation, LoopRole::Accumulation, LoopRole::Loss, LoopRole::LayersBackward,
                                           LoopRole::LayersBackward));
  EXPECT_EQ(roles.of(1), LoopRole::Accumulation);
  EXPECT_EQ(roles.of(4), LoopRole::LayersBackward);
  EXPECT_EQ(roles.of(-1), LoopRole::Other);
}

}  // namespace
}  // namespace flambeau::plan
