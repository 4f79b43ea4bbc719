// Compiling, running, donating, serializing.
#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/wire.h"
#include "pjrt/test_util.h"

namespace flambeau::pjrt {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ExecutableOnCpu : public CpuPlugins {};
FLAMBEAU_ON_CPU_PLUGINS(ExecutableOnCpu);

// (a + a, 1.5) of a 2x3 array.
const std::string kDouble = module(R"(
  func.func public @main(%a: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<f32>) {
    %0 = "stablehlo.add"(%a, %a) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %c = "stablehlo.constant"() {value = dense<1.5> : tensor<f32>} : () -> tensor<f32>
    return %0, %c : tensor<2x3xf32>, tensor<f32>
  })");

std::string donating(const std::string& attribute) {
  return module("func.func public @main(%a: tensor<4096xf32> {" + attribute +
                R"(}, %b: tensor<4096xf32>) -> tensor<4096xf32> {
    %0 = "stablehlo.add"(%a, %b) : (tensor<4096xf32>, tensor<4096xf32>) -> tensor<4096xf32>
    return %0 : tensor<4096xf32>
  })");
}

TEST_P(ExecutableOnCpu, RunsOnOneDevice) {
  const auto c = client();
  const auto e = c->compile(kDouble);
  EXPECT_EQ(e->num_outputs(), 2u);
  EXPECT_THAT(e->device_ids(), ElementsAre(0));
  EXPECT_EQ(e->name(), "m");
  const auto a = upload(*c, {1, 2, 3, 4, 5, 6}, {2, 3});
  const Buffer* arguments[] = {a.get()};
  for (int i = 0; i < 3; ++i) {
    const auto outputs = e->execute(arguments);
    ASSERT_EQ(outputs.size(), 2u);
    EXPECT_THAT(download(*outputs[0]), ElementsAre(2, 4, 6, 8, 10, 12));
    EXPECT_THAT(download(*outputs[1]), ElementsAre(1.5));
    // What the outputs know without asking is what the plugin answers.
    for (const auto& output : outputs) EXPECT_FALSE(output->deleted());
    EXPECT_THAT(outputs[0]->dims(), ElementsAre(2, 3));
    EXPECT_THAT(outputs[1]->dims(), ElementsAre());
    EXPECT_EQ(outputs[0]->dtype(), DType::F32);
  }
  EXPECT_FALSE(a->deleted());
}

TEST_P(ExecutableOnCpu, RunsOnTheDeviceItWasCompiledFor) {
  const auto c = client(4);
  const auto e = c->compile(kDouble, {.device_ids = {2}});
  EXPECT_THAT(e->device_ids(), ElementsAre(2));
  const auto a = upload(*c, {1, 2, 3, 4, 5, 6}, {2, 3}, 2);
  const Buffer* arguments[] = {a.get()};
  const auto outputs = e->execute(arguments);
  EXPECT_EQ(outputs[0]->device_id(), 2);
  EXPECT_THAT(download(*outputs[0]), ElementsAre(2, 4, 6, 8, 10, 12));
}

TEST_P(ExecutableOnCpu, RunsAnywhereWhenPortable) {
  const auto c = client(4);
  const auto e = c->compile(kDouble, {.portable = true});
  EXPECT_THAT(e->device_ids(), ElementsAre());
  for (const size_t device : {3, 0}) {
    const auto a = upload(*c, {1, 2, 3, 4, 5, 6}, {2, 3}, device);
    const Buffer* arguments[] = {a.get()};
    const auto outputs = e->execute(arguments);
    EXPECT_EQ(outputs[0]->device_id(), static_cast<int>(device));
    EXPECT_THAT(download(*outputs[0]), ElementsAre(2, 4, 6, 8, 10, 12));
  }
}

TEST_P(ExecutableOnCpu, TakesAndGivesNothing) {
  const auto c = client();
  const auto e = c->compile(module("func.func public @main() { return }"));
  EXPECT_EQ(e->num_outputs(), 0u);
  EXPECT_TRUE(e->execute(std::span<const Buffer* const>()).empty());
}

