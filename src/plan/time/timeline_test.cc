// Times and tables of small analyses made by hand.
#include "plan/time/timeline.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "plan/time/collectives.h"
#include "plan/time/estimate.h"

namespace flambeau::plan {
namespace {

using compiled::Analysis;
using compiled::Collective;
using compiled::MeshAxes;
using compiled::Operation;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

const MeshAxes kMesh = {{"replicate", 2}, {"shard", 4}};
// A second each: 100 operations, 10 bytes of memory, 5 bytes sent within a slice or one over the data-centre network.
const DeviceRates kRates = {.flops = 100, .hbm_bytes = 10, .ici_bytes = 5, .dcn_bytes = 1, .dcn_axes = {}};

Operation product(double flops, double bytes = 0, int loop = -1) {
  return {.name = "product", .opcode = "fusion", .op_name = "", .loop = loop, .flops = flops, .bytes_read = bytes};
}

// Of all eight devices, of 40 bytes: 35 cross each device's links, 7 seconds.
Collective gather(size_t operation, size_t begin, size_t end, int loop = -1, const char* kind = "all-gather") {
  Collective c;
  c.kind = kind;
  c.type = "f32";
  c.operand_bytes = 5;
  c.result_bytes = 40;
  c.group_size = 8;
  c.operation = operation;
  c.begin = begin;
  c.end = end;
  c.loop = loop;
  return c;
}

TEST(Collectives, TakeTheTimeOfWhatTheySend) {
  DeviceRates slices = kRates;
  slices.dcn_axes = {"replicate"};
  Collective shard = gather(0, 0, 0);
  shard.group_size = 4;
  shard.groups = {.count = 2, .size = 4, .dims = {}, .order = {}, .ids = {0, 1, 2, 3, 4, 5, 6, 7}};
  Collective ring = gather(0, 0, 0, -1, "collective-permute");
  ring.source_target_pairs = {{0, 4}, {4, 0}};
  ring.group_size = 2;
  Collective carried = gather(0, 0, 0, -1, "all-reduce");
  carried.group_size = 2;
  carried.between_slices = true;
  Collective odd = shard;
  odd.groups.ids = {0, 1, 2, 4, 3, 5, 6, 7};
  const struct {
    const char* what;
    Collective collective;
    DeviceRates rates;
    double want;
  } kCases[] = {
      {"all devices", gather(0, 0, 0), kRates, 40 * 7 / 8.0 / 5},
      {"an all-reduce goes around twice", gather(0, 0, 0, -1, "all-reduce"), kRates, 2 * 40 * 7 / 8.0 / 5},
      {"one axis", shard, kRates, 40 * 3 / 4.0 / 5},
      {"no axis: its size", odd, kRates, 40 * 3 / 4.0 / 5},
      {"within a slice, then a quarter of it across", gather(0, 0, 0), slices, 40 * 3 / 4.0 / 5 + 40 / 4.0 * 1 / 2},
      {"a ring sends all once", ring, kRates, 40 / 5.0},
      {"a ring across slices", ring, slices, 40 / 1.0},
      {"what TPU's runtime carries", carried, kRates, 2 * 40 * 1 / 2.0},
  };
  for (const auto& c : kCases) EXPECT_THAT(collective_seconds(c.collective, kMesh, c.rates), DoubleEq(c.want)) << c.what;
}

TEST(Timeline, WaitsForWhatNothingHides) {
  const Operation none = product(0);
  Operation prefetch = product(0, 20);
  prefetch.opcode = "copy-start";
  const struct {
    const char* what;
    std::vector<Operation> operations;
    std::vector<Collective> collectives;
    double step, exposed;
  } kCases[] = {
      {"the longer of products and memory", {product(300, 20), product(100, 50)}, {}, 3 + 5, 0},
      {"a synchronous collective", {product(300), none, product(200)}, {gather(1, 1, 1)}, 3 + 7 + 2, 7},
      {"one that its own memory traffic outlasts", {product(0, 90)}, {gather(0, 0, 0)}, 9, 7},
      {"one that is hidden in part", {none, product(300), product(200)}, {gather(0, 1, 2)}, 7 + 2, 4},
      {"one that is hidden", {none, product(800), product(200)}, {gather(0, 1, 2)}, 8 + 2, 0},
      {"two that queue", {none, none, product(300)}, {gather(0, 1, 3), gather(1, 2, 3)}, 14, 11},
      {"one that nobody waits for before the end", {none, product(300)}, {gather(0, 1, 9)}, 7, 4},
      {"a copy beside a product", {prefetch, product(300, 10)}, {}, 3, 0},
      {"a copy beside nothing", {prefetch, product(100, 10)}, {}, 1 + 2, 0},
  };
  for (const auto& c : kCases) {
    Analysis a;
    a.operations = c.operations;
    a.collectives = c.collectives;
    const Timeline timeline = run_timeline(a, kMesh, kRates);
    EXPECT_THAT(timeline.step_s, DoubleNear(c.step, 1e-9)) << c.what;
    double exposed = 0;
    for (const CollectiveTime& t : timeline.collectives) exposed += t.exposed;
    EXPECT_THAT(exposed, DoubleNear(c.exposed, 1e-9)) << c.what;
  }
}

// A product, three iterations of (two iterations of a product, a gather beside another), a product, a gather alone.
Analysis nested() {
  Analysis a;
  a.loops = {{.name = "outer", .op_name = "", .parent = -1, .trips = 3}, {.name = "inner", .op_name = "", .parent = 0, .trips = 2}};
  a.operations = {product(100), product(100, 0, 1), product(0, 0, 0), product(500, 0, 0), product(100),
                  product(0)};
  a.contractions = {{"a", "", 100, -1}, {"b", "", 100, 1}, {"c", "", 500, 0}, {"d", "", 100, -1}};
  a.collectives = {gather(2, 3, 4, 0), gather(5, 5, 5)};
  return a;
}

TEST(Timeline, RunsLoops) {
  const Timeline timeline = run_timeline(nested(), kMesh, kRates);
  EXPECT_THAT(timeline.step_s, DoubleNear(1 + 3 * (2 * 1 + 7) + 1 + 7, 1e-9));
  EXPECT_THAT(timeline.collectives[0].exposed, DoubleNear(2, 1e-9));
}

TEST(Collectives, AreGathered) {
  const Analysis a = nested();
  const LoopRoles roles{.innermost = {LoopRole::LayersForward, LoopRole::LayersForward}, .saved_activations = {}};
  const auto groups = collective_groups(a, roles, kMesh, run_timeline(a, kMesh, kRates));
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].place, "layers, forward");
  EXPECT_EQ(groups[0].kind, "all-gather");
  EXPECT_EQ(groups[0].axes, "replicate x shard");
  EXPECT_EQ(groups[0].count, 3);
  EXPECT_EQ(groups[0].bytes, 120);
  EXPECT_THAT(groups[0].overlapped, DoubleNear(120 * 5 / 7.0, 1e-9));
  EXPECT_EQ(groups[1].place, "outside of the layers");
  EXPECT_EQ(groups[1].overlapped, 0);
}

