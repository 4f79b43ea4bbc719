// Clients, uploads and downloads.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "pjrt/test_util.h"

namespace flambeau::pjrt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ClientOnCpu : public CpuPlugins {};
FLAMBEAU_ON_CPU_PLUGINS(ClientOnCpu);
class BufferOnCpu : public CpuPlugins {};
FLAMBEAU_ON_CPU_PLUGINS(BufferOnCpu);

TEST_P(ClientOnCpu, HasAsManyDevicesAsAsked) {
  for (const int64_t count : {1, 8}) {
    const auto c = client(count);
    EXPECT_EQ(c->platform_name(), "cpu");
    EXPECT_FALSE(c->platform_version().empty());
    EXPECT_EQ(c->process_index(), 0);
    ASSERT_EQ(c->devices().size(), static_cast<size_t>(count));
    ASSERT_EQ(c->addressable_devices().size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      const Device& device = c->devices()[static_cast<size_t>(i)];
      EXPECT_EQ(device.id, i);
      EXPECT_EQ(device.kind, "cpu");
      EXPECT_FALSE(device.debug_string.empty());
      EXPECT_NE(device.handle, nullptr);
    }
  }
}

TEST_P(ClientOnCpu, OutlivesItsHandle) {
  auto buffer = upload(*client(), {1, 2}, {2});  // the only reference to the client is the buffer's
  EXPECT_THAT(download(*buffer), ElementsAre(1, 2));
}

TEST_P(BufferOnCpu, KeepsShapeAndDevice) {
  const auto c = client(3);
  const auto buffer = upload(*c, std::vector<float>(6), {2, 3}, 2);
  EXPECT_EQ(buffer->dtype(), DType::F32);
  EXPECT_THAT(buffer->dims(), ElementsAre(2, 3));
  EXPECT_EQ(buffer->element_count(), 6);
  EXPECT_EQ(buffer->byte_size(), 24);
  EXPECT_GE(buffer->device_byte_size(), 24);
  EXPECT_EQ(buffer->device_id(), 2);
  EXPECT_FALSE(buffer->deleted());
  buffer->ready().await();
  EXPECT_TRUE(buffer->ready().ready());
}

// Every element type, by its bytes: each comes back as it went.
TEST_P(BufferOnCpu, CarriesEveryElementType) {
  const auto c = client();
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::vector<int64_t> dims{3, 5};
    std::vector<unsigned char> bytes(static_cast<size_t>(15 * byte_size(dtype)));
    for (size_t j = 0; j < bytes.size(); ++j) bytes[j] = static_cast<unsigned char>(dtype == DType::Pred ? j % 2 : j);
    const auto buffer = c->upload({.data = bytes.data(), .dtype = dtype, .dims = dims}, c->devices()[0]);
    EXPECT_EQ(buffer->byte_size(), static_cast<int64_t>(bytes.size())) << torch_name(dtype);
    std::vector<unsigned char> back(bytes.size());
    buffer->to_host(back.data());
    EXPECT_EQ(back, bytes) << torch_name(dtype);
  }
}

TEST_P(BufferOnCpu, ReadsStridedArrays) {
  const auto c = client();
  std::vector<float> host(24);
  std::iota(host.begin(), host.end(), 0.f);
  const struct {
    std::vector<int64_t> dims, strides;  // in elements
    size_t offset;
    std::vector<float> expected;
  } cases[] = {
      {{2, 3}, {3, 1}, 0, {0, 1, 2, 3, 4, 5}},         // dense
      {{2, 3}, {1, 2}, 0, {0, 2, 4, 1, 3, 5}},         // transposed
      {{2, 2}, {12, 3}, 1, {1, 4, 13, 16}},            // a slice with steps
      {{2, 3}, {0, 1}, 4, {4, 5, 6, 4, 5, 6}},         // broadcast
      {{4}, {-1}, 3, {3, 2, 1, 0}},                    // reversed
      {{2, 1, 3}, {3, 77, 1}, 0, {0, 1, 2, 3, 4, 5}},  // the stride of a dimension of one does not matter
  };
  for (const auto& v : cases) {
    std::vector<int64_t> byte_strides;
    for (const int64_t s : v.strides) byte_strides.push_back(4 * s);
    for (const auto semantics : {HostSemantics::CopyDuringCall, HostSemantics::ZeroCopyIfLegal}) {
      const auto buffer =
          c->upload({.data = host.data() + v.offset, .dtype = DType::F32, .dims = v.dims, .byte_strides = byte_strides},
                    c->devices()[0], semantics);
      EXPECT_EQ(download(*buffer), v.expected);
    }
  }
}