// More arguments and outputs than the launch keeps on its stack.
TEST_P(ExecutableOnCpu, TakesAndGivesMany) {
  constexpr int kCount = 100;
  std::string parameters, names, types;
  for (int i = 0; i < kCount; ++i) {
    const std::string comma = i == 0 ? "" : ", ", name = "%a" + std::to_string(i);
    parameters += comma + name + ": tensor<1xf32>";
    names += comma + name;
    types += comma + "tensor<1xf32>";
  }
  const auto c = client();
  const auto e = c->compile(
      module("func.func public @main(" + parameters + ") -> (" + types + ") { return " + names + " : " + types + " }"));
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<const Buffer*> arguments;
  for (int i = 0; i < kCount; ++i) {
    buffers.push_back(upload(*c, {static_cast<float>(i)}, {1}));
    arguments.push_back(buffers.back().get());
  }
  const auto outputs = e->execute(arguments);
  ASSERT_EQ(outputs.size(), static_cast<size_t>(kCount));
  for (int i = 0; i < kCount; ++i) EXPECT_THAT(download(*outputs[static_cast<size_t>(i)]), ElementsAre(i));
}

// Global sum of a row-sharded array over eight devices, by Shardy's partitioner and by hand.
TEST_P(ExecutableOnCpu, ReducesOverEightDevices) {
  const std::string by_sharding = module(R"(
    sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%a: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
        -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
            tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
      %zero = "stablehlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
      %sum = "stablehlo.reduce"(%a, %zero) ({
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %s = "stablehlo.add"(%l, %r) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          "stablehlo.return"(%s) : (tensor<f32>) -> ()
      }) {dimensions = array<i64: 0>} : (tensor<16x4xf32>, tensor<f32>) -> tensor<4xf32>
      return %sum, %a : tensor<4xf32>, tensor<16x4xf32>
    })");
  const std::string by_hand = module(R"(
    sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%a: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
        -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
            tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
      %sum = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}]>]
          manual_axes={"x"} (%part: tensor<2x4xf32>) {
        %zero = "stablehlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
        %local = "stablehlo.reduce"(%part, %zero) ({
          ^bb0(%l: tensor<f32>, %r: tensor<f32>):
            %s = "stablehlo.add"(%l, %r) : (tensor<f32>, tensor<f32>) -> tensor<f32>
            "stablehlo.return"(%s) : (tensor<f32>) -> ()
        }) {dimensions = array<i64: 0>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
        %all = "stablehlo.all_reduce"(%local) ({
          ^bb0(%l: tensor<f32>, %r: tensor<f32>):
            %s = "stablehlo.add"(%l, %r) : (tensor<f32>, tensor<f32>) -> tensor<f32>
            "stablehlo.return"(%s) : (tensor<f32>) -> ()
        }) {replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>,
            channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}
            : (tensor<4xf32>) -> tensor<4xf32>
        sdy.return %all : tensor<4xf32>
      } : (tensor<16x4xf32>) -> tensor<4xf32>
      return %sum, %a : tensor<4xf32>, tensor<16x4xf32>
    })");
  const auto c = client(8);
  std::vector<std::unique_ptr<Buffer>> parts;
  std::vector<std::vector<const Buffer*>> arguments;
  for (size_t d = 0; d < 8; ++d) {
    parts.push_back(upload(*c, std::vector<float>(8, static_cast<float>(d)), {2, 4}, d));
    arguments.push_back({parts.back().get()});
  }
  for (const auto& program : {by_sharding, by_hand}) {
    const auto e = c->compile(program, {.num_partitions = 8});
    EXPECT_THAT(e->device_ids(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto outputs = e->execute(arguments);
      ASSERT_EQ(outputs.size(), 8u);
      for (size_t d = 0; d < 8; ++d) {
        ASSERT_EQ(outputs[d].size(), 2u);
        EXPECT_EQ(outputs[d][0]->device_id(), static_cast<int>(d));
        EXPECT_THAT(download(*outputs[d][0]), testing::Each(56.f));
        EXPECT_THAT(outputs[d][1]->dims(), ElementsAre(2, 4)) << "of this device's part";
        EXPECT_THAT(download(*outputs[d][1]), testing::Each(static_cast<float>(d)));
      }
    }
  }
}

