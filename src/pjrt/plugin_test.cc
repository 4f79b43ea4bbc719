// Finding, loading and refusing plugins.
#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "pjrt/discovery.h"
#include "pjrt/environment.h"
#include "pjrt/test_util.h"

namespace flambeau::pjrt {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

class PluginOnCpu : public CpuPlugins {};
FLAMBEAU_ON_CPU_PLUGINS(PluginOnCpu);

// Sets environment variables (empty: unsets) and puts them back.
class ScopedEnvironment {
 public:
  ScopedEnvironment(std::initializer_list<std::pair<std::string, std::string>> values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? "" : before;
      set(name, value);
    }
  }
  ~ScopedEnvironment() {
    for (const auto& [name, value] : before_) set(name, value);
  }

 private:
  static void set(const std::string& name, const std::string& value) {
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  std::map<std::string, std::string> before_;
};

TEST_P(PluginOnCpu, LoadsOnceAndTellsAboutItself) {
  const Plugin& p = plugin();
  EXPECT_EQ(&p, &plugin());
  EXPECT_EQ(&p, &Plugin::load(p.path().parent_path() / "." / p.path().filename())) << "one file, spelled in another way";
  EXPECT_EQ(p.version().first, 0);
  EXPECT_GE(p.version().second, 81);
  const auto& stablehlo = std::get<std::vector<int64_t>>(p.attributes().at("stablehlo_current_version"));
  ASSERT_EQ(stablehlo.size(), 3u);
  EXPECT_EQ(stablehlo[0], 1);
  EXPECT_GE(stablehlo[1], 13);
  EXPECT_NE(p.fingerprint(), 0u);
}

TEST_P(PluginOnCpu, GivesTheCollectivesTimeAndLessNoise) {
  plugin();
  EXPECT_STREQ(std::getenv("TF_CPP_MIN_LOG_LEVEL"), "1");
  EXPECT_THAT(std::getenv("XLA_FLAGS"), HasSubstr("--xla_cpu_collective_call_terminate_timeout_seconds="));
}

TEST(Plugin, HasAFingerprintOfItsOwn) {
  EXPECT_NE(Plugin::load(find_plugin("cpu")).fingerprint(), Plugin::load(find_plugin("xla-cpu")).fingerprint());
}

TEST(Plugin, RefusesWhatIsNone) {
  const TemporaryFolder folder;
  const struct {
    fs::path path;
    std::string expected;
  } cases[] = {
      {folder.path / "missing.so", "No such file"},
      {folder.add("text.so", "not a library"), "not a library that can be loaded"},
      {folder.add("empty.so"), "not a library that can be loaded"},
      {folder.path, "not a library that can be loaded"},
      {"/lib/x86_64-linux-gnu/libm.so.6", "no function GetPjrtApi"},
  };
  for (const auto& c : cases) {
    const auto text = message_of<InvalidArgument>([&] { Plugin::load(c.path); });
    EXPECT_THAT(text, AllOf(HasSubstr(c.expected), HasSubstr(c.path.filename().string()))) << c.path;
  }
}

TEST(FindPlugin, KnowsNamesAndPaths) {
  const auto cpu = find_plugin("cpu");
  EXPECT_THAT(cpu.string(), EndsWith("lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"));
  EXPECT_EQ(find_plugin(cpu.string()), cpu);
  for (const std::string wrong : {"gpu9", "/no/such/file.so"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { find_plugin(wrong); }),
                AllOf(HasSubstr(wrong), HasSubstr("cpu, xla-cpu")));
  }
}

