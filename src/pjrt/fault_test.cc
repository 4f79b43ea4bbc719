// What the layers above see when a plugin fails, and that nothing is left over.
#include <gmock/gmock.h>

#include "base/error.h"
#include "pjrt/test_util.h"
#include "pjrt/testing/fake_objects.h"
#include "xla/pjrt/c/pjrt_c_api_ffi_extension.h"

namespace flambeau::pjrt {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kProgram = module(R"(
  func.func public @main(%a: tensor<2x3xf32> {tf.aliasing_output = 0 : i32, note = "(,>"}, %b: tensor<f32>)
      -> (tensor<2x3xf32> {jax.result_info = "[a, b]"}, tensor<4xi64>) {
    return %a, %b : tensor<2x3xf32>, tensor<4xi64>
  })");

class FaultTest : public testing::Test {
 protected:
  // Everything that a test makes is gone at its end, errors and events too.
  void TearDown() override {
    client.reset();
    EXPECT_EQ(fake::live().clients, before.clients);
    EXPECT_EQ(fake::live().executables, before.executables);
    EXPECT_EQ(fake::live().buffers, before.buffers);
    EXPECT_EQ(fake::live().events, before.events);
    EXPECT_EQ(fake::live().errors, before.errors);
    EXPECT_EQ(fake::live().topologies, before.topologies);
  }
  std::unique_ptr<Buffer> scalar() const { return upload(*client, {1}, {}); }
  std::unique_ptr<Buffer> matrix() const { return upload(*client, {1, 2, 3, 4, 5, 6}, {2, 3}); }

