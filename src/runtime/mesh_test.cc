// Arrays over a mesh whose devices belong to several processes, on the fake plugin: a process touches only what it holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pjrt/testing/fake_plugin.h"
#include "runtime/engine.h"
#include "runtime/recording.h"

namespace flambeau::runtime {
namespace {

using hlo::Sharding;
using testing::ElementsAre;
using testing::HasSubstr;

const pjrt::Attributes kHalfElsewhere = {{"cpu_device_count", int64_t{8}}, {"process_count", int64_t{2}}};
const hlo::Mesh kMesh{{{"replicate", 2}, {"shard", 4}}};
const Sharding kRows{{{.axes = {"shard"}}, {}}}, kAllRows{{{.axes = {"replicate", "shard"}}, {}}}, kColumns{{{}, {.axes = {"replicate"}}}};

TEST(Mesh, GivesEachDeviceItsBox) {
  struct Case {
    Sharding sharding;
    int64_t position;
    Box box;
  };
  const Case cases[] = {
      {{}, 5, {{0, 0}, {8, 6}}},
      {kRows, 0, {{0, 0}, {2, 6}}},
      {kRows, 3, {{6, 0}, {2, 6}}},
      {kRows, 4, {{0, 0}, {2, 6}}},
      {kAllRows, 5, {{5, 0}, {1, 6}}},
      {kColumns, 3, {{0, 0}, {8, 3}}},
      {kColumns, 4, {{0, 3}, {8, 3}}},
      {{{{.axes = {"shard", "replicate"}}, {}}}, 5, {{3, 0}, {1, 6}}},  // shard is the major axis here
  };
  for (const Case& c : cases) EXPECT_EQ(box_at(kMesh, c.sharding, {8, 6}, c.position), c.box) << c.sharding.to_string();
}

TEST(Mesh, RefusesWhatDoesNotDivide) {
  EXPECT_THAT([] { check_divides(kMesh, kRows, {DType::F32, {6, 2}}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("does not split into 4 equal parts")));
  EXPECT_THAT([] { check_divides(kMesh, kRows, {DType::F32, {8}}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("expected a sharding of 1 dimensions")));
}

TEST(Mesh, HoldsOnlyThePartsOfItsOwnDevices) {
  const auto client = pjrt::Client::create(pjrt::fake::fake_plugin(), kHalfElsewhere);
  const DeviceMesh mesh = DeviceMesh::over(*client, kMesh);
  EXPECT_THAT(mesh.positions, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(mesh.device_ids.size(), 8u);

  const Type type{DType::F32, {8, 2}};
  std::vector<Box> asked;
  const auto fill = [&](const Box& box, void* out) {
    asked.push_back(box);
    for (int64_t i = 0; i < box.elements(); ++i) static_cast<float*>(out)[i] = static_cast<float>(box.start[0] * 2 + i);
  };
  const auto rows = fill_array(*client, mesh, type, kAllRows, fill);
  EXPECT_EQ(asked.size(), 4u);
  for (const Box& box : asked) EXPECT_LT(box.start[0], 4) << "rows of the other process";
  EXPECT_EQ(rows->shards().size(), 4u);
  EXPECT_FALSE(held_whole(mesh, kAllRows, type.dims));

  // The other process holds a second copy of these.
  asked.clear();
  const auto copies = fill_array(*client, mesh, type, kRows, fill);
  EXPECT_EQ(asked.size(), 4u);
  ASSERT_TRUE(held_whole(mesh, kRows, type.dims));
  std::vector<float> values(16, -1);
  download_array(*copies, type, values.data());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i));

  asked.clear();
  fill_array(*client, mesh, type, {}, fill);
  EXPECT_THAT(asked, ElementsAre(Box{{0, 0}, {8, 2}})) << "the same box is filled once";
}

TEST(Mesh, NeedsDevicesOfItsOwn) {
  const auto client = pjrt::Client::create(pjrt::fake::fake_plugin(), kHalfElsewhere);
  EXPECT_THAT([&] { DeviceMesh::over(*client, {{{"shard", 16}}}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("at most the 8 devices there are, got 16 devices (shard 16)")));
}

class NoRandom : public RandomSource {
  RandomPosition advance(uint64_t) override { return {}; }
};

// A 8 x 2 tensor of ones on the default mesh.
std::shared_ptr<Storage> ones(const Sharding& sharding) {
  return Engine::get().make_sharded({DType::F32, {8, 2}}, sharding,
                                    [](const Box& box, void* out) { std::fill_n(static_cast<float*>(out), box.elements(), 1.0f); });
}

TensorRef ref(const std::shared_ptr<Storage>& storage) { return {storage.get(), View::contiguous({8, 2}), DType::F32}; }

std::vector<Engine::Output> add(const TensorRef& x, const TensorRef& y, std::optional<TensorRef> target = {}) {
  CallArgument arguments[] = {x, y, NumberRef{ops::Number{0.5}, false, std::nullopt}};
  std::optional<TensorRef> into[] = {std::move(target)};
  return Engine::get().call(*ops::find_row("aten::add.Tensor"), arguments, into);
}

TEST(Mesh, TensorsOfOneDeviceAndOfSeveralMeshesLiveSideBySide) {
  Engine& engine = Engine::start({.loaded = &pjrt::fake::fake_plugin()});  // with four devices
  const hlo::Mesh rows{{{"shard", 4}}}, grid{{{"shard", 2}, {"tensor", 2}}};
  const auto one = ones({});
  engine.set_mesh(rows);
  const DeviceMesh* const laid = engine.mesh();
  const auto on_rows = ones(kRows);
  engine.set_mesh(grid);
  const auto on_grid = ones({{{.axes = {"tensor"}}, {.axes = {"shard"}}}});
  engine.set_mesh(std::nullopt);

  struct Case {
    std::shared_ptr<Storage> storage;
    size_t shards;
    hlo::Dims part;
  };
  for (const Case& c : {Case{one, 1, {8, 2}}, Case{on_rows, 4, {2, 2}}, Case{on_grid, 4, {4, 1}}}) {
    const std::shared_ptr<const Array> array = c.storage->held().array;
    EXPECT_EQ(array->shards().size(), c.shards);
    EXPECT_THAT(array->shards()[0]->dims(), testing::ElementsAreArray(c.part));
    const auto sum = add(ref(c.storage), ref(c.storage)).at(0).storage->held().array;
    EXPECT_EQ(sum->mesh(), array->mesh());
    EXPECT_TRUE(same_layout(sum->sharding(), array->sharding()));
    std::vector<float> values(16, -1);
    engine.download(ref(c.storage), values.data());
    EXPECT_THAT(values, testing::Each(1));
  }
  EXPECT_THAT([&] { add(ref(one), ref(on_rows)); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr(
                  "expected tensors that lie on one device, as this op uses, got tensor<8x2xf32> on the mesh shard 4")));
  EXPECT_THAT([&] { add(ref(on_grid), ref(on_rows)); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("the mesh shard 2 x tensor 2")));
  EXPECT_THAT([&] { add(ref(on_grid), ref(on_grid), ref(one)); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("on one device")));

  engine.set_mesh(hlo::Mesh{rows});
  EXPECT_EQ(engine.mesh(), laid) << "an equal mesh is the same";
  engine.set_mesh(std::nullopt);
}

TEST(Mesh, AStepRunsOnTheMeshThatItWasRecordedFor) {
  Engine& engine = Engine::start({.loaded = &pjrt::fake::fake_plugin()});
  const auto one = ones({});
  engine.set_mesh(hlo::Mesh{{{"shard", 4}}});
  const auto state = ones(kRows), input = ones({});
  std::unique_ptr<StepProgram> step;
  {
    Recording recording("step");
    const auto placeholder = recording.add_input({DType::F32, {8, 2}});
    EXPECT_THAT([&] { add(ref(state), ref(one)); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("as this recording uses")));
    add(ref(state), ref(placeholder), ref(state));
    step = recording.finish({});
  }
  engine.set_mesh(std::nullopt);
  NoRandom random;
  const TensorRef inputs[] = {ref(input)}, elsewhere[] = {ref(one)};
  for (int i = 0; i < 2; ++i) {
    step->run(inputs, random);
    add(ref(one), ref(one), ref(one));  // between the steps, on one device
    EXPECT_EQ(state->held().array->shards().size(), 4u);
    EXPECT_TRUE(same_layout(state->held().array->sharding(), kRows));
    EXPECT_EQ(one->held().array->mesh(), nullptr);
  }
  EXPECT_THAT([&] { step->run(elsewhere, random); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("'step' was recorded for the mesh shard 4, got a tensor")));
  EXPECT_TRUE(state->held().array);
}

// One of two processes runs eager ops and a captured step: every launch gives the plugin buffers of its own four devices only.
void run_as_one_of_two() {
  Engine& engine = Engine::start({.client_options = kHalfElsewhere, .loaded = &pjrt::fake::fake_plugin()});
  engine.set_mesh(kMesh);
  const Type type{DType::F32, {8, 2}};
  auto storage = engine.make_sharded(type, kAllRows, [](const Box& box, void* out) {
    std::fill_n(static_cast<float*>(out), box.elements(), 1.0f);
  });
  const TensorRef x{storage.get(), View::contiguous(type.dims), type.dtype};
  const auto check = [&](const Storage& s, const Sharding& sharding) {
    const std::shared_ptr<const Array> array = s.held().array;
    FLAMBEAU_CHECK(array && array->shards().size() == 4 && same_layout(array->sharding(), sharding), "four parts, laid out so");
    for (size_t i = 0; i < 4; ++i) FLAMBEAU_CHECK(array->shards()[i]->device_id() == engine.mesh()->device_ids[i], "own devices");
  };
  const ops::Row& add = *ops::find_row("aten::add.Tensor");
  CallArgument arguments[] = {x, x, NumberRef{ops::Number{0.5}, false, std::nullopt}};
  check(*engine.call(add, arguments)[0].storage, kAllRows);
  std::optional<TensorRef> into[] = {x};
  engine.call(add, arguments, into);
  check(*storage, kAllRows);

  std::unique_ptr<StepProgram> step;
  {
    Recording recording("step");
    engine.call(add, arguments, into);
    TensorRef results[] = {x};
    step = recording.finish(results);
  }
  NoRandom random;
  const auto results = step->run({}, random);
  check(*storage, kAllRows);
  check(*results[0], kAllRows);
  std::vector<float> values(16, -1);
  engine.download(x, values.data());  // gathered by a program that all processes run
  FLAMBEAU_CHECK(values[0] == 0, "what the fake computes");
  engine.synchronize();
  std::exit(0);
}

TEST(MeshDeathTest, RunsOnTheDevicesOfThisProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_as_one_of_two(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace flambeau::runtime
