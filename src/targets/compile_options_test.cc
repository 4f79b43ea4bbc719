// Options of XLA: how they are written, that they reach the compiler, and that TPU's compiler takes those that are preferred.
#include "targets/compile_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"

namespace flambeau::targets {
namespace {

using testing::HasSubstr;

TEST(CompileOptions, AreNamesWithValues) {
  const struct {
    const char* text;
    pjrt::CompileFlags want;
  } cases[] = {
      {"", {}},
      {" \t", {}},
      {"xla_a=true", {{"xla_a", true}}},
      {"xla_a=false, xla_b2 = 3 ,xla_c=-7", {{"xla_a", false}, {"xla_b2", int64_t{3}}, {"xla_c", int64_t{-7}}}},
      {"xla_a=0.5,xla_b=1e-3", {{"xla_a", 0.5}, {"xla_b", 1e-3}}},
      {"xla_a=AUTO,xla_b=True,xla_c=nan", {{"xla_a", "AUTO"}, {"xla_b", "True"}, {"xla_c", "nan"}}},
      {"xla_a=enabled:true steps=2", {{"xla_a", "enabled:true steps=2"}}},
      {"xla_a=9223372036854775808", {{"xla_a", 9223372036854775808.0}}},
  };
  for (const auto& c : cases) EXPECT_EQ(parse_compile_options(c.text), c.want) << c.text;
}

TEST(CompileOptions, AreRefusedWithTheEntry) {
  const struct {
    const char *text, *words;
  } cases[] = {
      {"xla_a", "got 'xla_a'; write name=value"},
      {"xla_a=", "got 'xla_a='"},
      {"xla_a= ", "got 'xla_a='"},
      {"=true", "got '=true'"},
      {"xla_a=1,", "got ''"},
      {"xla_a=1,,xla_b=2", "got ''"},
      {"--xla_a=1", "got '--xla_a=1'; write name=value, the name in small letters and beginning with xla_"},
      {"xla_=1", "got 'xla_=1'"},
      {"xla_A=1", "got 'xla_A=1'"},
      {"xla a=1", "got 'xla a=1'"},
      {"megascale_a=1", "got 'megascale_a=1'"},
      {"xla_a=1,xla_b=2,xla_a=1", "got xla_a twice"},
  };
  for (const auto& c : cases)
    EXPECT_THAT([&] { parse_compile_options(c.text); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr(c.words))) << c.text;
}

TEST(CompileOptions, ArePreferredForTpusAlone) {
  for (const PreferredOption& option : preferred_options()) {
    const pjrt::CompileFlags flags = preferred_options({.platform = "tpu", .generation = std::string(option.generation)});
    ASSERT_TRUE(flags.contains(std::string(option.name))) << option.name;
    EXPECT_EQ(flags.at(std::string(option.name)), option.value) << option.name;
    EXPECT_FALSE(option.reason.empty()) << option.name;
    EXPECT_EQ(preferred_options({.platform = "cpu", .generation = std::string(option.generation)}), pjrt::CompileFlags{});
  }
  EXPECT_EQ(preferred_options({.platform = "tpu", .generation = "TPU v1"}), pjrt::CompileFlags{});
}

// Every device's gradient of one weight, summed over all devices and scattered: what sharded training does in each layer.
std::string gradient(int devices) {
  return fmt::format(R"(module @m {{
  sdy.mesh @mesh = <["shard"={0}]>
  func.func public @main(%x: tensor<{0}x256x4096xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"shard"}}, {{}}, {{}}]>}},
      %y: tensor<{0}x256x1024xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"shard"}}, {{}}, {{}}]>}})
      -> (tensor<4096x1024xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"shard"}}, {{}}]>}}) {{
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [0, 1] x [0, 1] : (tensor<{0}x256x4096xbf16>, tensor<{0}x256x1024xbf16>) -> tensor<4096x1024xf32>
    return %0 : tensor<4096x1024xf32>
  }}
}})", devices);
}

struct Slice {
  const char* topology;
  const char* generation;
  int devices;
  std::vector<int64_t> wrap;
};
const Slice kSlices[] = {{"v5e:4x4", "TPU v5 lite", 16, {0, 0, 0}},
                         {"v5:4x4x4", "TPU v5", 64, {1, 1, 1}},
                         {"v6e:4x4", "TPU v6 lite", 16, {0, 0, 0}},
                         {"tpu7x:2x2x2", "TPU7x", 16, {0, 0, 0}}};

class TpuOptions : public pjrt::LibtpuTest {
 protected:
  // The gradient's sum on `slice`, with what is preferred there as what is asked for: then nothing is left out.
  pjrt::TopologyResult compile(const Slice& slice, const pjrt::CompileFlags& flags) const {
    return pjrt::compile_apart({.plugin = libtpu_,
                                .topology = slice.topology,
                                .attributes = {{"wrap", slice.wrap}},
                                .program = gradient(slice.devices),
                                .options = {.num_partitions = slice.devices, .overrides = flags}});
  }
};

TEST_F(TpuOptions, TheCompilerKnowsAllThatIsPreferred) {
  for (const Slice& slice : kSlices) {
    const pjrt::CompileFlags flags = preferred_options({.platform = "tpu", .generation = slice.generation});
    pjrt::TopologyResult result;
    EXPECT_NO_THROW(result = compile(slice, flags)) << slice.topology;
    EXPECT_EQ(result.device_kind, slice.generation);
  }
}

TEST_F(TpuOptions, GradientsAreScatteredWhereTheCompilerWouldSumThemWhole) {
  for (const Slice& slice : kSlices) {
    const pjrt::CompileFlags flags = preferred_options({.platform = "tpu", .generation = slice.generation});
    EXPECT_THAT(compile(slice, flags).optimized_hlo, HasSubstr("reduce-scatter")) << slice.topology;
    if (!flags.empty()) {
      EXPECT_THAT(compile(slice, {}).optimized_hlo, testing::Not(HasSubstr("reduce-scatter"))) << slice.topology;
    }
  }
}

TEST_F(TpuOptions, TheCompilerRefusesOthersInOneLine) {
  EXPECT_THAT([&] { compile(kSlices[0], {{"xla_tpu_fast", true}}); },
              testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("expected an option that the plugin knows, got xla_tpu_fast; correct it in compile.options")));
}

}  // namespace
}  // namespace flambeau::targets