// Replicas, in an order of devices of our own, launched by several threads at once.
TEST_P(ExecutableOnCpu, ReducesOverReplicasFromManyThreads) {
  const std::string program = module(R"(
    func.func public @main(%a: tensor<f32>) -> (tensor<f32>, tensor<ui32>) {
      %0 = "stablehlo.all_reduce"(%a) ({
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %s = "stablehlo.add"(%l, %r) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          "stablehlo.return"(%s) : (tensor<f32>) -> ()
      }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<f32>) -> tensor<f32>
      %1 = "stablehlo.replica_id"() : () -> tensor<ui32>
      return %0, %1 : tensor<f32>, tensor<ui32>
    })");
  const auto c = client(4);
  const auto e = c->compile(program, {.num_replicas = 4, .device_ids = {3, 1, 0, 2}});
  EXPECT_THAT(e->device_ids(), ElementsAre(3, 1, 0, 2));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      std::vector<std::unique_ptr<Buffer>> parts;
      std::vector<std::vector<const Buffer*>> arguments;
      for (const int id : e->device_ids()) {
        parts.push_back(upload(*c, {static_cast<float>(1 << id)}, {}, static_cast<size_t>(id)));
        arguments.push_back({parts.back().get()});
      }
      for (int i = 0; i < 20; ++i) {
        const auto outputs = e->execute(arguments);
        for (size_t d = 0; d < 4; ++d) {
          EXPECT_THAT(download(*outputs[d][0]), ElementsAre(15));
          EXPECT_THAT(download<uint32_t>(*outputs[d][1]), ElementsAre(d));
          EXPECT_EQ(outputs[d][0]->device_id(), e->device_ids()[d]);
        }
      }
    });
  }
  for (auto& t : threads) t.join();
}

TEST_P(ExecutableOnCpu, DonatesUnlessToldNotTo) {
  const auto c = client();
  for (const std::string attribute : {"tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"}) {
    const auto e = c->compile(donating(attribute));
    const auto b = upload(*c, std::vector<float>(4096, 2), {4096});
    for (const bool keep : {true, false}) {
      const auto a = upload(*c, std::vector<float>(4096, 1), {4096});
      const Buffer* arguments[] = {a.get(), b.get()};
      const int64_t kept[] = {0};
      const auto outputs = e->execute(arguments, keep ? std::span<const int64_t>(kept) : std::span<const int64_t>());
      EXPECT_THAT(download(*outputs[0]), testing::Each(3.f)) << attribute;
      EXPECT_EQ(a->deleted(), !keep) << attribute;
      EXPECT_FALSE(b->deleted()) << attribute;
      if (keep) {
        EXPECT_THAT(download(*a), testing::Each(1.f)) << attribute;
      } else {
        message_of<PluginError>([&] { download(*a); });
        message_of<PluginError>([&] { e->execute(arguments); });
      }
    }
  }
}

TEST_P(ExecutableOnCpu, SerializesAndComesBack) {
  const auto c = client(2);
  const std::string bytes = c->compile(kDouble, {.device_ids = {1}})->serialize();
  EXPECT_GT(bytes.size(), 100u);
  const auto other = client(2);  // another client of the same plugin
  const auto e = other->deserialize(bytes);
  EXPECT_EQ(e->num_outputs(), 2u);
  EXPECT_THAT(e->device_ids(), ElementsAre(1));
  const auto a = upload(*other, {1, 2, 3, 4, 5, 6}, {2, 3}, 1);
  const Buffer* arguments[] = {a.get()};
  EXPECT_THAT(download(*e->execute(arguments)[0]), ElementsAre(2, 4, 6, 8, 10, 12));
}

TEST_P(ExecutableOnCpu, RefusesToDeserializeGarbage) {
  const auto c = client();
  const std::string good = c->compile(kDouble)->serialize();
  for (const std::string& bytes : {std::string("garbage"), std::string(1000, '\xff'), good.substr(0, good.size() / 2)}) {
    EXPECT_THAT(message_of<PluginError>([&] { c->deserialize(bytes); }), HasSubstr("[pjrt.deserialize]"));
  }
}

TEST_P(ExecutableOnCpu, ReportsWhatThePluginSaysOfAProgram) {
  const auto c = client();
  const struct {
    std::string program;
    std::string expected;
  } cases[] = {
      {"", "main"},
      {"this is not MLIR", "error"},
      {module("func.func public @main() -> tensor<f32> { return %x : tensor<f32> }"), "undeclared SSA value"},
      {module(
           "func.func public @main(%a: tensor<2xf32>) -> tensor<3xf32> { %0 = \"stablehlo.add\"(%a, %a) : (tensor<2xf32>, "
           "tensor<2xf32>) -> tensor<3xf32> return %0 : tensor<3xf32> }"),
       "stablehlo.add"},
  };
  for (const auto& p : cases) {
    EXPECT_THAT(message_of<PluginError>([&] { c->compile(p.program); }),
                AllOf(HasSubstr("[pjrt.compile]"), HasSubstr(p.expected)));
  }
}

