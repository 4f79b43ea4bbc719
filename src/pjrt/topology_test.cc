// Compiling for devices that are not there.
#include <gmock/gmock.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "base/wire.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"

namespace flambeau::pjrt {
namespace {

using testing::HasSubstr;

// A matrix product over four chips; its second operand is gathered.
const std::string kProduct = module(R"(
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%a: tensor<512x256xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                         %b: tensor<256x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<512x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = "stablehlo.dot_general"(%a, %b) {dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1],
      rhs_contracting_dimensions = [0]>} : (tensor<512x256xbf16>, tensor<256x128xbf16>) -> tensor<512x128xbf16>
    return %0 : tensor<512x128xbf16>
  })");

// Runs in a process of its own: libtpu wants its environment set before it is loaded.
void compile_for_v5e() {
  prepare_to_compile_for_tpu();
  const Plugin& plugin = Plugin::load(find_plugin("tpu"));
  const auto topology = Topology::create(plugin, "v5e:2x2x1");
  EXPECT_EQ(topology->platform_name(), "tpu");
  ASSERT_EQ(topology->devices().size(), 4u);
  for (const Device& device : topology->devices()) {
    EXPECT_EQ(device.kind, "TPU v5 lite");
    EXPECT_EQ(device.handle, nullptr);
    EXPECT_FALSE(device.addressable);
    EXPECT_EQ(std::get<std::vector<int64_t>>(device.attributes.at("coords")).size(), 3u);
  }
  const auto compiled = topology->compile(kProduct, {.num_partitions = 4});
  EXPECT_EQ(proto_field(compiled.optimized_hlo, 1), "m");
  EXPECT_EQ(compiled.memory.argument, (512 * 256 + 256 * 128) / 4 * 2);
  EXPECT_EQ(compiled.memory.output, 512 * 128 / 4 * 2);
  EXPECT_GE(compiled.memory.total, compiled.memory.argument);
  EXPECT_FALSE(compiled.serialized.empty());
  EXPECT_THAT(message_of<PluginError>([&] { topology->compile("nonsense", {}); }), HasSubstr("[pjrt.compile]"));
  const std::string module = topology->first_phase(kProduct, {.num_partitions = 4});
  EXPECT_EQ(proto_field(module, 1), "m");
  EXPECT_FALSE(proto_field(module, 7).empty()) << "a schedule";
  EXPECT_THAT(message_of<PluginError>([&] { topology->first_phase("nonsense", {}); }), HasSubstr("[pjrt.first_phase]"));
  EXPECT_THAT(message_of<PluginError>([&] { Topology::create(plugin, "v99:2x2"); }), HasSubstr("[pjrt.topology]"));
}

using TpuTopology = LibtpuTest;

TEST_F(TpuTopology, CompilesWithoutOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        compile_for_v5e();
        std::cerr << (testing::Test::HasFailure() ? "failed" : "compiled") << std::endl;
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "compiled");
}

TEST(Topology, ChecksNamesBeforeThePluginDoes) {
  const Plugin& plugin = Plugin::load(find_plugin("cpu"));
  for (const std::string name :
       {"", ":2x2", "v5e:", "v5e:0x2", "v5e:2x", "v5e:2xx2", "v5e:-1x2", "v5e:2x2 ", "v5e:99999999999999999999"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { Topology::create(plugin, name); }), HasSubstr("'" + name + "'"));
  }
}

}  // namespace
}  // namespace flambeau::pjrt
