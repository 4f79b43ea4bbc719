// What the reader of compiled programs says of programs whose answer is known by hand, as XLA's CPU plugins (eight virtual
// devices) and TPU's compiler (a v5e:2x4) compile them.
#include "compiled/analysis.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "compiled/axes.h"
#include "compiled/buffers.h"
#include "hlo_run.h"
#include "pjrt/topology_compiler.h"

namespace flambeau::tests {
namespace {

using compiled::Analysis;
using compiled::Buffers;
using compiled::Collective;
using compiled::Module;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

class Compilers : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!installed(GetParam())) GTEST_SKIP() << "NOT TESTED, the plugin '" << GetParam() << "' is not installed";
  }
  bool is_tpu() const { return GetParam() == "tpu"; }
  Analysis compile(const std::string& program) const { return analyze(compile_module(program).first, 8); }
  // The second is empty but for TPU's compiler.
  std::pair<Module, Buffers> compile_module(const std::string& program) const {
    const pjrt::CompileOptions options{.num_partitions = 8};
    if (is_tpu()) {
      const auto result =
          pjrt::compile_apart({.plugin = *installed("tpu"), .topology = "v5e:2x4", .program = program, .options = options});
      return {compiled::parse_module(result.optimized_hlo),
              compiled::parse_buffers(result.buffer_assignment, result.live_ranges)};
    }
    const auto client = pjrt::Client::create(pjrt::Plugin::load(*installed(GetParam())), {{"cpu_device_count", int64_t{8}}});
    return {compiled::parse_module(client->compile(program, options)->optimized_hlo()), {}};
  }
};

INSTANTIATE_TEST_SUITE_P(Plugins, Compilers, testing::Values("cpu", "xla-cpu", "tpu"), [](const auto& info) {
  return info.param == "cpu" ? std::string("cpu") : info.param == "tpu" ? std::string("tpu") : std::string("oldest");
});

class ReportingCompilers : public Compilers {};
INSTANTIATE_TEST_SUITE_P(Plugins, ReportingCompilers, testing::Values("tpu"));

// The text with each name replaced by what it stands for.
std::string with(const std::vector<std::pair<std::string, std::string>>& names, std::string text) {
  for (const auto& [name, meaning] : names) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + meaning.size()))
      text.replace(at, name.size(), meaning);
  }
  return text;
}

std::string sharded(const std::string& type, const std::string& sharding) {
  return "tensor<" + type + "> {sdy.sharding = #sdy.sharding<@mesh, " + sharding + ">}";
}

const std::vector<std::pair<std::string, std::string>> kShort = {
    {"$less", "comparison_direction = #stablehlo<comparison_direction LT>"},
    {"$rows_by_columns",
     "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>"},
    {"$rows_by_rows",
     "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]>"},
    {"$i", "tensor<i32>"},
    {"$p", "tensor<i1>"},
};

