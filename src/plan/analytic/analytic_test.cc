// The analytic mode on programs small enough to count by hand, and on a whole step against what libtpu answered.
#include "plan/analytic/analytic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hlo/builder.h"
#include "plan/analytic/fusion.h"
#include "plan/pod/pod.h"

namespace flambeau::plan {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::DotDims;
using hlo::Graph;
using hlo::Sharding;
using hlo::Value;
using Axes = std::vector<std::string>;

Sharding sharding(const std::vector<Axes>& dims) {
  Sharding result;
  for (const Axes& axes : dims) result.dims.push_back({axes});
  return result;
}

struct Program {
  Graph graph;
  Builder b{graph};

  explicit Program(std::vector<hlo::MeshAxis> axes) { graph.set_mesh({std::move(axes)}); }
  Value parameter(Dims dims, const std::vector<Axes>& split, DType dtype = DType::F32) {
    return graph.add_parameter({dtype, std::move(dims)}, {.sharding = sharding(split)});
  }
  AnalyticPlan analyze(std::vector<Value> results, int64_t on_chip = 0) {
    graph.set_results(std::move(results));
    return analyze_graph(graph, {}, on_chip);
  }
};

const CollectiveGroup& only(const AnalyticPlan& plan) {
  EXPECT_EQ(plan.collectives.size(), 1u);
  static const CollectiveGroup none;
  return plan.collectives.empty() ? none : plan.collectives.front();
}

// ---- layouts ------------------------------------------------------------------------------------------------------------------

TEST(Layouts, PassThroughOperations) {
  Program p({{"a", 2}, {"b", 4}});
  const Value x = p.parameter({8, 16, 12}, {{"a"}, {"b"}, {}});
  const AxisSet a = 1, b = 2;
  const Value turned = p.b.transpose(x, {2, 0, 1});
  const Value merged = p.b.reshape(x, {8, 16 * 12});          // the major dimension stays split
  const Value lost = p.b.reshape(x, {8 * 16, 12});            // b splits the minor of two
  const Value apart = p.b.reshape(merged, {8, 4, 48});
  const Value sum = p.b.reduce(x, {0}, hlo::Reduction::Sum);
  const Value wide = p.b.broadcast_in_dim(sum, {5, 16, 12}, {1, 2});
  const Value cut = p.b.slice_dim(x, 1, 0, 8);
  const Value product = p.b.dot_general(x, p.b.constant(DType::F32, 1.0, {12, 7}), DotDims{{}, {}, {2}, {0}});
  p.graph.set_results({turned, lost, apart, wide, cut, product});
  const Layouts layouts(p.graph);
  EXPECT_EQ(layouts.of(turned), (Layout{0, a, b}));
  EXPECT_EQ(layouts.of(merged), (Layout{a, b}));
  EXPECT_EQ(layouts.of(lost), (Layout{a, 0}));
  EXPECT_EQ(layouts.of(apart), (Layout{a, b, 0}));
  EXPECT_EQ(layouts.of(wide), (Layout{0, b, 0}));
  EXPECT_EQ(layouts.of(cut), (Layout{a, 0, 0}));
  EXPECT_EQ(layouts.of(product), (Layout{a, b, 0}));
  EXPECT_EQ(layouts.local_dims(product), (Dims{4, 4, 7}));
}

TEST(Layouts, PassThroughLoopsAndBackwards) {
  Program p({{"a", 4}});
  const Value x = p.parameter({8, 16}, {{"a"}, {}});
  const Value zeros = p.b.constant(DType::F32, 0.0, {3, 8, 16});
  const auto last = p.b.for_loop(3, std::array{zeros}, [&](Builder& b, std::span<const Value> carry) {
    const Value zero = b.constant(DType::S32, 0);
    const Value starts[] = {carry[0], zero, zero};
    return std::vector{b.dynamic_update_slice(carry[1], b.reshape(b.exp(x), {1, 8, 16}), starts)};
  });
  const Value before = p.b.sin(p.b.iota({DType::F32, {8, 16}}, 1));
  const Value hinted = p.b.sharding_constraint(before, sharding({{}, {"a"}}));
  p.graph.set_results({last[0], hinted});
  const Layouts layouts(p.graph);
  EXPECT_EQ(layouts.of(last[0]), (Layout{0, 1, 0}));
  EXPECT_EQ(layouts.of(zeros), (Layout{0, 1, 0}));
  EXPECT_EQ(layouts.of(before), (Layout{0, 1}));
}

TEST(Layouts, WhatDoesNotDivideIsNotSplit) {
  Program p({{"a", 4}});
  const Value x = p.parameter({8, 6}, {{"a"}, {}});
  const Value y = p.b.reshape(x, {2, 24});
  p.graph.set_results({y});
  EXPECT_EQ(Layouts(p.graph).of(y), (Layout{0, 0}));
}

// ---- work ---------------------------------------------------------------------------------------------------------------------

TEST(Analytic, GathersAWeight) {
  Program p({{"shard", 4}});
  const Value x = p.parameter({8, 16}, {{"shard"}, {}}), w = p.parameter({16, 32}, {{"shard"}, {}});
  const Value whole = p.b.sharding_constraint(w, sharding({{}, {}}));
  const AnalyticPlan plan = p.analyze({p.b.dot_general(x, whole, DotDims{{}, {}, {1}, {0}})});
  EXPECT_EQ(plan.work.flops, 2.0 * 2 * 16 * 32);
  EXPECT_EQ(only(plan).kind, "all-gather");
  EXPECT_EQ(only(plan).axes, "shard");
  EXPECT_EQ(only(plan).group_size, 4);
  EXPECT_EQ(only(plan).type, "f32");
  EXPECT_EQ(only(plan).bytes, 16.0 * 32 * 4);
  EXPECT_EQ(plan.work.collective_bytes, 16.0 * 32 * 4);
}

// Where devices along another axis have parts of the same sum, it does not go around a ring.
TEST(Analytic, RingsSumOverOneAxis) {
  for (const bool both : {false, true}) {
    Program p({{"replicate", 2}, {"shard", 8}});
    const Axes rows = both ? Axes{"replicate", "shard"} : Axes{"shard"};
    const Value x = p.parameter({1 << 14, 1 << 13}, {rows, {}}, DType::BF16);
    const Value y = p.parameter({1 << 14, 1024}, {rows, {}}, DType::BF16);
    const Value w = p.b.dot_general(x, y, DotDims{{}, {}, {0}, {0}}, DType::F32);
    const AnalyticPlan plan = p.analyze({p.b.sharding_constraint(w, sharding({{"shard"}, {}}))});
    std::vector<std::string> kinds;
    for (const CollectiveGroup& c : plan.collectives) kinds.push_back(c.kind + " " + c.axes);
    const std::vector<std::string> rings{"collective-permute shard"}, sums{"reduce-scatter shard", "all-reduce replicate"};
    EXPECT_EQ(kinds, both ? sums : rings);
  }
}

// y = x w with the summed index split: parts are added up, in their type.
TEST(Analytic, AddsUpParts) {
  struct Case {
    std::vector<Axes> result;
    const char* kind;
    DType dtype;
    Dims x, w;
    double bytes, count;
  };
  const Case cases[] = {
      {{{}, {}}, "all-reduce", DType::F32, {8, 16}, {16, 256}, 8 * 256 * 4, 1},
      {{{}, {}}, "all-reduce", DType::BF16, {8, 16}, {16, 256}, 8 * 256 * 2, 1},
      {{{"tensor"}, {}}, "reduce-scatter", DType::BF16, {8, 16}, {16, 256}, 8 * 256 * 2, 1},
      {{{}, {"tensor"}}, "all-reduce", DType::F32, {8, 16}, {16, 256}, 8 * 256 * 4, 1},       // 32 of 128 lanes
      {{{}, {"tensor"}}, "reduce-scatter", DType::F32, {8, 16}, {16, 1024}, 8 * 1024 * 4, 1},
      {{{"tensor"}, {}}, "collective-permute", DType::BF16, {1 << 14, 1 << 13}, {1 << 13, 256}, 9.0 / 8 * (1 << 14) * 256 * 2, 9},
  };
  for (const Case& c : cases) {
    Program p({{"tensor", 8}});
    const Value x = p.parameter(c.x, {{}, {"tensor"}}, c.dtype), w = p.parameter(c.w, {{"tensor"}, {}}, c.dtype);
    const Value y = p.b.sharding_constraint(p.b.dot_general(x, w, DotDims{{}, {}, {1}, {0}}), sharding(c.result));
    const AnalyticPlan plan = p.analyze({y});
    EXPECT_EQ(plan.work.flops, 2.0 * double(c.x[0]) * double(c.x[1]) / 8 * double(c.w[1]));
    EXPECT_EQ(only(plan).kind, c.kind);
    EXPECT_EQ(only(plan).bytes, c.bytes);
    EXPECT_EQ(only(plan).count, c.count);
  }
}

TEST(Analytic, ExchangesWhatMovesToAnotherDimension) {
  Program p({{"a", 4}});
  const Value x = p.parameter({8, 16}, {{"a"}, {}});
  const AnalyticPlan plan = p.analyze({p.b.sharding_constraint(x, sharding({{}, {"a"}}))});
  EXPECT_EQ(only(plan).kind, "all-to-all");
  EXPECT_EQ(only(plan).bytes, 2.0 * 16 * 4);
}

TEST(Analytic, CollectivesOfTheProgramRunOverTheirAxes) {
  Program p({{"a", 2}, {"b", 3}});
  const Value x = p.parameter({12, 4}, {{"a", "b"}, {}});
  const Sharding split = sharding({{"a", "b"}, {}}), over_a = sharding({{"a"}, {}});
  const auto gather = [](Builder& b, std::span<const Value> local) {
    return std::vector{b.all_gather(local[0], 0, {{0, 1, 2}, {3, 4, 5}}, 1)};
  };
  const auto sums = p.b.manual_computation(std::array{x}, std::array{split}, std::array{over_a}, {"a", "b"}, gather);
  const AnalyticPlan plan = p.analyze({sums[0]});
  EXPECT_EQ(only(plan).kind, "all-gather");
  EXPECT_EQ(only(plan).axes, "b");
  EXPECT_EQ(only(plan).bytes, 6.0 * 4 * 4);
}

TEST(Analytic, LoopsMultiply) {
  Program p({{"a", 2}});
  const Value x = p.parameter({8, 8}, {{"a"}, {}}), w = p.parameter({8, 8}, {{"a"}, {}});
  const auto last = p.b.for_loop(3, std::array{x}, [&](Builder& outer, std::span<const Value> state) {
    return outer.for_loop(5, std::array{state[1]}, [&](Builder& b, std::span<const Value> carry) {
      return std::vector{b.dot_general(carry[1], b.sharding_constraint(w, sharding({{}, {}})), DotDims{{}, {}, {1}, {0}})};
    });
  });
  const AnalyticPlan plan = p.analyze({last[0]});
  EXPECT_EQ(plan.work.flops, 15.0 * 2 * 4 * 8 * 8);
  EXPECT_EQ(only(plan).count, 15);
  EXPECT_EQ(only(plan).bytes, 15.0 * 8 * 8 * 4);
}

// Sums of microbatches: their loop is neither of the layers that it holds.
TEST(Analytic, TellsLoopsByTheirSites) {
  Program p({{"a", 2}});
  const Value x = p.parameter({8, 8}, {{}, {}}), w = p.parameter({8, 8}, {{}, {}});
  const auto layers = [&](Builder& outer, const Value& from, const char* site) {
    outer.set_site(site);
    return outer.for_loop(3, std::array{from}, [&](Builder& b, std::span<const Value> state) {
      b.set_site(site);
      return b.for_loop(2, std::array{state[1]}, [&](Builder& inner, std::span<const Value> carry) {
        inner.set_site("layers/attention");
        return std::vector{inner.dot_general(carry[1], w, DotDims{{}, {}, {1}, {0}})};
      });
    })[0];
  };
  const auto sum = p.b.for_loop(5, std::array{x}, [&](Builder& b, std::span<const Value> state) {
    const Value y = layers(b, state[1], "layers/loop");
    b.set_site("loss/loop");
    const Value z = b.for_loop(1, std::array{y}, [&](Builder& inner, std::span<const Value> carry) {
      inner.set_site("loss/head");
      return std::vector{inner.dot_general(carry[1], w, DotDims{{}, {}, {1}, {0}})};
    })[0];
    const Value dx = layers(b, z, "backward/layers/loop");
    b.set_site("backward/layers/add");
    return std::vector{b.add(b.add(state[1], dx), b.sin(dx))};
  });
  const AnalyticPlan plan = p.analyze({sum[0]});
  const double product = 2.0 * 8 * 8 * 8;
  const std::map<std::string, double> want = {
      {"layers, forward", 5 * 6 * product}, {"accumulation", 0}, {"loss", 5 * product}, {"layers, backward", 5 * 6 * product}, {"outside of the layers", 0}};
  EXPECT_EQ(plan.flops_at, want);
}

TEST(Analytic, BelievesAKernelsOwnCount) {
  Program p({{"a", 2}});
  const Value x = p.parameter({256, 512}, {{"a"}, {}});
  const Sharding split = sharding({{"a"}, {}});
  const auto last = p.b.for_loop(3, std::array{x}, [&](Builder& b, std::span<const Value> carry) {
    return b.manual_computation(std::array{carry[1]}, std::array{split}, std::array{split}, {"a"}, [](Builder& inner, std::span<const Value> own) {
      return inner.custom_call(own, {.target = "tpu_custom_call", .results = {own[0].type()},
                                     .opaque = R"({"custom_call_config":{"cost_estimate":{"flops":123,"bytes_accessed":10000000}}})"});
    });
  });
  const AnalyticPlan plan = p.analyze({last[0]});
  EXPECT_EQ(plan.work.flops, 3.0 * 123);
  EXPECT_GE(plan.work.hbm_bytes, 3.0 * 10000000);
}

// ---- memory -------------------------------------------------------------------------------------------------------------------

constexpr int64_t kMiB = 1 << 20;

TEST(Fusion, BarriersNameEachOperand) {
  Program p({{"a", 2}});
  const Value x = p.parameter({2048, 1024}, {{"a"}, {}}), w = p.parameter({1024, 1024}, {{}, {}});
  const Value y = p.b.dot_general(x, w, DotDims{{}, {}, {1}, {0}}), sum = p.b.reduce(y, {0}, hlo::Reduction::Sum);
  const auto both = p.b.optimization_barrier(std::array{sum, y});
  p.graph.set_results({p.b.dot_general(both[1], w, DotDims{{}, {}, {1}, {0}}), both[0]});
  const Layouts layouts(p.graph);
  const Fusion fusion(p.graph, layouts);
  EXPECT_EQ(fusion.storage(both[1]), y);
}

TEST(Analytic, ElementwiseOperationsAreOneKernel) {
  Program p({{"a", 2}});
  const Value x = p.parameter({2048, 1024}, {{"a"}, {}});  // 4 MiB a device
  const AnalyticPlan plan = p.analyze({p.b.exp(p.b.add(p.b.sin(x), p.b.multiply(x, x)))});
  EXPECT_EQ(plan.memory.total, 8 * kMiB);
  EXPECT_EQ(plan.work.hbm_bytes, 8.0 * kMiB);
}

TEST(Analytic, ResultsTakeOverDonatedArguments) {
  Program p({{"a", 2}});
  const Value x = p.graph.add_parameter({DType::F32, {2048, 1024}}, {.sharding = sharding({{"a"}, {}}), .aliasing_output = 0});
  EXPECT_EQ(p.analyze({p.b.exp(x)}).memory.total, 4 * kMiB);
}

TEST(Analytic, MemoryIsFreeAfterTheLastUse) {
  Program p({{"a", 2}});
  const Value x = p.parameter({1024, 1024}, {{"a"}, {}});  // 2 MiB a device; the products are as large
  const Value w = p.parameter({1024, 1024}, {{}, {}});     // 4 MiB
  const auto times_w = [&](Value y) { return p.b.dot_general(y, w, DotDims{{}, {}, {1}, {0}}); };
  const Value y1 = times_w(x), y2 = times_w(y1), y3 = times_w(y2), y4 = times_w(y3);
  EXPECT_EQ(p.analyze({y4}).memory.total, (2 + 4 + 2 + 2) * kMiB);
}

// A loop that stacks up its rows holds the stack once; what an iteration makes besides lives as long as the iteration.
TEST(Analytic, LoopsHoldTheirState) {
  Program p({{"a", 2}});
  const Value x = p.parameter({1024, 1024}, {{"a"}, {}});
  const Value w = p.parameter({1024, 1024}, {{}, {}});
  const Value stack = p.b.constant(DType::F32, 0.0, {6, 1024, 1024});
  const auto last = p.b.for_loop(6, std::array{x, stack}, [&](Builder& b, std::span<const Value> carry) {
    const Value zero = b.constant(DType::S32, 0);
    const Value starts[] = {carry[0], zero, zero};
    const Value saved = b.dynamic_update_slice(carry[2], b.reshape(carry[1], {1, 1024, 1024}), starts);
    return std::vector{b.dot_general(carry[1], w, DotDims{{}, {}, {1}, {0}}), saved};
  });
  const AnalyticPlan plan = p.analyze({last[0], last[1]});
  // Arguments 2 + 4, the carry's copy 2, the next carry 2, the stack 12.
  EXPECT_EQ(plan.memory.total, (6 + 4 + 12) * kMiB);
  int64_t sum = 0;
  for (const auto& [kind, bytes] : plan.memory.by_kind) sum += bytes;
  EXPECT_EQ(sum, plan.memory.total);
  EXPECT_EQ(plan.memory.largest.front().bytes, 12 * kMiB);
  EXPECT_EQ(plan.memory.largest.front().shape, "f32[6,512,1024]");
}

// What a loop reads of outside is there in the next iteration: no iteration writes over it.
TEST(Analytic, LoopsLeaveWhatTheyReadAlone) {
  Program p({{"a", 2}});
  const Value x = p.parameter({1024, 1024}, {{"a"}, {}});  // 2 MiB a device, as are all values but w
  const Value w = p.parameter({1024, 1024}, {{}, {}});
  const auto times_w = [&](Value v) { return p.b.dot_general(v, w, DotDims{{}, {}, {1}, {0}}); };
  const Value y = times_w(x);
  const auto last = p.b.for_loop(3, std::array{x}, [&](Builder& b, std::span<const Value> carry) {
    return std::vector{b.exp(b.add(y, carry[1]))};
  });
  EXPECT_EQ(p.analyze({times_w(last[0]), y}).memory.total, (2 + 4 + 2 + 2 + 2) * kMiB);
}

// The rows of a stack that loops convert are converted before the first of them, all at once.
TEST(Analytic, ConversionsToLessMemoryLeaveLoops) {
  for (const DType narrow : {DType::BF16, DType::F64}) {
    Program p({{"a", 2}});
    const Value rows = p.parameter({6, 1024, 1024}, {{}, {"a"}, {}});  // 12 MiB a device
    const Value x = p.parameter({1024, 1024}, {{}, {}}, narrow);
    const auto last = p.b.for_loop(6, std::array{x}, [&](Builder& b, std::span<const Value> carry) {
      const Value zero = b.constant(DType::S32, 0);
      const Value starts[] = {carry[0], zero, zero};
      const Value row = b.reshape(b.dynamic_slice(rows, starts, {1, 1024, 1024}), {1024, 1024});
      const Value whole = b.sharding_constraint(b.convert(row, narrow), sharding({{}, {}}));
      return std::vector{b.dot_general(carry[1], whole, DotDims{{}, {}, {1}, {0}})};
    });
    const int64_t size = byte_size(narrow) * kMiB;  // of x, of a gathered row, of a product
    const int64_t hoisted = narrow == DType::BF16 ? 6 : 0;
    EXPECT_EQ(p.analyze({last[0]}).memory.total, 12 * kMiB + size + hoisted * kMiB + 3 * size) << byte_size(narrow);
  }
}

TEST(Analytic, ValuesOfInnermostLoopsStayOnTheChip) {
  for (const int64_t on_chip : {int64_t{0}, 16 * kMiB}) {
    Program p({{"a", 2}});
    const Value x = p.parameter({1024, 1024}, {{"a"}, {}});
    const Value w = p.parameter({1024, 1024}, {{}, {}});
    const auto last = p.b.for_loop(4, std::array{x}, [&](Builder& b, std::span<const Value> carry) {
      return std::vector{b.dot_general(carry[1], w, DotDims{{}, {}, {1}, {0}})};
    });
    // Each iteration reads w, and the state, and writes the state.
    EXPECT_EQ(p.analyze({last[0]}, on_chip).work.hbm_bytes, 4.0 * double(on_chip > 0 ? 4 * kMiB : 8 * kMiB));
  }
}

TEST(Analytic, ArgumentsFillTiles) {
  struct Case {
    Dims dims;
    int64_t bytes;
  };
  const Case cases[] = {{{}, 512},      {{40}, 512},  {{320}, 2048},
                        {{4096}, 16384}, {{1, 7}, 512}, {{64, 40}, 128 * 40 * 4},
                        {{80, 8, 10, 128, 32}, 80 * 8 * 10 * 128 * 32 * 4}};
  for (const Case& c : cases) {
    Program p({{"a", 2}});
    const Value x = p.parameter(c.dims, std::vector<Axes>(c.dims.size()));
    EXPECT_EQ(p.analyze({x}).memory.total, c.bytes);
  }
}

// ---- traffic --------------------------------------------------------------------------------------------------------------------

// Two halves of an array are all of it.
TEST(Analytic, SlicesAddUp) {
  Program p({{"a", 2}});
  const Value x = p.parameter({2048, 1024}, {{"a"}, {}});  // 4 MiB a device
  const Value sum = p.b.add(p.b.slice_dim(x, 1, 0, 512), p.b.slice_dim(x, 1, 512, 1024));
  EXPECT_EQ(p.analyze({p.b.exp(sum)}).work.hbm_bytes, (4 + 2) * kMiB);
}

// The kernel of a product takes in what its operands are computed from, and finds the maximum of its result on the way.
TEST(Analytic, ProductsTakeInWhatIsAroundThem) {
  Program p({{"a", 2}});
  const Value x = p.parameter({1024, 1024}, {{"a"}, {}});  // 2 MiB a device, as are products
  const Value w = p.parameter({1024, 1024}, {{}, {}});     // 4 MiB
  const auto times_w = [&](Value y) { return p.b.dot_general(y, w, DotDims{{}, {}, {1}, {0}}); };
  const Value scores = times_w(p.b.exp(x));
  const Value most = p.b.reduce(scores, {1}, hlo::Reduction::Max);
  const Value relative = p.b.exp(p.b.subtract(scores, p.b.broadcast_in_dim(most, {1024, 1024}, {0})));
  const Value sums = p.b.reduce(relative, {1}, hlo::Reduction::Sum);
  const AnalyticPlan plan = p.analyze({times_w(relative), sums});
  EXPECT_EQ(plan.work.hbm_bytes, (2 + 4 + 2) * kMiB + 2 * kMiB + (2 + 4 + 2) * kMiB);
}

TEST(Analytic, TransfersReadAndWrite) {
  Program p({{"shard", 4}});
  const Value w = p.parameter({1024, 1024}, {{"shard"}, {}});  // 1 MiB a device
  EXPECT_EQ(p.analyze({p.b.sharding_constraint(w, sharding({{}, {}}))}).work.hbm_bytes, (1 + 4) * kMiB);
}

// A ring of eight takes one operand part by part and the other whole, for two parts of the result at a time.
TEST(Analytic, RingsReadOneOperandAgain) {
  Program p({{"shard", 8}});
  const Value x = p.parameter({1 << 14, 1 << 13}, {{"shard"}, {}}, DType::BF16);  // 32 MiB a device
  const Value y = p.parameter({1 << 14, 1024}, {{"shard"}, {}}, DType::BF16);     // 4 MiB
  const Value w = p.b.dot_general(x, y, DotDims{{}, {}, {0}, {0}}, DType::F32);   // 32 MiB of parts of sums
  p.graph.set_results({p.b.sharding_constraint(w, sharding({{"shard"}, {}}))});
  constexpr int64_t kSent = 2 * 9 * 32 / 8, kRead = 32 + 4 * 4, kParts = 5 * 32;
  EXPECT_EQ(analyze_graph(p.graph, {}, 1 << 30).work.hbm_bytes, (kSent + kRead) * kMiB);
  EXPECT_EQ(analyze_graph(p.graph, {}, 0).work.hbm_bytes, (kSent + kRead + kParts) * kMiB);
}

TEST(Analytic, KeepsACourseOfFewPoints) {
  Program p({{"a", 2}});
  Value x = p.parameter({256, 512}, {{"a"}, {}});
  const Value w = p.parameter({512, 512}, {{}, {}});
  for (int i = 0; i < 1000; ++i) x = p.b.dot_general(x, w, DotDims{{}, {}, {1}, {0}});
  const Memory memory = p.analyze({x}).memory;
  EXPECT_LE(memory.over_step.size(), 400u);
  EXPECT_EQ(memory.over_step.front().first, 0);
  EXPECT_EQ(memory.over_step.back().first, 1);
  const auto most = std::ranges::max_element(memory.over_step, {}, [](const auto& point) { return point.second; });
  EXPECT_EQ(most->second, memory.total);
}

// ---- a step -------------------------------------------------------------------------------------------------------------------

// configs/llama3/1b.toml on v5e:2x4. libtpu 0.0.52 answered: 10,528 MiB, 7.7095e13 FLOPs, 2.1272e11 bytes of HBM, 9.9156e9
// bytes sent.
TEST(Analytic, Llama1B) {
  const Pod pod = parse_pod("v5e:2x4");
  const train::Config config = train::load_config("configs/llama3/1b.toml");
  const auto target = targets::Target::ahead_of_time(pod.chip(), pod.devices());
  const StepProgram step = record_step(config, target);
  const AnalyticPlan plan = analyze_step(step, pod.generation);

  // Parameters and two states of them, in float32; a table of angles, tokens and small things.
  const int64_t state = 12 * step.parameters_per_device;
  int64_t arguments = 0;
  for (const auto& [kind, bytes] : plan.memory.by_kind)
    if (kind == MemoryKind::Parameters || kind == MemoryKind::OptimizerStates) arguments += bytes;
  EXPECT_EQ(arguments, state);
  EXPECT_NEAR(double(plan.memory.total) / (10528.0 * kMiB), 1, 0.05);
  EXPECT_NEAR(plan.work.flops / 7.7095e13, 1, 1e-3);
  EXPECT_NEAR(plan.work.hbm_bytes / 2.1272e11, 1, 0.15);
  EXPECT_NEAR(plan.work.collective_bytes / 9.9156e9, 1, 1e-3);

  // Each layer's matrices in bfloat16, forward and backward: wq, wk and wv; wo; w1 and w3; w2.
  const double layer = 2.0 * (3072.0 * 2048 + 2048.0 * 2048 + 3 * 8192.0 * 2048);
  double gathered = 0;
  for (const CollectiveGroup& c : plan.collectives) {
    EXPECT_EQ(c.axes, "shard");
    EXPECT_EQ(c.group_size, 8);
    if (c.kind == "all-gather" && c.type == "bf16" && c.place != "outside of the layers") gathered += c.bytes;
  }
  EXPECT_EQ(gathered, 2 * 16 * layer);
  ASSERT_EQ(plan.memory.largest.size(), 10u);
  EXPECT_THAT(plan.memory.largest.front().name, testing::HasSubstr("feed_forward/w1_w3"));
  for (size_t i = 1; i < 10; ++i) EXPECT_LE(plan.memory.largest[i].bytes, plan.memory.largest[i - 1].bytes);
}

}  // namespace
}  // namespace flambeau::plan
