// Compiling in a child: what it gives, and what becomes of one that crashes, hangs or lies.
#include "pjrt/topology_compiler.h"

#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>

#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/wire.h"
#include "pjrt/test_util.h"
#include "pjrt/testing/fake_plugin.h"
#include "pjrt/topology_job.h"

namespace flambeau::pjrt {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// ---- a compiler made of a shell script ----------------------------------------------------------------------------------

class ScriptedCompiler : public testing::Test {
 protected:
  void be(const std::string& script) {
    const auto file = folder_.add("compiler", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    setenv("FLAMBEAU_TOPOLOGY_COMPILER", file.c_str(), 1);
  }
  void TearDown() override { unsetenv("FLAMBEAU_TOPOLOGY_COMPILER"); }

  TemporaryFolder folder_;
  const TopologyJob job_{
      .plugin = "plugin.so", .topology = "v5e:2x4", .program = "text", .time_limit = std::chrono::seconds(60)};
};

TEST_F(ScriptedCompiler, GivesTheResultAndWhatWasWritten) {
  const TopologyResult want{.optimized_hlo = std::string("a\0b", 3),
                            .buffer_assignment = "BufferAssignment:\n",
                            .live_ranges = "HloLiveRange",
                            .device_count = 8,
                            .device_kind = "TPU v5 lite",
                            .device_memory = 16};
  const TemporaryFolder prepared;
  write_result(prepared.path, want);
  be("echo to stdout; echo to stderr >&2; cp " + prepared.path.string() + "/* $1; cat $1/program >&2");
  const TopologyResult got = compile_apart(job_);
  EXPECT_EQ(got.optimized_hlo, want.optimized_hlo);
  EXPECT_EQ(got.buffer_assignment, want.buffer_assignment);
  EXPECT_EQ(got.live_ranges, want.live_ranges);
  EXPECT_EQ(got.device_count, 8);
  EXPECT_EQ(got.device_kind, want.device_kind);
  EXPECT_EQ(got.device_memory, 16);
  EXPECT_EQ(got.diagnostics, "to stdout\nto stderr\ntext");
}

TEST_F(ScriptedCompiler, FailsAsTheCompilerDid) {
  const struct {
    std::string script, want;
  } kCases[] = {
      {"kill -SEGV $$", "signal 11"},
      {"echo a last word >&2; exit 3", "exit code 3 and no result. a last word"},
      {"head -c 100000 /dev/zero | tr '\\0' 'x' >&2; echo; echo the end >&2; exit 1", "the end"},
      {"echo '{\"end\":' > $1/result", "not whole"},
      {"echo '[]' > $1/result", "not whole"},
      {"echo '{\"end\":0}' > $1/result", "not whole"},
      {"echo '{\"end\":3,\"text\":\"cannot\"}' > $1/result", "cannot"},
  };
  for (const auto& c : kCases) {
    be(c.script);
    const std::string message = message_of<PluginError>([&] { compile_apart(job_); });
    EXPECT_THAT(message, HasSubstr(c.want));
    EXPECT_LT(message.size(), 3000u);
  }
  const TemporaryFolder prepared;
  write_result(prepared.path, {.optimized_hlo = "module", .buffer_assignment = "BufferAssignment:\n"}, "too large");
  be("echo a remark >&2; cp " + prepared.path.string() + "/* $1");
  try {
    compile_apart(job_);
    ADD_FAILURE() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_STREQ(error.what(), "too large");
    EXPECT_EQ(error.told().optimized_hlo, "module");
    EXPECT_EQ(error.told().buffer_assignment, "BufferAssignment:\n");
    EXPECT_EQ(error.told().diagnostics, "a remark\n");
  }
  be("echo '{\"end\":2,\"text\":\"impossible\"}' > $1/result");
  EXPECT_EQ(message_of<InvalidArgument>([&] { compile_apart(job_); }), "impossible");
}

TEST_F(ScriptedCompiler, IsEndedWhenItsTimeIsOver) {
  be("echo still at it >&2; exec sleep 100");
  TopologyJob job = job_;
  job.time_limit = std::chrono::seconds(1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(message_of<PluginError>([&] { compile_apart(job); }),
              AllOf(HasSubstr("within 1 s"), HasSubstr("still at it")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// The process whose number the script left in `file` is gone.
bool is_gone(const std::filesystem::path& file) {
  return kill(std::stoi(read_file(file)), 0) != 0;
}

TEST_F(ScriptedCompiler, IsEndedWhenItTakesTooMuchMemory) {
  TopologyJob job = job_;
  job.memory_limit = 1 << 10;  // less than any shell
  be("exec sleep 60");
  EXPECT_THAT([&] { compile_apart(job); }, testing::ThrowsMessage<PluginError>(HasSubstr("within 0 MiB of memory")));
}

TEST_F(ScriptedCompiler, IsEndedWhenNobodyWaits) {
  const TemporaryFolder folder;
  const auto pid = folder.path / "pid";
  TopologyJob job = job_;
  job.goes_on = [&] { return !std::filesystem::exists(pid) || std::filesystem::file_size(pid) == 0; };
  be("echo $$ > " + pid.string() + "; exec sleep 60");
  EXPECT_THROW(compile_apart(job), Cancelled);
  EXPECT_TRUE(is_gone(pid));
}

TEST_F(ScriptedCompiler, MustBeThere) {
  setenv("FLAMBEAU_TOPOLOGY_COMPILER", "/nowhere/compiler", 1);
  EXPECT_THAT(message_of<InvalidArgument>([&] { compile_apart(job_); }), HasSubstr("/nowhere/compiler"));
}

TEST(TopologyJob, GoesThroughFilesUnchanged) {
  const TopologyJob job{.plugin = "/a b/plugin.so",
                        .topology = "v5:4x4x4",
                        .attributes = {{"wrap", std::vector<int64_t>{1, 1, 0}}, {"num_slices", int64_t{2}}, {"flag", true}},
                        .program = std::string("text \0 \xff", 8),
                        .options = {.num_replicas = 2,
                                    .num_partitions = 3,
                                    .use_shardy = false,
                                    .device_ids = {5, 4, 3, 2, 1, 0},
                                    .overrides = {{"a", true}, {"b", int64_t{-1}}, {"c", 0.25}, {"d", std::string("x\"y")}},
                                    .preferences = {{"e", int64_t{7}}}},
                        .whole = true};
  const TemporaryFolder folder;
  write_job(folder.path, job);
  const TopologyJob read = read_job(folder.path);
  EXPECT_EQ(read.plugin, job.plugin);
  EXPECT_EQ(read.topology, job.topology);
  EXPECT_EQ(read.attributes, job.attributes);
  EXPECT_EQ(read.program, job.program);
  EXPECT_EQ(read.options.to_proto(), job.options.to_proto());
  EXPECT_TRUE(read.whole);
}

TEST(TopologyJob, ReadsWhatXlaWrote) {
  const TemporaryFolder folder;
  TopologyResult result;
  read_dump(folder.path / "nowhere", result);
  read_dump(folder.path, result);
  EXPECT_EQ(result.buffer_assignment, "");
  folder.add("module_0000.m.after_optimizations-buffer-assignment-values.txt", "BufferAssignment: no, its values");
  folder.add("module_0000.small.after_optimizations-buffer-assignment.txt", "BufferAssignment:\n");
  folder.add("module_0001.m.after_optimizations-buffer-assignment.txt", "BufferAssignment:\nallocation 0: size 1024, page 0:\n");
  folder.add("module_0001.m.after_optimizations-live-range.txt", "HloLiveRange");
  folder.add("module_0001.m.after_optimizations.hlo.pb", ProtoWriter().bytes(1, "the module").str());
  read_dump(folder.path, result);
  EXPECT_EQ(result.buffer_assignment, "BufferAssignment:\nallocation 0: size 1024, page 0:\n");
  EXPECT_EQ(result.live_ranges, "HloLiveRange");
  EXPECT_EQ(result.optimized_hlo, "the module");
}

// The child's part, where it can leave no word in its folder.
TEST(TopologyJob, SaysOnStandardErrorWhatItCannotWrite) {
  EXPECT_EXIT(_exit(run_topology_job("/nowhere/at/all")), testing::ExitedWithCode(2), "/nowhere/at/all/result");
}

TEST(FirstPhase, NeedsAPluginThatHasPhases) {
  const auto topology = Topology::create(fake::fake_plugin(), "fake:2x2");
  EXPECT_THAT(message_of<PluginError>([&] { topology->first_phase("text", {}); }), HasSubstr("does not compile in phases"));
}

TEST(Topology, CompilesWithoutPreferencesThatThePluginDoesNotKnow) {
  const auto topology = Topology::create(fake::fake_plugin(), "fake:2x2");
  const std::string program = module("func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }");
  const fake::FaultScope fault({.unknown_option = "xla_new"});
  EXPECT_NO_THROW(topology->compile(program, {.preferences = {{"xla_new", true}, {"xla_old", true}}}));
  EXPECT_THAT(message_of<RefusedOption>([&] { topology->compile(program, {.overrides = {{"xla_new", true}}}); }),
              HasSubstr("got xla_new; correct it in compile.options"));
}

TEST(FirstPhase, OutOfMemoryIsAnErrorOfItsOwn) {
  const auto topology = Topology::create(fake::fake_plugin(), "fake:2x2");
  const fake::FaultScope fault({.compile = {.text = "needs 23.5G", .code = 8}});
  EXPECT_THAT(message_of<OutOfMemory>([&] { topology->compile("text", {}); }), HasSubstr("needs 23.5G"));
}

// ---- TPU's compiler -----------------------------------------------------------------------------------------------------

class TpuCompiler : public LibtpuTest {
 protected:
  void SetUp() override {
    LibtpuTest::SetUp();
    job.plugin = libtpu_;
  }
  TopologyJob job{.plugin = {}, .topology = "v5e:2x4", .options = {.num_partitions = 8}};
};

std::string sum_of(const std::string& type, const std::string& sharding) {
  const std::string argument = ": tensor<" + type + "> {sdy.sharding = #sdy.sharding<@mesh, " + sharding + ">}";
  return module("sdy.mesh @mesh = <[\"a\"=8]>\nfunc.func public @main(%a" + argument + ", %b" + argument + ") -> (tensor<" +
                type + "> {sdy.sharding = #sdy.sharding<@mesh, " + sharding +
                ">}) {\n  %0 = \"stablehlo.add\"(%a, %b) : (tensor<" + type + ">, tensor<" + type + ">) -> tensor<" + type +
                ">\n  return %0 : tensor<" + type + ">\n}");
}

TEST_F(TpuCompiler, GivesModuleAndMemoryOfEitherWay) {
  job.program = sum_of("1024x1024xf32", R"([{"a"}, {}])");
  constexpr int64_t kArray = 1024 * 1024 * 4 / 8;
  for (const bool whole : {false, true}) {
    job.whole = whole;
    const TopologyResult result = compile_apart(job);
    EXPECT_EQ(proto_field(result.optimized_hlo, 1), "m");
    EXPECT_EQ(result.device_count, 8);
    EXPECT_EQ(result.device_kind, "TPU v5 lite");
    EXPECT_GT(result.device_memory, int64_t{15} << 30);
    EXPECT_THAT(result.buffer_assignment, HasSubstr(fmt::format("size {},", kArray)));
    EXPECT_THAT(result.live_ranges, HasSubstr("BufferLiveRange:"));
  }
}

TEST_F(TpuCompiler, SaysThatAProgramDoesNotFit) {
  job.program = sum_of("65536x32768xf32", "[{}, {}]");  // 8 GiB each, on every device
  try {
    compile_apart(job);
    ADD_FAILURE() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("15.7")));
    EXPECT_THAT(error.told().buffer_assignment, HasSubstr(fmt::format("size {},", int64_t{8} << 30)));
    EXPECT_EQ(proto_field(error.told().optimized_hlo, 1), "m");
    EXPECT_GT(error.told().device_memory, int64_t{15} << 30);
  }
}

TEST_F(TpuCompiler, PassesItsRefusalsOn) {
  job.program = "nonsense";
  EXPECT_THAT(message_of<PluginError>([&] { compile_apart(job); }), HasSubstr("[pjrt.first_phase]"));
  job.program = sum_of("8x8xf32", R"([{"a"}, {}])");
  job.options.overrides = {{"xla_tpu_no_such_option", true}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { compile_apart(job); }), HasSubstr("got xla_tpu_no_such_option; correct it in compile.options"));
  job.options.overrides = {{"xla_tpu_scoped_vmem_limit_kib", std::string("much")}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { compile_apart(job); }), HasSubstr("xla_tpu_scoped_vmem_limit_kib can take, got much"));
  job.options.overrides = {};
  job.options.preferences = {{"xla_tpu_no_such_option", true}};
  EXPECT_NO_THROW(compile_apart(job));
  job.topology = "v99:2x4";
  EXPECT_THAT(message_of<PluginError>([&] { compile_apart(job); }), HasSubstr("[pjrt.topology]"));
  job.topology = "v5e:2x0";
  EXPECT_THAT(message_of<InvalidArgument>([&] { compile_apart(job); }), HasSubstr("v5e:2x0"));
}

// The partitioner's warning of a resharding that it can only do by gathering all.
TEST_F(TpuCompiler, LetsItsWarningsBeSeen) {
  job.program = module(R"(
    sdy.mesh @mesh = <["x"=4,"y"=2]>
    func.func public @main(%a: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
        -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
      %0 = "stablehlo.add"(%a, %a) : (tensor<16x16x16xf32>, tensor<16x16x16xf32>) -> tensor<16x16x16xf32>
      return %0 : tensor<16x16x16xf32>
    })");
  EXPECT_THAT(compile_apart(job).diagnostics, HasSubstr("Involuntary full rematerialization"));
}

}  // namespace
}  // namespace flambeau::pjrt