// Fully sharded data parallelism in small: six layers whose stacked weights are split by rows; each iteration gathers one layer,
// multiplies a batch that is split, and leaves that layer's gradient split by rows again.
const std::string kFsdp = with(kShort, with({{"$split_w", sharded("6x512x512xbf16", R"([{}, {"fsdp"}, {}])")},
                                             {"$split_x", sharded("1024x512xbf16", R"([{"fsdp"}, {}])")},
                                             {"$w", "tensor<6x512x512xbf16>"},
                                             {"$x", "tensor<1024x512xbf16>"},
                                             {"$layer", "tensor<512x512xbf16>"},
                                             {"$one", "tensor<1x512x512xbf16>"}},
                                            R"(module @fsdp {
  sdy.mesh @mesh = <["fsdp"=8]>
  func.func public @main(%w: $split_w, %x: $split_x) -> ($split_w, $split_x) {
    %zero = "stablehlo.constant"() {value = dense<0> : $i} : () -> $i
    %one = "stablehlo.constant"() {value = dense<1> : $i} : () -> $i
    %six = "stablehlo.constant"() {value = dense<6> : $i} : () -> $i
    %none = "stablehlo.constant"() {value = dense<0.0> : $w} : () -> $w
    %last:4 = "stablehlo.while"(%zero, %x, %none, %w) ({
    ^bb0(%i: $i, %a: $x, %grads: $w, %weights: $w):
      %more = "stablehlo.compare"(%i, %six) {$less} : ($i, $i) -> $p
      "stablehlo.return"(%more) : ($p) -> ()
    }, {
    ^bb0(%i: $i, %a: $x, %grads: $w, %weights: $w):
      %slice = "stablehlo.dynamic_slice"(%weights, %i, %zero, %zero) {slice_sizes = array<i64: 1, 512, 512>}
        : ($w, $i, $i, $i) -> $one
      %part = "stablehlo.reshape"(%slice) : ($one) -> $layer
      %layer = sdy.sharding_constraint %part <@mesh, [{}, {}]> : $layer
      %y = "stablehlo.dot_general"(%a, %layer) {$rows_by_columns} : ($x, $layer) -> $x
      %out = "stablehlo.tanh"(%y) : ($x) -> $x
      %grad = "stablehlo.dot_general"(%a, %out) {$rows_by_rows} : ($x, $x) -> $layer
      %split = sdy.sharding_constraint %grad <@mesh, [{"fsdp"}, {}]> : $layer
      %row = "stablehlo.reshape"(%split) : ($layer) -> $one
      %sum = "stablehlo.dynamic_update_slice"(%grads, %row, %i, %zero, %zero) : ($w, $one, $i, $i, $i) -> $w
      %next = "stablehlo.add"(%i, %one) : ($i, $i) -> $i
      "stablehlo.return"(%next, %out, %sum, %weights) : ($i, $x, $w, $w) -> ()
    }) : ($i, $x, $w, $w) -> ($i, $x, $w, $w)
    return %last#2, %last#1 : $w, $x
  }
})"));

TEST_P(Compilers, GatherLayersAndScatterTheirGradients) {
  const Analysis a = compile(kFsdp);
  ASSERT_EQ(a.parameters.size(), 2u);
  EXPECT_THAT(a.parameters[0].shape.dims, ElementsAre(6, 512 / 8, 512));
  EXPECT_THAT(a.parameters[1].shape.dims, ElementsAre(1024 / 8, 512));
  EXPECT_EQ(a.parameters[0].shape.type, "bf16");
  EXPECT_EQ(a.parameters[0].shape.bytes(), 6 * 64 * 512 * 2);
  ASSERT_EQ(a.loops.size(), 1u);
  EXPECT_EQ(a.loops[0].trips, 6);
  EXPECT_TRUE(a.exact());
  // Two products of 128 x 512 x 512 a layer.
  EXPECT_EQ(a.flops(), 6 * 2 * (2.0 * 128 * 512 * 512));

  // XLA's CPU compilers sum bfloat16 as float32, and gather it as such; they do not make reduce-scatters.
  const int64_t element = is_tpu() ? 2 : 4;
  std::map<std::string, const Collective*> by_kind;
  for (const Collective& c : a.collectives) {
    EXPECT_EQ(c.loop, 0) << c.name;
    EXPECT_EQ(a.runs(c.loop), 6);
    EXPECT_EQ(c.group_size, 8);
    EXPECT_EQ(c.bytes(), 512 * 512 * element) << c.name;
    EXPECT_EQ(c.type, is_tpu() ? "bf16" : "f32");
    EXPECT_TRUE(by_kind.emplace(c.kind, &c).second) << "a second " << c.kind;
  }
  ASSERT_EQ(by_kind.size(), 2u);
  ASSERT_TRUE(by_kind.contains("all-gather"));
  EXPECT_EQ(by_kind["all-gather"]->operand_bytes, 512 * 512 * element / 8);
  ASSERT_TRUE(by_kind.contains(is_tpu() ? "reduce-scatter" : "all-reduce"));
  if (is_tpu()) {
    EXPECT_EQ(by_kind["reduce-scatter"]->result_bytes, 512 * 512 * element / 8);
  }
}