TEST(FindPlugin, LooksInOrder) {
  const TemporaryFolder folder;
  const std::string one = folder.add("one.so"), two = folder.add("two.so"), three = folder.add("three.so");
  const fs::path packages = folder.path / "packages";
  const std::string four = folder.add("packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
  const std::string five = folder.add("venv/lib/python3.99/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
  const struct {
    std::string flambeau, names, tpu, packages, venv, expected;
  } cases[] = {
      {one, "a:" + two + ",b:" + three, three, packages, "", one},
      {"", "a:" + two + ",b:" + three, three, packages, "", two},
      {"", "", three, packages, "", three},
      {"", "", "", packages, folder.path / "venv", four},
      {"", "", "", "", folder.path / "venv", five},
      {"cpu", two, three, "", folder.path / "venv", five},
  };
  for (const auto& c : cases) {
    const ScopedEnvironment environment{{"FLAMBEAU_PLUGIN", c.flambeau},
                                        {"PJRT_NAMES_AND_LIBRARY_PATHS", c.names},
                                        {"TPU_LIBRARY_PATH", c.tpu},
                                        {"FLAMBEAU_SITE_PACKAGES", c.packages},
                                        {"VIRTUAL_ENV", c.venv}};
    EXPECT_EQ(find_plugin(), c.expected);
  }
}

TEST(FindPlugin, LooksBesideAndAbove) {
  const TemporaryFolder folder;
  folder.add("a/.venv/lib/python3.99/site-packages/some/file");
  folder.add("a/b/c/.venv/lib/not-python/file");
  const fs::path expected = folder.path / "a/.venv/lib/python3.99/site-packages";
  EXPECT_EQ(site_packages_near(folder.path / "a"), expected);
  EXPECT_EQ(site_packages_near(folder.path / "a/b/c"), expected);
  EXPECT_EQ(site_packages_near(folder.path), fs::path());
}

TEST(FindPlugin, SaysWhereItLooked) {
  const TemporaryFolder folder;
  const ScopedEnvironment environment{{"FLAMBEAU_PLUGIN", ""},
                                      {"PJRT_NAMES_AND_LIBRARY_PATHS", ""},
                                      {"TPU_LIBRARY_PATH", ""},
                                      {"FLAMBEAU_SITE_PACKAGES", folder.path.string()}};
  EXPECT_THAT(message_of<InvalidArgument>([] { find_plugin(); }),
              AllOf(HasSubstr(folder.path.string()), HasSubstr("xla_cpu_pjrt.so"), HasSubstr("pip install")));
  EXPECT_THAT(message_of<InvalidArgument>([] { find_plugin("cpu"); }),
              AllOf(HasSubstr("lammps-jax-pjrt-cpu"), HasSubstr(folder.path.string())));
  const ScopedEnvironment missing{{"FLAMBEAU_PLUGIN", "/no/such/plugin.so"}};
  EXPECT_THAT(message_of<InvalidArgument>([] { find_plugin(); }),
              AllOf(HasSubstr("FLAMBEAU_PLUGIN"), HasSubstr("/no/such/plugin.so")));
}

TEST(Environment, MergesFlagsWithTheUsers) {
  const XlaFlag a{"xla_a", "1"}, b{"xla_b", "2"};
  const struct {
    std::string current;
    std::string ours;
    bool knows_a, knows_b;
    std::string expected;
  } cases[] = {
      {"", "", true, true, " --xla_a=1 --xla_b=2"},
      {"", "", true, false, " --xla_a=1"},
      {"--xla_b=9 --xla_c", "", true, true, "--xla_b=9 --xla_c --xla_a=1"},
      // a second plugin, which knows less than the first
      {"--xla_c --xla_a=1 --xla_b=2", " --xla_a=1 --xla_b=2", false, true, "--xla_c --xla_b=2"},
      {" --xla_a=1", " --xla_a=1", false, false, ""},
      {" --xla_a=1", " --xla_a=1", true, false, " --xla_a=1"},
      {"flags.txt", "", true, true, "flags.txt"},
  };
  for (const auto& c : cases) {
    std::string ours = c.ours;
    EXPECT_EQ(merge_flags(c.current, {{a, c.knows_a}, {b, c.knows_b}}, ours), c.expected) << "'" << c.current << "'";
  }
}

}  // namespace
}  // namespace flambeau::pjrt
