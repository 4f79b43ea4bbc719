// What a split loop keeps under each policy, told by the types of its rows. That split loops compute the same is device/scan_test.cc.
#include "runtime/partition.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pjrt/pjrt.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"
#include "pjrt/testing/fake_plugin.h"
#include "runtime/internal_ops.h"
#include "runtime/lower.h"
#include "runtime/loop_recording.h"
#include "runtime/recording.h"
#include "targets/target.h"

namespace flambeau::runtime {
namespace {

// What an iteration of the split loop keeps.
int64_t kept_bytes(const SplitLoop& loop) {
  int64_t bytes = 0;
  for (ValueId id : loop.kept) bytes += loop.forward->type(id).bytes();
  return bytes;
}

using Kind = CheckpointPolicy::Kind;

hlo::Value gather(hlo::Builder&, hlo::Value x) { return x; }
const ops::Row kGather = ops::row("flambeau::gather_weight", ops::lower<&gather>());

// A joint graph written by hand: named float32 values.
class Body {
 public:
  Body() : outer_(std::make_unique<Trace>(TraceKind::Capture)) {
    joint_.body = std::make_unique<Trace>(TraceKind::Capture, outer_.get());
    joint_.body->add_input({DType::S64, {}});
  }

  void carry(const std::string& name, const Dims& dims) { bind(name, joint_.body->add_input({DType::F32, dims})), ++joint_.carry; }
  void row(const std::string& name, const Dims& dims) { bind(name, joint_.body->add_input({DType::F32, dims})), ++joint_.stacked; }
  void cotangent(const std::string& name, const Dims& dims) { bind(name, joint_.body->add_input({DType::F32, dims})); }

  void call(const std::string& name, const ops::Row& row, std::vector<CallArgument> arguments) {
    bind(name, *joint_.body->append(row, arguments)[0]);
  }
  void call(const std::string& name, const std::string& op, const std::vector<std::string>& inputs) {
    std::vector<CallArgument> arguments;
    for (const std::string& input : inputs) arguments.push_back(ref(input));
    if (op == "aten::add.Tensor") arguments.push_back(NumberRef{ops::Number{1.0}, false, std::nullopt});
    call(name, *ops::find_row(op), std::move(arguments));
  }
  void copy(const std::string& name, const std::string& input, DType dtype) { call(name, kIdentity, {ref(input), dtype}); }

  TensorRef ref(const std::string& name) const {
    const Type& type = joint_.body->type(ids_.at(name));
    return {storages_.at(name).get(), View::contiguous(type.dims), type.dtype};
  }
  TensorRef transposed(const std::string& name) const {
    TensorRef tensor = ref(name);
    std::swap(tensor.view.sizes[0], tensor.view.sizes[1]);
    std::swap(tensor.view.strides[0], tensor.view.strides[1]);
    return tensor;
  }
  const Dims& dims(const std::string& name) const { return joint_.body->type(ids_.at(name)).dims; }

  JointLoop& finish(const std::string& result, const std::vector<std::string>& gradients, const std::vector<std::string>& rows) {
    joint_.results = {ids_.at(result)};
    for (const std::string& name : gradients) joint_.gradient_results.push_back(ids_.at(name));
    for (const std::string& name : rows) joint_.gradient_rows.push_back(ids_.at(name));
    return joint_;
  }

  // The values that a split keeps, by their types: all have different ones.
  std::set<std::string> names_of(const SplitLoop& loop) const {
    std::set<std::string> names;
    for (ValueId kept : loop.kept)
      for (const auto& [name, id] : ids_)
        if (joint_.body->type(id) == loop.forward->type(kept)) names.insert(name);
    return names;
  }

 private:
  void bind(const std::string& name, ValueId id) {
    ids_[name] = id;
    storages_[name] = joint_.body->bind_new(id, 1).front();
  }