// Five layers in each of three iterations, and one more.
const std::string kNest = with(kShort, with({{"$split", sharded("256x256xf32", R"([{"a", "b"}, {}])")},
                                             {"$whole", sharded("256x256xf32", "[{}, {}]")},
                                             {"$t", "tensor<256x256xf32>"}},
                                            R"(module @nest {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%x: $split, %w: $whole) -> ($split) {
    %zero = "stablehlo.constant"() {value = dense<0> : $i} : () -> $i
    %one = "stablehlo.constant"() {value = dense<1> : $i} : () -> $i
    %three = "stablehlo.constant"() {value = dense<3> : $i} : () -> $i
    %five = "stablehlo.constant"() {value = dense<5> : $i} : () -> $i
    %outer:2 = "stablehlo.while"(%zero, %x) ({
    ^bb0(%i: $i, %a: $t):
      %more = "stablehlo.compare"(%i, %three) {$less} : ($i, $i) -> $p
      "stablehlo.return"(%more) : ($p) -> ()
    }, {
    ^bb0(%i: $i, %a: $t):
      %inner:2 = "stablehlo.while"(%zero, %a) ({
      ^bb0(%j: $i, %b: $t):
        %more = "stablehlo.compare"(%j, %five) {$less} : ($i, $i) -> $p
        "stablehlo.return"(%more) : ($p) -> ()
      }, {
      ^bb0(%j: $i, %b: $t):
        %product = "stablehlo.dot_general"(%b, %w) {$rows_by_columns} : ($t, $t) -> $t
        %out = "stablehlo.tanh"(%product) : ($t) -> $t
        %after = "stablehlo.add"(%j, %one) : ($i, $i) -> $i
        "stablehlo.return"(%after, %out) : ($i, $t) -> ()
      }) : ($i, $t) -> ($i, $t)
      %product = "stablehlo.dot_general"(%inner#1, %w) {$rows_by_columns} : ($t, $t) -> $t
      %out = "stablehlo.tanh"(%product) : ($t) -> $t
      %after = "stablehlo.add"(%i, %one) : ($i, $i) -> $i
      "stablehlo.return"(%after, %out) : ($i, $t) -> ()
    }) : ($i, $t) -> ($i, $t)
    return %outer#1 : $t
  }
})"));

TEST_P(Compilers, NestLoops) {
  const Analysis a = compile(kNest);
  ASSERT_EQ(a.loops.size(), 2u);
  EXPECT_EQ(a.loops[0].trips, 3);
  EXPECT_EQ(a.loops[0].parent, -1);
  EXPECT_EQ(a.loops[1].trips, 5);
  EXPECT_EQ(a.loops[1].parent, 0);
  EXPECT_THAT(a.nest(1), ElementsAre(0, 1));
  EXPECT_EQ(a.runs(1), 15);
  EXPECT_EQ(a.flops(), (15 + 3) * 2.0 * (256 / 8) * 256 * 256);
  EXPECT_TRUE(a.collectives.empty());
}

// A product for each of sixteen batches, split over devices; TPU's compiler makes it a convolution.
TEST_P(Compilers, CountABatchedProduct) {
  const std::string a = sharded("16x128x64xf32", R"([{"a"}, {}, {}])"), b = sharded("16x64x256xf32", R"([{"a"}, {}, {}])"),
                    c = sharded("16x128x256xf32", R"([{"a"}, {}, {}])");
  const Analysis analysis = compile("module @batch {\nsdy.mesh @mesh = <[\"a\"=8]>\nfunc.func public @main(%a: " + a +
                                    ", %b: " + b + ") -> (" + c + R"() {
    %0 = "stablehlo.dot_general"(%a, %b) {dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0],
      rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>}
      : (tensor<16x128x64xf32>, tensor<16x64x256xf32>) -> tensor<16x128x256xf32>
    return %0 : tensor<16x128x256xf32>
  }
})");
  EXPECT_EQ(analysis.flops(), 16 / 8 * 2.0 * 128 * 64 * 256);
}