  const fake::Live before = fake::live();
  std::shared_ptr<const Client> client = Client::create(fake::fake_plugin());
};

TEST_F(FaultTest, WithoutFaultsTheFakeWorks) {
  EXPECT_EQ(client->platform_name(), "fake");
  EXPECT_EQ(client->devices().size(), 4u);
  const auto e = client->compile(kProgram);
  EXPECT_EQ(e->name(), "m");
  const auto a = matrix(), b = scalar();
  const Buffer* arguments[] = {a.get(), b.get()};
  const int64_t kept[] = {0};
  const auto outputs = e->execute(arguments, kept);
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_THAT(outputs[0]->dims(), ElementsAre(2, 3));
  EXPECT_THAT(download(*outputs[0]), Each(0.f));
  EXPECT_EQ(outputs[1]->dtype(), DType::S64);
  EXPECT_THAT(download<int64_t>(*outputs[1]), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(download(*a), ElementsAre(1, 2, 3, 4, 5, 6));
  e->execute(arguments);
  EXPECT_TRUE(a->deleted());
  EXPECT_THAT(message_of<PluginError>([&] { download(*a); }), HasSubstr("donated"));
  EXPECT_EQ(e->memory_stats().argument, 28);
  EXPECT_EQ(e->optimized_hlo(), "") << "the fake's is not HLO";
  EXPECT_EQ(client->deserialize(e->serialize())->num_outputs(), 2u);
}

TEST_F(FaultTest, EveryCallRaisesThePluginsText) {
  const auto e = client->compile(kProgram);
  const auto a = matrix(), b = scalar();
  const Buffer* arguments[] = {a.get(), b.get()};
  const std::string serialized = e->serialize();
  std::vector<float> host(6);
  const struct {
    fake::Fault fake::Faults::* fault;
    std::function<void()> action;
    std::string where;
  } cases[] = {
      {&fake::Faults::create_client, [&] { Client::create(fake::fake_plugin()); }, "[pjrt.client]"},
      {&fake::Faults::compile, [&] { client->compile(kProgram); }, "[pjrt.compile]"},
      {&fake::Faults::serialize, [&] { e->serialize(); }, "[pjrt.serialize]"},
      {&fake::Faults::deserialize, [&] { client->deserialize(serialized); }, "[pjrt.deserialize]"},
      {&fake::Faults::execute, [&] { e->execute(arguments); }, "[pjrt.execute]"},
      {&fake::Faults::upload, [&] { matrix(); }, "[pjrt.upload]"},
      {&fake::Faults::download, [&] { a->to_host(host.data()); }, "[pjrt.to_host]"},
      {&fake::Faults::download, [&] { a->to_host_async(host.data()); }, "[pjrt.to_host]"},
      {&fake::Faults::download_late, [&] { a->to_host(host.data()); }, "[pjrt.to_host]"},
      {&fake::Faults::download_late, [&] { a->to_host_async(host.data()).await(); }, "[pjrt.await]"},
  };
  for (const auto& c : cases) {
    fake::Faults faults;
    faults.*c.fault = {.text = "the plugin is out of luck", .code = 8};
    const fake::FaultScope scope(faults);
    EXPECT_EQ(message_of<PluginError>(c.action), c.where + " RESOURCE_EXHAUSTED: the plugin is out of luck");
  }
  EXPECT_FALSE(a->deleted()) << "a failed launch donates nothing";
}

TEST_F(FaultTest, ALaunchMayFailLate) {
  const auto e = client->compile(kProgram);
  const auto a = matrix(), b = scalar();
  const Buffer* arguments[] = {a.get(), b.get()};
  const fake::FaultScope scope({.execute_late = {.text = "the device fell over", .after = 1}});
  const auto good = e->execute(arguments, std::vector<int64_t>{0});
  const auto bad = e->execute(arguments);
  EXPECT_THAT(download(*good[0]), Each(0.f));
  for (const auto& output : bad) {
    EXPECT_EQ(message_of<PluginError>([&] { output->ready().await(); }), "[pjrt.await] INTERNAL: the device fell over");
    std::string text;
    output->ready().on_ready([&](std::string_view error) { text = error; });
    EXPECT_EQ(text, "INTERNAL: the device fell over");
  }
  EXPECT_THAT(message_of<PluginError>([&] { download(*bad[0]); }), HasSubstr("the device fell over"));
}

TEST_F(FaultTest, EventsWaitForTheLaunch) {
  const auto e = client->compile(kProgram);
  const auto a = matrix(), b = scalar();
  const Buffer* arguments[] = {a.get(), b.get()};
  fake::LaunchesHeld held;
  const auto outputs = e->execute(arguments);
  const Event ready = outputs[0]->ready();
  std::vector<float> host(6, 9.f);
  const Event copied = outputs[0]->to_host_async(host.data());
  int calls = 0;
  ready.on_ready([&](std::string_view) { ++calls; });
  ready.on_ready([&](std::string_view) {
    ++calls;
    throw std::runtime_error("a callback's error stops at the edge");
  });
  EXPECT_FALSE(ready.ready());
  EXPECT_FALSE(copied.ready());
  EXPECT_EQ(calls, 0);
  held.finish();
  EXPECT_TRUE(ready.ready());
  EXPECT_EQ(calls, 2);
  copied.await();
  EXPECT_THAT(host, Each(0.f));
}

TEST_F(FaultTest, ZeroCopyUploadsReleaseTheHostWithTheBuffer) {
  const std::vector<float> host(6);
  const std::vector<int64_t> dims{2, 3};
  int calls = 0;
  auto buffer = client->upload({.data = host.data(), .dtype = DType::F32, .dims = dims}, client->devices()[0],
                               HostSemantics::ZeroCopyIfLegal, [&] { ++calls; });
  EXPECT_EQ(calls, 0);
  buffer.reset();
  EXPECT_EQ(calls, 1);
  const fake::FaultScope scope({.upload = {.text = "no"}});
  message_of<PluginError>([&] {
    client->upload({.data = host.data(), .dtype = DType::F32, .dims = dims}, client->devices()[0],
                   HostSemantics::ZeroCopyIfLegal, [&] { ++calls; });
  });
  EXPECT_EQ(calls, 1) << "nothing was read, nobody is told";
}

TEST_F(FaultTest, DevicesOfOtherProcessesAreSeenButNotUsed) {
  const auto c = Client::create(fake::fake_plugin(), {{"cpu_device_count", int64_t{8}}, {"process_count", int64_t{2}}});
  EXPECT_EQ(c->devices().size(), 8u);
  EXPECT_EQ(c->addressable_devices().size(), 4u);
  EXPECT_EQ(c->devices()[5].process_index, 1);
  EXPECT_FALSE(c->devices()[5].addressable);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                const float value = 1;
                c->upload({.data = &value, .dtype = DType::F32, .dims = {}}, c->devices()[5]);
              }),
              HasSubstr("process 1"));

  const auto e = c->compile(kProgram, {.num_partitions = 8});
  EXPECT_THAT(e->device_ids(), ElementsAre(0, 1, 2, 3)) << "of eight, those of this process";
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<std::vector<const Buffer*>> arguments(4);
  for (size_t d = 0; d < 4; ++d) {
    buffers.push_back(upload(*c, std::vector<float>(6), {2, 3}, d));
    arguments[d].push_back(buffers.back().get());
    buffers.push_back(upload(*c, {1}, {}, d));
    arguments[d].push_back(buffers.back().get());
  }
  const auto outputs = e->execute(arguments);
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_EQ(outputs[3][0]->device_id(), 3);
}