TEST_P(ExecutableOnCpu, RefusesOptionsByNameAndLeavesPreferencesOut) {
  const auto c = client();
  const struct {
    CompileFlags overrides;
    const char *option, *words;
  } cases[] = {
      {{{"xla_no_such_flag", true}}, "xla_no_such_flag", "got xla_no_such_flag; correct it in compile.options"},
      {{{"xla_llvm_disable_expensive_passes", std::string("rather")}}, "xla_llvm_disable_expensive_passes", "got rather; correct it in"},
  };
  for (const auto& row : cases) {
    // Asked for, it counts, whatever is preferred.
    const CompileOptions options{.overrides = row.overrides, .preferences = {{row.option, false}}};
    try {
      c->compile(kDouble, options);
      ADD_FAILURE() << row.option;
    } catch (const RefusedOption& refused) {
      EXPECT_EQ(refused.option(), row.option);
      EXPECT_THAT(refused.what(), AllOf(HasSubstr("[pjrt.compile]"), HasSubstr(row.words), Not(HasSubstr("\n"))));
    }
    EXPECT_NO_THROW(c->compile(kDouble, {.preferences = row.overrides}));
  }
}

TEST_P(ExecutableOnCpu, RefusesWrongArguments) {
  const auto c = client(2), other = client();
  const auto e = c->compile(kDouble);
  const auto a = upload(*c, std::vector<float>(6), {2, 3}), stranger = upload(*other, std::vector<float>(6), {2, 3}),
             small = upload(*c, std::vector<float>(2), {2});
  const Buffer *none[] = {nullptr}, *two[] = {a.get(), a.get()}, *strange[] = {stranger.get()}, *wrong[] = {small.get()};
  EXPECT_THAT(message_of<InvalidArgument>([&] { e->execute(none); }), HasSubstr("argument 0"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { e->execute(strange); }), HasSubstr("client"));
  message_of<PluginError>([&] { e->execute(two); });
  message_of<PluginError>([&] { e->execute(wrong); });
  message_of<PluginError>([&] { e->execute(std::span<const Buffer* const>()); });

  const auto both = c->compile(kDouble, {.num_replicas = 2});
  const Buffer* one[] = {a.get()};
  message_of<InvalidArgument>([&] { both->execute(one); });
  const std::vector<std::vector<const Buffer*>> uneven = {{a.get()}, {}}, too_few = {{a.get()}};
  message_of<InvalidArgument>([&] { both->execute(uneven); });
  message_of<InvalidArgument>([&] { both->execute(too_few); });
  EXPECT_THAT(message_of<InvalidArgument>([&] { c->compile(kDouble, {.num_replicas = 3}); }),
              HasSubstr("at most 2 devices"));
}

TEST_P(ExecutableOnCpu, TellsMemoryAndFingerprint) {
  const auto c = client();
  const auto e = c->compile(donating("tf.aliasing_output = 0 : i32"));
  const MemoryStats stats = e->memory_stats();
  EXPECT_EQ(stats.argument, 2 * 4096 * 4);
  EXPECT_EQ(stats.output, 4096 * 4);
  EXPECT_EQ(stats.alias, 4096 * 4);
  EXPECT_EQ(stats.host, 0);
  EXPECT_GE(stats.peak, stats.argument);
  EXPECT_EQ(e->fingerprint(), c->compile(donating("tf.aliasing_output = 0 : i32"))->fingerprint());
}

// The module's name is field 1 of HloModuleProto, its entry computation's field 2, its computations field 3.
TEST_P(ExecutableOnCpu, GivesTheOptimizedModule) {
  const auto e = client()->compile(kDouble);
  const std::string hlo = e->optimized_hlo();
  EXPECT_EQ(proto_field(hlo, 1), "m");
  EXPECT_FALSE(proto_field(hlo, 2).empty());
  int computations = 0;
  for (ProtoReader reader(hlo); reader.next();) computations += reader.field() == 3;
  EXPECT_GE(computations, 1);
}