// Written by hand, over one axis of a mesh of 2 x 4 each.
const std::string kCollectives =
    with({{"$split", sharded("1024x256xf32", R"([{"a", "b"}, {}])")},
          {"$sum", R"(({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = "stablehlo.add"(%l, %r) : (tensor<f32>, tensor<f32>) -> tensor<f32>
        "stablehlo.return"(%s) : (tensor<f32>) -> ()
    }))"},
          {"$rows", "replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>"},
          {"$columns", "replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>"},
          {"$ring",
           "source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0], "
           "[4, 5], [5, 6], [6, 7], [7, 4]]> : tensor<8x2xi64>"},
          {"$channel", "channel_handle = #stablehlo.channel_handle<handle ="},
          {"$t", "tensor<128x256xf32>"},
          {"$long", "tensor<512x256xf32>"}},
         R"(module @collectives {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%x: $split) -> ($split) {
    %out = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", "b"}, {}]>] out_shardings=[<@mesh, [{"a", "b"}, {}]>]
        manual_axes={"a", "b"} (%p: $t) {
      %0 = "stablehlo.all_gather"(%p) {all_gather_dim = 0 : i64, $rows, use_global_device_ids, $channel 1, type = 1>}
        : ($t) -> $long
      %1 = "stablehlo.tanh"(%0) : ($long) -> $long
      %2 = "stablehlo.reduce_scatter"(%1) $sum {scatter_dimension = 0 : i64, $rows, use_global_device_ids,
        $channel 2, type = 1>} : ($long) -> $t
      %3 = "stablehlo.tanh"(%2) : ($t) -> $t
      %4 = "stablehlo.all_reduce"(%3) $sum {$columns, use_global_device_ids, $channel 3, type = 1>} : ($t) -> $t
      %5 = "stablehlo.tanh"(%4) : ($t) -> $t
      %6 = "stablehlo.all_to_all"(%5) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, $rows,
        $channel 4, type = 1>} : ($t) -> $t
      %7 = "stablehlo.tanh"(%6) : ($t) -> $t
      %8 = "stablehlo.collective_permute"(%7) {$ring, $channel 5, type = 1>} : ($t) -> $t
      sdy.return %8 : $t
    } : (tensor<1024x256xf32>) -> tensor<1024x256xf32>
    return %out : tensor<1024x256xf32>
  }
})");

TEST_P(Compilers, TellCollectivesApart) {
  const compiled::MeshAxes kMesh = {{"a", 2}, {"b", 4}};
  const Analysis a = compile(kCollectives);
  std::vector<std::tuple<std::string, int64_t, int64_t>> got;
  for (const Collective& c : a.collectives) {
    EXPECT_EQ(c.type, "f32");
    EXPECT_EQ(c.loop, -1);
    got.emplace_back(c.kind, c.bytes(), c.group_size);
    EXPECT_EQ(compiled::axes_name(axes_of(c, kMesh), kMesh), c.kind == "all-reduce" ? "a" : "b") << c.kind;
  }
  constexpr int64_t kPart = 128 * 256 * 4;
  using Found = std::tuple<std::string, int64_t, int64_t>;
  EXPECT_THAT(got, UnorderedElementsAre(Found("all-gather", 4 * kPart, 4), Found("reduce-scatter", 4 * kPart, 4),
                                        Found("all-reduce", kPart, 2), Found("all-to-all", kPart, 4),
                                        Found("collective-permute", kPart, 4)));
}

// ---- memory and its traffic ---------------------------------------------------------------------------------------------

// Sizes of 64 MiB a device: none fits TPU's memory on the chip, whose use is the compiler's choice.
const std::string kLarge = with({{"$split", sharded("8x4096x4096xf32", R"([{"a"}, {}, {}])")},
                                 {"$t", "tensor<8x4096x4096xf32>"}},
                                R"(module @large {
  sdy.mesh @mesh = <["a"=8]>
  func.func public @main(%x: $split, %y: $split) -> ($split) {
    %0 = "stablehlo.add"(%x, %y) : ($t, $t) -> $t
    %1 = "stablehlo.tanh"(%0) : ($t) -> $t
    return %1 : $t
  }
})");

TEST_P(Compilers, ReadAndWriteEachArrayOnce) {
  constexpr double kArray = 4096.0 * 4096 * 4;
  const Analysis a = compile(kLarge);
  ASSERT_EQ(a.operations.size(), 1u);  // one fusion
  EXPECT_EQ(a.operations[0].bytes_read, 2 * kArray);
  EXPECT_EQ(a.operations[0].bytes_written, kArray);
}

