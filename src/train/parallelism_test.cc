#include "train/parallelism.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace flambeau::train {
namespace {

using testing::HasSubstr;
using Asked = Config::Parallelism;

// 8 heads, 4 key-value heads, and sizes that only small degrees divide.
constexpr models::Sizes kSizes{.layers = 4, .dim = 96, .heads = 8, .kv_heads = 4, .ffn_dim = 24, .vocab_size = 320};

Asked asked(int64_t replicate, int64_t shard, int64_t tensor) {
  Asked a;
  a.data_parallel_replicate_degree = replicate;
  a.data_parallel_shard_degree = shard;
  a.tensor_parallel_degree = tensor;
  return a;
}

TEST(Parallelism, FillsInTheRest) {
  const struct {
    Asked asked;
    int64_t devices;
    Degrees expected;
    const char* text;
  } cases[] = {
      {asked(1, -1, 1), 1, {}, "1 device"},
      {asked(1, -1, 1), 8, {.shard = 8}, "shard 8"},
      {asked(2, -1, 1), 8, {.replicate = 2, .shard = 4}, "replicate 2 x shard 4"},
      {asked(2, -1, 2), 8, {.replicate = 2, .shard = 2, .tensor = 2}, "replicate 2 x shard 2 x tensor 2"},
      {asked(8, -1, 1), 8, {.replicate = 8}, "replicate 8"},
      {asked(1, 2, 4), 8, {.shard = 2, .tensor = 4}, "shard 2 x tensor 4"},
  };
  for (const auto& c : cases) {
    const Degrees got = resolve_parallelism(c.asked, {.devices = c.devices, .context = 64, .sizes = kSizes});
    EXPECT_EQ(got, c.expected) << c.text;
    EXPECT_EQ(got.devices(), c.devices);
    EXPECT_EQ(describe(got), c.text);
  }
}

template <class Change>
models::Sizes with(Change&& change) {
  models::Sizes sizes = kSizes;
  change(sizes);
  return sizes;
}

TEST(Parallelism, RefusesInOneLineWithALegalAlternative) {
  const auto pipeline = [](auto member, int64_t degree) {
    Asked a;
    a.*member = degree;
    return a;
  };
  const struct {
    Asked asked;
    ParallelProblem problem;
    std::vector<const char*> parts;
  } cases[] = {
      {asked(1, 4, 1), {8, 64, kSizes}, {"the 8 devices", "shard 4", "choose for example parallelism.data_parallel_shard_degree = 8", "4 devices"}},
      {asked(3, -1, 1), {8, 64, kSizes}, {"the 8 devices", "replicate 3", "shard -1 (the rest)", "data_parallel_replicate_degree = 4"}},
      {asked(1, -1, 4), {1, 64, kSizes}, {"the 1 device,", "tensor 4", "tensor_parallel_degree = 1", "run on 4 devices", "debug.virtual_devices"}},
      {asked(2, 4, 1), {16, 64, kSizes}, {"the 16 devices", "data_parallel_shard_degree = 8"}},
      {asked(1, -1, 16), {16, 64, kSizes}, {"tensor_parallel_degree", "model.n_heads = 8", "got 16", "tensor_parallel_degree = 4"}},
      {asked(1, -1, 8), {8, 64, kSizes}, {"tensor_parallel_degree", "model.n_kv_heads = 4", "got 8", "tensor_parallel_degree = 4"}},
      {asked(1, -1, 4), {8, 64, with([](auto& s) { s.ffn_dim = 10; })}, {"model.ffn_dim = 10", "got 4", "tensor_parallel_degree = 2"}},
      {asked(1, -1, 4), {8, 64, with([](auto& s) { s.vocab_size = 322; })}, {"model.vocab_size = 322", "got 4", "tensor_parallel_degree = 2"}},
      {asked(1, -1, 4), {8, 66, kSizes}, {"training.max_context_length", "= 66", "got 4", "tensor_parallel_degree = 2"}},
      {asked(1, 64, 1), {64, 64, kSizes}, {"data_parallel_shard_degree", "model.dim = 96", "got 64", "data_parallel_replicate_degree = 2", "data_parallel_shard_degree = 32"}},
      {asked(1 << 20, -1, 1 << 20), {int64_t{1} << 40, 64, kSizes}, {"at most 1048576 devices", "got 1099511627776"}},
      {asked(1, -1, 1), {64, 64, kSizes}, {"model.dim = 96", "got 64", "choose for example parallelism.data_parallel_replicate_degree = 2"}},
      {asked(1, -1, 7), {7, 64, kSizes}, {"model.n_heads", "got 7", "replicate_degree = 7", "tensor_parallel_degree = 1"}},
      {pipeline(&Asked::pipeline_parallel_degree, 2), {2, 64, kSizes}, {"pipeline_parallel_degree", "got 2", "not built yet"}},
      {pipeline(&Asked::context_parallel_degree, 4), {4, 64, kSizes}, {"context_parallel_degree", "got 4", "not built yet"}},
      {pipeline(&Asked::expert_parallel_degree, 8), {8, 64, kSizes}, {"expert_parallel_degree", "got 8", "not built yet"}},
  };
  for (const auto& c : cases) {
    try {
      resolve_parallelism(c.asked, c.problem);
      ADD_FAILURE() << c.parts[0];
    } catch (const Error& e) {
      for (const char* part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(Parallelism, RowsNeedNoSplitWithoutSequenceParallel) {
  Asked a = asked(1, -1, 4);
  a.enable_sequence_parallel = false;
  EXPECT_EQ(resolve_parallelism(a, {8, 66, kSizes}).tensor, 4);
}

TEST(Parallelism, StepsAreTheWholeMeshes) {
  Config config;
  config.training.max_context_length = 128;
  config.training.sequences_per_microbatch = 2;
  EXPECT_EQ(batching(config, 4).sequences, 8);
  EXPECT_EQ(batching(config, 4).accumulation, 1);
  config.training.num_tokens_per_train_step = 128 * 2 * 4 * 3;
  EXPECT_EQ(batching(config, 4).accumulation, 3);
  EXPECT_EQ(batching(config, 4).tokens_per_step(), 3072);
  EXPECT_EQ(batching(config, 2).accumulation, 6);
  try {
    batching(config, 5);
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("multiple of 1280"), HasSubstr("5 data-parallel ranks"), HasSubstr("example 2560")));
  }
}

TEST(Parallelism, ChecksRunWithoutDevices) {
  Config config;
  EXPECT_EQ(assumed_devices(config), 1);
  config.parallelism = asked(2, 4, 2);
  EXPECT_EQ(assumed_devices(config), 16);
  config.debug.virtual_devices = 8;
  EXPECT_EQ(assumed_devices(config), 8);
}

}  // namespace
}  // namespace flambeau::train