TEST_F(FaultTest, AClientWithoutDevicesIsAnError) {
  EXPECT_THAT(message_of<PluginError>([] { Client::create(fake::fake_plugin(), {{"cpu_device_count", int64_t{0}}}); }),
              HasSubstr("no device"));
  EXPECT_THAT(message_of<PluginError>([] { Client::create(fake::fake_plugin(), {{"colour", true}}); }), HasSubstr("colour"));
}

// Tables that are older, shorter, or have holes. Each lives as long as the process, as a plugin's does.
const Plugin& changed_fake(const std::string& name, const std::function<void(PJRT_Api&)>& change) {
  static auto* tables = new std::vector<std::unique_ptr<PJRT_Api>>;
  PJRT_Api* api = tables->emplace_back(std::make_unique<PJRT_Api>(fake::fake_api())).get();
  change(*api);
  return Plugin::from_api(api, name);
}

TEST_F(FaultTest, AnOlderPluginWorksWithoutNewerCalls) {
  const Plugin& old = changed_fake("old fake", [](PJRT_Api& api) {
    api.pjrt_api_version.minor_version = 20;
    api.struct_size = offsetof(PJRT_Api, PJRT_Executable_OutputElementTypes);  // the table ends before these
  });
  EXPECT_EQ(old.version(), std::pair(0, 20));
  const auto c = Client::create(old);
  const auto e = c->compile(kProgram);
  const auto a = upload(*c, std::vector<float>(6), {2, 3}, 1), b = upload(*c, {1}, {});
  const Buffer* arguments[] = {a.get(), b.get()};
  const auto outputs = e->execute(arguments);  // whose shapes each buffer is asked for
  EXPECT_THAT(outputs[0]->dims(), ElementsAre(2, 3));
  EXPECT_EQ(outputs[1]->dtype(), DType::S64);
  EXPECT_EQ(e->fingerprint(), "");
  EXPECT_THAT(message_of<PluginError>([&] { e->memory_stats(); }),
              AllOf(HasSubstr("PJRT 0.20"), HasSubstr("does not offer")));
}

TEST_F(FaultTest, AHoleInTheTableIsAnErrorOfTheCallAlone) {
  const Plugin& holed = changed_fake("holed fake", [](PJRT_Api& api) {
    api.PJRT_Buffer_ToHostBuffer = nullptr;
    api.PJRT_Executable_OptimizedProgram = nullptr;
    api.PJRT_Buffer_ElementType = nullptr;
    api.PJRT_Plugin_Attributes = nullptr;
  });
  EXPECT_TRUE(holed.attributes().empty());
  const auto c = Client::create(holed);
  const auto a = upload(*c, {1}, {});
  EXPECT_THAT(message_of<PluginError>([&] { download(*a); }),
              AllOf(HasSubstr("[pjrt.to_host]"), HasSubstr("does not offer")));
  EXPECT_EQ(c->compile(kProgram)->optimized_hlo(), "");
}

// The outputs are there, but what they are cannot be asked: none is left over.
TEST_F(FaultTest, OutputsThatCannotBeWrappedAreFreed) {
  const Plugin& holed = changed_fake("mute fake", [](PJRT_Api& api) {
    api.PJRT_Executable_OutputDimensions = nullptr;
    api.PJRT_Buffer_ElementType = nullptr;
  });
  const auto c = Client::create(holed);
  const auto e = c->compile(kProgram);
  const auto a = upload(*c, std::vector<float>(6), {2, 3}), b = upload(*c, {1}, {});
  const Buffer* arguments[] = {a.get(), b.get()};
  const auto buffers = fake::live().buffers;
  message_of<PluginError>([&] { e->execute(arguments); });
  EXPECT_EQ(fake::live().buffers, buffers);
}