// Eight layers of 64 MiB, whole on every device. Each iteration takes one off and puts one on a stack: of both it touches a slice.
const std::string kStack = with(kShort, with({{"$split_w", sharded("8x4096x4096xf32", R"([{}, {}, {}])")},
                                              {"$w", "tensor<8x4096x4096xf32>"},
                                              {"$one", "tensor<1x4096x4096xf32>"},
                                              {"$x", "tensor<4096x4096xf32>"}},
                                             R"(module @stack {
  sdy.mesh @mesh = <["a"=8]>
  func.func public @main(%w: $split_w) -> ($split_w) {
    %zero = "stablehlo.constant"() {value = dense<0> : $i} : () -> $i
    %one = "stablehlo.constant"() {value = dense<1> : $i} : () -> $i
    %eight = "stablehlo.constant"() {value = dense<8> : $i} : () -> $i
    %none = "stablehlo.constant"() {value = dense<0.0> : $w} : () -> $w
    %last:3 = "stablehlo.while"(%zero, %none, %w) ({
    ^bb0(%i: $i, %stack: $w, %weights: $w):
      %more = "stablehlo.compare"(%i, %eight) {$less} : ($i, $i) -> $p
      "stablehlo.return"(%more) : ($p) -> ()
    }, {
    ^bb0(%i: $i, %stack: $w, %weights: $w):
      %slice = "stablehlo.dynamic_slice"(%weights, %i, %zero, %zero) {slice_sizes = array<i64: 1, 4096, 4096>}
        : ($w, $i, $i, $i) -> $one
      %out = "stablehlo.tanh"(%slice) : ($one) -> $one
      %sum = "stablehlo.dynamic_update_slice"(%stack, %out, %i, %zero, %zero) : ($w, $one, $i, $i, $i) -> $w
      %next = "stablehlo.add"(%i, %one) : ($i, $i) -> $i
      "stablehlo.return"(%next, %sum, %weights) : ($i, $w, $w) -> ()
    }) : ($i, $w, $w) -> ($i, $w, $w)
    return %last#1 : $w
  }
})"));

TEST_P(Compilers, TouchSlicesOfStacks) {
  constexpr double kLayer = 4096.0 * 4096 * 4;
  const Analysis a = compile(kStack);
  double in_loop = 0;
  for (const auto& o : a.operations) in_loop += o.loop >= 0 ? o.bytes() * a.runs(o.loop) : 0;
  // Each layer once in and once out; counters besides.
  EXPECT_GE(in_loop, 8 * 2 * kLayer);
  EXPECT_LT(in_loop, 8 * 2 * kLayer * 1.001);
}

// The reports' sizes are what the module's layouts say, in whole granules; names of one are names of the other.
TEST_P(ReportingCompilers, ReportTheBuffersOfTheirModule) {
  const auto [module, buffers] = compile_module(kFsdp);
  std::map<std::string, const compiled::Shape*> shapes;
  for (const auto& computation : module.computations) {
    for (const auto& i : computation.instructions) shapes[i.name] = &i.shape;
  }
  const Analysis a = analyze(module, 8);
  int parameters = 0, checked = 0, with_range = 0;
  for (const auto& allocation : buffers.allocations) {
    parameters += allocation.parameter >= 0;
    if (!allocation.in_hbm()) continue;
    for (const auto& value : allocation.values) {
      with_range += value.first >= 0 && value.last < buffers.schedule_length;
      if (value.name.ends_with('}') || !shapes.contains(value.name) || shapes[value.name]->is_tuple()) continue;
      EXPECT_EQ((shapes[value.name]->laid_out_bytes() + 511) / 512 * 512, value.size) << value.name << " " << value.shape;
      EXPECT_EQ(compiled::bytes_of_shape(value.shape), shapes[value.name]->bytes()) << value.shape;
      ++checked;
    }
  }
  EXPECT_EQ(parameters, static_cast<int>(a.parameters.size()));
  EXPECT_GE(checked, 5);
  EXPECT_GE(with_range, 5);
  EXPECT_GE(buffers.hbm_bytes(), a.parameters[0].shape.bytes() * 2 + a.parameters[1].shape.bytes() * 2);
}

}  // namespace
}  // namespace flambeau::tests