TEST_P(BufferOnCpu, HoldsScalarsAndNothing) {
  const auto c = client();
  EXPECT_THAT(download(*upload(*c, {7}, {})), ElementsAre(7));
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{0}, {3, 0, 2}}) {
    const auto buffer = upload(*c, {}, dims);
    EXPECT_EQ(buffer->byte_size(), 0);
    buffer->to_host(nullptr);
    EXPECT_TRUE(buffer->to_host_async(nullptr).ready());
  }
}

TEST_P(BufferOnCpu, CopiesDuringTheCall) {
  const auto c = client();
  std::vector<float> host(1 << 16, 1.f);
  bool done = false;
  const std::vector<int64_t> dims{1 << 16};
  const auto buffer = c->upload({.data = host.data(), .dtype = DType::F32, .dims = dims}, c->devices()[0],
                                HostSemantics::CopyDuringCall, [&] { done = true; });
  EXPECT_TRUE(done);
  std::fill(host.begin(), host.end(), 2.f);
  EXPECT_EQ(download(*buffer), std::vector<float>(1 << 16, 1.f));
}

// An aligned array may be used in place: `done` then comes when the buffer goes.
TEST_P(BufferOnCpu, SaysWhenItNoLongerReadsTheHost) {
  const auto c = client();
  constexpr size_t kCount = 1 << 16;
  std::unique_ptr<float, decltype(&std::free)> host(static_cast<float*>(std::aligned_alloc(64, kCount * 4)), std::free);
  std::fill_n(host.get(), kCount, 3.f);
  const std::vector<int64_t> dims{kCount};
  std::promise<void> promise;
  std::atomic<int> calls{0};
  auto buffer = c->upload({.data = host.get(), .dtype = DType::F32, .dims = dims}, c->devices()[0],
                          HostSemantics::ZeroCopyIfLegal, [&] {
                            if (++calls == 1) promise.set_value();
                          });
  EXPECT_EQ(calls, 0) << "aligned to 64 bytes, the array is used in place";
  EXPECT_EQ(download(*buffer), std::vector<float>(kCount, 3.f));
  buffer.reset();
  ASSERT_EQ(promise.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(calls, 1);
}

// The last reference to a client may be dropped where the plugin calls back.
TEST_P(BufferOnCpu, MayBeTheLastThingInACallback) {
  std::promise<void> promise;
  {
    const auto c = client();
    std::shared_ptr<Buffer> buffer = upload(*c, std::vector<float>(1 << 20), {1 << 20});
    std::vector<float> target(1 << 20);
    const Event copied = buffer->to_host_async(target.data());
    copied.on_ready([buffer, &promise](std::string_view error) {
      EXPECT_EQ(error, "");
      promise.set_value();
    });
    copied.await();
  }
  EXPECT_EQ(promise.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_P(BufferOnCpu, DownloadsWithoutWaiting) {
  const auto c = client();
  const auto buffer = upload(*c, {1, 2, 3}, {3});
  std::vector<float> host(3);
  const Event copied = buffer->to_host_async(host.data());
  copied.await();
  EXPECT_TRUE(copied.ready());
  EXPECT_THAT(host, ElementsAre(1, 2, 3));
  int calls = 0;
  copied.on_ready([&](std::string_view error) { calls += error.empty() ? 1 : 100; });
  Event().on_ready([&](std::string_view error) { calls += error.empty() ? 1 : 100; });
  EXPECT_EQ(calls, 2);
}

TEST_P(BufferOnCpu, RefusesWrongRequests) {
  const auto c = client();
  const std::vector<float> host(4);
  const std::vector<int64_t> dims{2, 2}, strides{4};
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                c->upload({.data = host.data(), .dtype = DType::F32, .dims = dims, .byte_strides = strides},
                          c->devices()[0]);
              }),
              HasSubstr("strides"));
  Device elsewhere = c->devices()[0];
  elsewhere.addressable = false;
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { c->upload({.data = host.data(), .dtype = DType::F32, .dims = dims}, elsewhere); }),
      HasSubstr("device of this process"));
}

TEST_P(BufferOnCpu, WorksFromManyThreads) {
  const auto c = client(4);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const float value = static_cast<float>(100 * t) + static_cast<float>(i);
        if (download(*upload(*c, {value}, {1}, t)) == std::vector<float>{value}) ++good;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, 200);
}

}  // namespace
}  // namespace flambeau::pjrt