// The compiler writes the flags that differ from its own defaults to a file.
TEST_P(ExecutableOnCpu, GivesTheCompilerItsFlags) {
  const auto c = client();
  for (const bool excess : {false, true}) {
    const TemporaryFolder folder;
    CompileOptions options{.overrides = {{"xla_dump_to", folder.path.string()}, {"xla_dump_hlo_as_text", true}}};
    if (excess) options.overrides["xla_allow_excess_precision"] = true;
    c->compile(kDouble, options);
    std::string flags;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
      if (entry.path().extension() == ".debug_options") flags = read_file(entry.path());
    }
    EXPECT_THAT(flags, HasSubstr("xla_dump_hlo_as_text: true"));
    EXPECT_EQ(flags.find("xla_allow_excess_precision: false") == std::string::npos, excess) << flags;
    EXPECT_THAT(flags, HasSubstr("xla_cpu_collective_call_terminate_timeout_seconds: 86400")) << "from XLA_FLAGS";
  }
}

// Objects that outlive main: a static buffer, and a thread that drops buffers while the process ends.
TEST_P(ExecutableOnCpu, MayBeDroppedWhileTheProcessExits) {
  setenv("LSAN_OPTIONS", "detect_leaks=0", 0);  // what is dropped then is left to the operating system, on purpose
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static std::unique_ptr<Buffer> last;
        static std::unique_ptr<Executable> program;
        const auto c = client(2);
        program = c->compile(kDouble);
        last = upload(*c, {1, 2, 3, 4, 5, 6}, {2, 3});
        std::thread([&c] {
          for (;;) {
            const auto a = upload(*c, std::vector<float>(6), {2, 3});
            if (a->byte_size() == 0) break;
          }
        }).detach();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(CompileOptions, AreOneMessageOfXla) {
  const struct {
    CompileOptions options;
    std::string expected;  // in hexadecimal
  } cases[] = {
      // 3 { 1: -1  4: 1  5: 1 }  7 { "xla_allow_excess_precision" { 2: 0 } }
      {{},
       "1a0f08ffffffffffffffffff0120012801"
       "3a200a1a786c615f616c6c6f775f6578636573735f707265636973696f6e12021000"},
      // 9 { 1: 2  2: 2  3 { 1: [0, 2] }  3 { 1: [1, 3] } }: partition by partition; 6: 1; 19: 1; 7 "a": {4: 1.0}
      {{.num_replicas = 2, .num_partitions = 2, .device_ids = {0, 1, 2, 3}, .overrides = {{"a", 1.0}}},
       "1a2608ffffffffffffffffff01200228023001"
       "4a10080210021a040a0200021a040a020103"
       "980101"
       "3a0e0a0161120921000000000000f03f"
       "3a200a1a786c615f616c6c6f775f6578636573735f707265636973696f6e12021000"},
      // 4: 1 and no assignment; 7 "a": {3: 300}, "b": {1: "c"}
      {{.portable = true, .overrides = {{"a", int64_t{300}}, {"b", std::string("c")}, {"xla_allow_excess_precision", true}}},
       "1a0f08ffffffffffffffffff0120012801"
       "2001"
       "3a080a0161120318ac02"
       "3a080a016212030a0163"
       "3a200a1a786c615f616c6c6f775f6578636573735f707265636973696f6e12021001"},
  };
  for (const auto& c : cases) {
    std::string hex;
    for (const unsigned char byte : c.options.to_proto()) hex += fmt::format("{:02x}", byte);
    EXPECT_EQ(hex, c.expected);
    EXPECT_EQ(c.options.hash(), CompileOptions(c.options).hash());
  }
  EXPECT_NE(CompileOptions{}.hash(), CompileOptions{.num_partitions = 2}.hash());
  const CompileOptions preferred{.preferences = {{"a", true}}}, asked{.overrides = {{"a", true}}};
  const CompileOptions both{.overrides = {{"a", true}}, .preferences = {{"a", false}, {"xla_allow_excess_precision", true}}};
  EXPECT_EQ(preferred.to_proto(), asked.to_proto());
  EXPECT_NE(both.to_proto(), asked.to_proto());  // by the second alone:
  EXPECT_EQ(both.to_proto(), (CompileOptions{.overrides = {{"a", true}, {"xla_allow_excess_precision", true}}}).to_proto());
}

TEST(CompileOptions, RefuseContradictions) {
  const CompileOptions wrong[] = {{.num_replicas = 0},
                                  {.num_partitions = -1},
                                  {.num_partitions = 2, .portable = true},
                                  {.num_partitions = 2, .device_ids = {0}}};
  for (const auto& options : wrong) EXPECT_THROW(options.to_proto(), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::pjrt