TEST_F(FaultTest, AnotherMajorVersionIsRefused) {
  EXPECT_THAT(message_of<PluginError>(
                  [] { changed_fake("future fake", [](PJRT_Api& api) { api.pjrt_api_version.major_version = 1; }); }),
              AllOf(HasSubstr("expected version 0.x"), HasSubstr("got 1.")));
  EXPECT_THAT(message_of<PluginError>([] { Plugin::from_api(nullptr, "no fake"); }), HasSubstr("no table"));
}

TEST_F(FaultTest, APluginThatDoesNotStartIsAnError) {
  const fake::FaultScope scope({.initialize = {.text = "no such hardware"}});
  EXPECT_THAT(message_of<PluginError>([] { changed_fake("dead fake", [](PJRT_Api&) {}); }), HasSubstr("no such hardware"));
}

TEST_F(FaultTest, WithoutTheExtensionNoHandlerIsRegistered) {
  EXPECT_FALSE(register_ffi_handler(fake::fake_plugin(), "target", "Host", nullptr));
}

// What the extension of a fake plugin got, and answers.
PJRT_Error* register_handler(PJRT_FFI_Register_Handler_Args* args) {
  const std::string_view target(args->target_name, args->target_name_size),
      platform(args->platform_name, args->platform_name_size);
  if (target == "taken") return fake::error({.code = 6, .text = "the name is taken"});
  const bool as_given =
      target == "target" && platform == "Host" && args->handler == reinterpret_cast<void*>(&register_handler);
  return as_given ? nullptr : fake::error({.code = 3, .text = "wrong arguments"});
}

TEST_F(FaultTest, RegistersHandlersThroughTheExtension) {
  static PJRT_FFI_Extension ffi = {
      {PJRT_FFI_Extension_STRUCT_SIZE, PJRT_Extension_Type_FFI, nullptr}, nullptr, nullptr, register_handler};
  static PJRT_Extension_Base first = {sizeof(PJRT_Extension_Base), PJRT_Extension_Type_Profiler, &ffi.base};
  const Plugin& plugin = changed_fake("ffi fake", [](PJRT_Api& api) { api.extension_start = &first; });
  void* handler = reinterpret_cast<void*>(&register_handler);
  EXPECT_TRUE(register_ffi_handler(plugin, "target", "Host", handler));
  EXPECT_EQ(message_of<PluginError>([&] { register_ffi_handler(plugin, "taken", "Host", handler); }),
            "[pjrt.ffi] ALREADY_EXISTS: the name is taken");
  static PJRT_FFI_Extension old = {
      {sizeof(PJRT_Extension_Base), PJRT_Extension_Type_FFI, nullptr}, nullptr, nullptr, register_handler};
  const Plugin& shorter = changed_fake("old ffi fake", [](PJRT_Api& api) { api.extension_start = &old.base; });
  EXPECT_FALSE(register_ffi_handler(shorter, "target", "Host", handler));
}

TEST_F(FaultTest, CompilesForATopology) {
  const auto topology = Topology::create(fake::fake_plugin(), "fake:2x4");
  EXPECT_EQ(topology->devices().size(), 8u);
  const auto compiled = topology->compile(kProgram, {.num_partitions = 8});
  EXPECT_EQ(compiled.memory.argument, 28);
  EXPECT_EQ(compiled.memory.output, 24 + 32);
  EXPECT_THAT(message_of<InvalidArgument>([&] { topology->compile(kProgram, {.num_partitions = 9}); }),
              HasSubstr("at most 8"));
  const fake::FaultScope scope({.compile = {.text = "HBM is full", .code = 8}, .serialize = {.text = "no"}});
  EXPECT_THAT(message_of<PluginError>([&] { topology->compile(kProgram, {.num_partitions = 8}); }),
              HasSubstr("RESOURCE_EXHAUSTED: HBM is full"));
  const fake::FaultScope only_serialize({.serialize = {.text = "no"}});
  EXPECT_EQ(topology->compile(kProgram, {.num_partitions = 8}).serialized, "");
}

}  // namespace
}  // namespace flambeau::pjrt