TEST(Estimate, SaysWhatItIsMadeOf) {
  const Analysis a = nested();
  const Estimate e = estimate(a, run_timeline(a, kMesh, kRates), kRates);
  EXPECT_THAT(e.compute_s, DoubleNear(23, 1e-9));
  EXPECT_EQ(e.hbm_s, 0);
  EXPECT_THAT(e.communication_s, DoubleNear(28, 1e-9));
  EXPECT_THAT(e.exposed_s, DoubleNear(3 * 2 + 7, 1e-9));
  EXPECT_THAT(e.step_s, DoubleNear(e.compute_s + e.exposed_s, 1e-9));
  EXPECT_GE(e.assumptions.size(), 5u);
  EXPECT_THAT(e.assumptions[0], HasSubstr("estimate"));
  const Work work = work_of(a);
  EXPECT_EQ(work.flops, 2300);
  EXPECT_EQ(work.collective_bytes, 160);
}

TEST(Estimate, OfTotalsAlone) {
  const Estimate e = estimate(Work{.flops = 500, .hbm_bytes = 80, .collective_bytes = 0}, 4, 1, kRates);
  EXPECT_EQ(e.step_s, 8 + 1);
  EXPECT_EQ(e.compute_s, 5);
  EXPECT_THROW(estimate(Work{}, 0, 0, DeviceRates{}), InvalidArgument);
  Analysis a = nested();
  EXPECT_THROW(run_timeline(a, kMesh, {.flops = 1, .hbm_bytes = 1, .ici_bytes = 0, .dcn_bytes = 0, .dcn_axes = {}}),
               InvalidArgument);
}

}  // namespace
}  // namespace flambeau::plan
