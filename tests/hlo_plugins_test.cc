// Everything that the printer prints, through real plugins: the oldest and the newest CPU plugin compile and run it, and
// libtpu, where it is installed, compiles it for a real topology. Plugins that are not installed are skipped.
#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "hlo_run.h"

namespace flambeau::tests {
namespace {

using namespace hlo;

void check(const Program& program, const std::vector<std::vector<std::string>>& got) {
  for (const auto& device : got) {
    ASSERT_EQ(device.size(), program.results.size());
    for (size_t i = 0; i < device.size(); ++i)
      EXPECT_EQ(difference(program.results[i].type(), device[i], program.expected[i]), "") << "result " << i;
  }
}

class CpuPlugins : public testing::TestWithParam<const char*> {};

TEST_P(CpuPlugins, CompileAndRunEveryCase) {
  const auto path = installed(GetParam());
  if (!path) GTEST_SKIP() << "the plugin is not installed";
  const auto client = pjrt::Client::create(pjrt::Plugin::load(*path), {{"cpu_device_count", int64_t{8}}});
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    Program program;
    c.build(program);
    program.finish();
    const std::string text = print(program.graph, {.sites = true});
    SCOPED_TRACE(text);
    const auto refused = c.refused.find(GetParam());
    try {
      const auto plain = execute(*client, program, text, c.partitions);
      EXPECT_TRUE(refused == c.refused.end()) << "the plugin takes this now: drop the row's note";
      check(program, plain);
      simplify(program.graph);
      const std::string simplified = print(program.graph);
      SCOPED_TRACE(simplified);
      check(program, execute(*client, program, simplified, c.partitions));
    } catch (const PluginError& error) {
      if (refused == c.refused.end())
        ADD_FAILURE() << error.what();
      else
        EXPECT_NE(std::string(error.what()).find(refused->second), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, CpuPlugins, testing::Values("cpu", "xla-cpu"), [](const auto& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
});

TEST(HloCases, UseEveryOperation) {
  std::set<Op> used;
  std::function<void(const Block&)> visit = [&](const Block& block) {
    for (const auto& node : block.nodes) {
      used.insert(node->op);
      if (!node->regions.empty()) used.insert(Op::Return);
      for (const auto& region : node->regions) visit(*region);
    }
  };
  for (const Case& c : all_cases()) {
    Program program;
    c.build(program);
    visit(program.graph.body());
  }
  for (int i = 0; i <= static_cast<int>(Op::PartitionId); ++i)
    EXPECT_TRUE(used.contains(static_cast<Op>(i))) << op_name(static_cast<Op>(i));
}

// ---- libtpu: compiles only, in a child process because a fault there ends the process
// --------------------------------------------

[[noreturn]] void compile_for_tpu(const std::filesystem::path& path) {
  for (auto [name, value] : {std::pair{"TPU_SKIP_MDS_QUERY", "1"},
                             {"ALLOW_MULTIPLE_LIBTPU_LOAD", "1"},
                             {"TPU_ACCELERATOR_TYPE", "v5litepod-4"},
                             {"TPU_WORKER_ID", "0"},
                             {"TPU_WORKER_HOSTNAMES", "localhost"}})
    setenv(name, value, 1);
  unsetenv("XLA_FLAGS");
  unsetenv("LIBTPU_INIT_ARGS");
  const pjrt::Plugin& plugin = pjrt::Plugin::load(path);
  const auto four = pjrt::Topology::create(plugin, "v5e:2x2x1");
  const auto eight = pjrt::Topology::create(plugin, "v5e:2x4x1");
  int failures = 0;
  auto compile = [&](const std::string& name, const Case* c, const Graph& graph, int partitions) {
    std::string error;
    pjrt::CompileOptions options;
    options.num_partitions = partitions;
    try {
      (partitions > 4 ? eight : four)->compile(print(graph), options);
    } catch (const std::exception& e) {
      error = e.what();
    }
    const auto* note = c && c->refused.contains("tpu") ? &c->refused.at("tpu") : nullptr;
    if (note ? error.find(*note) != std::string::npos && !error.empty() : error.empty()) return;
    ++failures;
    fmt::print(stderr, "FAILED {}: {}\n{}\n", name, error.empty() ? "compiles now: drop the row's note" : error,
               print(graph));
  };
  // One program for all that need one device: a compilation costs far more than an operation in it.
  Program together;
  for (const Case& c : all_cases()) {
    if (c.partitions == 1 && !c.refused.contains("tpu")) {
      c.build(together);
      continue;
    }
    Program alone;
    c.build(alone);
    alone.finish();
    compile(c.name, &c, alone.graph, c.partitions);
  }
  together.finish();
  compile("all cases of one device", nullptr, together.graph, 1);
  _exit(failures == 0 ? 0 : 1);
}

TEST(Tpu, CompilesEveryCase) {
  const auto path = installed("tpu");
  if (!path) GTEST_SKIP() << "libtpu is not installed";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process
  EXPECT_EXIT(
      {
        alarm(540);
        compile_for_tpu(*path);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace flambeau::tests