  std::unique_ptr<Trace> outer_;
  JointLoop joint_;
  std::map<std::string, ValueId> ids_;
  std::map<std::string, std::shared_ptr<Storage>> storages_;
};

// A layer whose values all differ in width, so that their types name them: x [32, 100], w [100, 101].
void build(Body& body) {
  body.carry("x", {32, 100});
  body.row("w", {100, 101});
  body.cotangent("dy", {32, 103});
  body.call("g", kGather, {body.ref("w")});
  body.copy("g16", "g", DType::BF16);
  body.copy("g32", "g16", DType::F32);
  body.call("h", "aten::mm", {"x", "g32"});
  body.call("chain", *ops::find_row("aten::constant_pad_nd"),
            {body.ref("h"), Dims{0, 1}, NumberRef{ops::Number{0.0}, false, std::nullopt}});  // [32, 102]
  body.call("t", *ops::find_row("aten::constant_pad_nd"),
            {body.ref("chain"), Dims{0, 1}, NumberRef{ops::Number{0.0}, false, std::nullopt}});  // [32, 103]
  body.copy("h64", "h", DType::F64);
  body.call("dt", "aten::mul.Tensor", {"dy", "t"});
  body.call("dh", *ops::find_row("aten::constant_pad_nd"),
            {body.ref("dt"), Dims{0, -2}, NumberRef{ops::Number{0.0}, false, std::nullopt}});
  body.call("dh64", "aten::mul.Tensor", {"dh", "h64"});
  body.copy("dh32", "dh64", DType::F32);
  body.call("dx", *ops::find_row("aten::mm"), {body.ref("dh32"), body.transposed("g32")});
  body.call("dw", *ops::find_row("aten::mm"), {body.transposed("x"), body.ref("dh32")});
}

TEST(Partition, KeepsWhatThePolicySays) {
  struct Case {
    const char* name;
    CheckpointPolicy policy;
    std::set<std::string> kept;
  };
  const Case cases[] = {
      {"none", {}, {"x", "h", "t"}},  // not the conversions of the weight and of h, nor what lies between h and t
      {"full", {.kind = Kind::Full}, {"x"}},
      {"selective", {.kind = Kind::Selective}, {"x", "h"}},
      {"selective mm", {.kind = Kind::Selective, .ops = {"mm"}}, {"x", "h"}},
      {"selective bmm", {.kind = Kind::Selective, .ops = {"bmm"}}, {"x"}},
      {"selective by name", {.kind = Kind::Selective, .ops = {"constant_pad_nd"}}, {"x", "t"}},
      {"budget 0", {.kind = Kind::Budget, .budget = 0}, {"x"}},
      {"budget without room", {.kind = Kind::Budget, .budget = 0.6}, {"x"}},
      {"budget for one", {.kind = Kind::Budget, .budget = 0.67}, {"x", "h"}},
      {"budget 1", {.kind = Kind::Budget, .budget = 1}, {"x", "h", "t"}},
      {"gathered, none", {.keep_gathered = true}, {"x", "h", "t", "g"}},
      {"gathered, full", {.kind = Kind::Full, .keep_gathered = true}, {"x", "g"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Body body;
    build(body);
    const JointLoop& joint = body.finish("t", {"dx"}, {"dw"});
    SplitLoop loop = split(joint, c.policy);
    std::set<std::string> kept;
    // Of each type one name is in question; the others are the gradient's, or copies.
    for (const std::string& name : body.names_of(loop))
      if (std::set<std::string>{"x", "h", "chain", "t", "g", "g16", "h64"}.contains(name)) kept.insert(name);
    EXPECT_EQ(kept, c.kept);
    EXPECT_EQ(loop.kept.size(), c.kept.size());
  }
}

TEST(Partition, KeepsTheEndOfAChain) {
  Body body;
  body.carry("x", {64, 64});
  body.cotangent("dy", {64, 64});
  body.call("a", "aten::sin", {"x"});
  body.call("b", "aten::cos", {"a"});
  body.call("c", "aten::sin", {"b"});
  body.call("dx", "aten::mul.Tensor", {"dy", "c"});
  SplitLoop loop = split(body.finish("c", {"dx"}, {}), {.kind = Kind::Budget, .budget = 1});
  EXPECT_EQ(loop.kept.size(), 1u);  // c alone: then x is not needed
  EXPECT_EQ(loop.backward->calls().size(), 1u);
}

// Elementwise ops and matrix products at random, whose gradient reads some of them at random.
JointLoop& random_joint(Body& body, std::mt19937& random) {
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  const int64_t widths[] = {4, 16, 64};
  std::vector<std::string> names;
  for (size_t i = 0; i < 3; ++i) {
    body.carry("x" + std::to_string(i), {8, widths[i]});
    names.push_back("x" + std::to_string(i));
  }
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) body.row("w" + std::to_string(i) + std::to_string(j), {widths[i], widths[j]});
  body.cotangent("dy", {8, 1});
  const auto width_index = [&](const std::string& name) { return static_cast<size_t>(std::find(widths, widths + 3, body.dims(name)[1]) - widths); };
  for (int i = 0; i < 24; ++i) {
    const std::string& from = names[below(names.size())];
    std::string name = "v" + std::to_string(i);
    switch (below(4)) {
      case 0: body.call(name, "aten::mm", {from, "w" + std::to_string(width_index(from)) + std::to_string(below(3))}); break;
      case 1: body.call(name, "aten::tanh", {from}); break;
      case 2: body.call(name, "aten::sin", {from}); break;
      default: body.call(name, "aten::add.Tensor", {from, from}); break;
    }
    names.push_back(name);
  }
  body.call("d", "aten::sin", {"dy"});
  std::vector<std::string> gradients;
  for (int i = 0; i < 8; ++i) {
    std::string name = "g" + std::to_string(i);
    body.call(name, "aten::mul.Tensor", {"d", names[below(names.size())]});
    gradients.push_back(name);
  }
  return body.finish(names.back(), {}, gradients);
}

TEST(Partition, StaysWithinTheBudget) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    Body body;
    const JointLoop& joint = random_joint(body, random);
    const int64_t full = kept_bytes(split(joint, {.kind = Kind::Full})), none = kept_bytes(split(joint, {}));
    for (double budget : {0.0, 0.1, 0.3, 0.5, 0.8, 1.0}) {
      SCOPED_TRACE(fmt::format("round {}, budget {}, full {}, none {}", round, budget, full, none));
      const CheckpointPolicy policy{.kind = Kind::Budget, .budget = budget};
      SplitLoop loop = split(joint, policy);
      EXPECT_LE(kept_bytes(loop), std::max(full, static_cast<int64_t>(budget * static_cast<double>(none))));
      EXPECT_EQ(loop.forward->key(), split(joint, policy).forward->key());
      if (budget == 0) EXPECT_EQ(kept_bytes(loop), full);
      if (budget == 1) EXPECT_EQ(loop.backward->key(), split(joint, {}).backward->key());
    }
  }
}

// ---- host memory: compiled for a TPU that is not there, in a process of its own ----------------------------------------------

constexpr int64_t kTurns = 16;

// The forward and the backward loop of a joint graph, as a program: its externals are the carry, the stacked rows, the cotangent.
Lowered program_of(const JointLoop& joint, const CheckpointPolicy& policy) {
  SplitLoop parts = split(joint, policy);
  Trace trace(TraceKind::Capture);
  const Trace& body = *joint.body;
  const auto whole = [&](ValueId id) { return ValueView{id, View::contiguous(trace.type(id).dims), trace.type(id).dtype, true}; };
  const auto input = [&](size_t i, bool stacked) {
    Type type = body.type(body.external_value(i));
    if (stacked) type.dims.insert(type.dims.begin(), kTurns);
    return whole(trace.add_input(type));
  };
  auto forward = std::make_unique<Loop>(), backward = std::make_unique<Loop>();
  for (auto* loop : {forward.get(), backward.get()}) loop->trip_count = kTurns;
  forward->carry = {input(1, false)};
  forward->stacked = {input(2, true)};
  backward->carry = {input(3, false)};
  backward->reverse = true;
  const ValueView rows = forward->stacked[0];
  forward->rows_on_host = backward->stacked_on_host = parts.kept_on_host;
  forward->results = parts.results;
  forward->rows = parts.kept;
  const size_t kept = parts.kept.size();
  // The body of each is inside of this trace only in name: it reads nothing from it.
  forward->body = std::move(parts.forward);
  backward->body = std::move(parts.backward);
  const ValueId first = trace.append_loop(std::move(forward), {});
  for (size_t i = 0; i < kept; ++i) backward->stacked.push_back(whole(first + 1 + static_cast<ValueId>(i)));
  backward->stacked.push_back(rows);
  backward->results = parts.gradient_results;
  backward->rows = parts.gradient_rows;
  const ValueId gradient = trace.append_loop(std::move(backward), {});
  const ValueId outputs[] = {first, gradient, gradient + 1};
  return lower(trace, outputs, {});
}

void compile_for_v5e() {
  pjrt::prepare_to_compile_for_tpu();
  const auto topology = pjrt::Topology::create(pjrt::Plugin::load(pjrt::find_plugin("tpu")), "v5e:2x2x1");
  EXPECT_TRUE(targets::Target::of(*topology).host_memory);
  Body body;
  body.carry("x", {8192, 512});
  body.row("w", {512, 512});
  body.cotangent("dy", {8192, 512});
  body.call("h", "aten::mm", {"x", "w"});
  body.call("y", "aten::tanh", {"h"});
  body.call("dh", "aten::mul.Tensor", {"dy", "y"});
  body.call("dx", *ops::find_row("aten::mm"), {body.ref("dh"), body.transposed("w")});
  body.call("dw", *ops::find_row("aten::mm"), {body.transposed("x"), body.ref("dh")});
  const Lowered program = program_of(body.finish("y", {"dx"}, {"dw"}), {.kind = Kind::Selective, .offload = true});
  const pjrt::MemoryStats memory = topology->compile(hlo::print(*program.graph), {}).memory;
  const int64_t kept = kTurns * 2 * 8192 * 512 * 4;  // x and h: more than the 128 MiB beside the chip's cores would hide
  std::cerr << fmt::format("{} bytes of temporaries, {} in host memory, {} kept", memory.temporary, memory.host, kept) << std::endl;
  EXPECT_GE(memory.host, kept);
  EXPECT_LE(memory.temporary, kept / 2);
}

using TpuPartition = pjrt::LibtpuTest;

TEST_F(TpuPartition, KeepsInHostMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(300);
        compile_for_v5e();
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Partition, RefusesHostMemoryWhereThereIsNone) {
  Engine::start({.loaded = &pjrt::fake::fake_plugin()});
  Recording recording("offload");
  const Type type{DType::F32, {2, 3}};
  const std::shared_ptr<Storage> x = recording.add_input(type);
  const TensorRef carry[] = {{x.get(), View::contiguous(type.dims), type.dtype}};
  LoopRecording loop(4, carry);
  const TensorRef next[] = {{loop.carry()[0].get(), View::contiguous(type.dims), type.dtype}};
  try {
    loop.finish_joint(next, {}, {}, {}, {.offload = true});
    ADD_FAILURE() << "taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("expected a device with host memory"));
  }
}

TEST(CheckpointPolicy, CountsContractionsAsProducts) {
  Body body;
  body.carry("x", {32, 100});
  body.row("w", {40, 100});
  body.call("product", *ops::find_row("aten::mm"), {body.ref("x"), body.transposed("w")});
  body.call("contraction", *ops::find_row("flambeau::dot_general"), {body.ref("x"), body.ref("w"), Dims{-1}, Dims{1}, std::monostate{}});
  const Trace& trace = *body.finish("product", {}, {}).body;
  EXPECT_EQ(cost_of(trace, trace.calls()[0]), cost_of(trace, trace.calls()[1]));
  for (const Call& call : trace.calls()) EXPECT_TRUE(is_of(call, {"matmul"}) && is_of(call, {"mm"}) && !is_of(call, {"bmm"}));
}

TEST(CheckpointPolicy, ReadsListsOfOps) {
  EXPECT_EQ(parse_kept_ops("mm, attention"), (std::vector<std::string>{"mm", "attention"}));
  EXPECT_EQ(parse_kept_ops("aten::silu"), (std::vector<std::string>{"silu"}));
  for (const char* text : {"", "mm,", "mm,relou", "mm attention"}) {
    try {
      parse_kept_ops(text);
      ADD_FAILURE() << "taken: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("expected matmul, mm, bmm, attention, or an op"));
    }
  }
}

}  // namespace
}  // namespace flambeau::runtime
