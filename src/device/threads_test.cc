// The device from many threads at once: every value that is read is one that some order of the calls gives.
#include <functional>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "device/capture.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

constexpr int kRounds = 20;
constexpr int64_t kSize = 64;

at::Tensor ones() { return at::ones({kSize}, at::TensorOptions().device(tpu())); }

// Ops on a tensor of the thread's own and on one that all read.
void run_eagerly(const at::Tensor& shared) {
  at::Tensor x = ones();
  for (int i = 0; i < kRounds; ++i) {
    x.add_(shared);
    x.view({8, 8}).t().select(0, 1).mul_(2);
    x = at::where(x > 2, shared, x + 0);
    ASSERT_TRUE(at::equal(x.cpu(), at::where(x.cpu() > 2, at::ones({kSize}), x.cpu())));
  }
}

// A captured step on state of the thread's own.
void replay(const at::Tensor& shared) {
  at::Tensor state = at::zeros({kSize}, shared.options());
  Capture step("count", [&](const std::vector<at::Tensor>& inputs) {
    state.add_(inputs[0] * shared);
    return std::vector<at::Tensor>{state.sum()};
  });
  const at::Tensor input = ones();
  for (int i = 1; i <= kRounds; ++i) ASSERT_EQ(step({input})[0].item<float>(), static_cast<float>(i * kSize));
}

void resize(const at::Tensor& shared) {
  for (int i = 0; i < kRounds; ++i) {
    at::Tensor x = shared + static_cast<double>(i % 3);
    x.resize_({kSize * (2 + i % 2)});
    x.slice(0, kSize).fill_(7);
    const at::Tensor got = x.cpu();
    ASSERT_TRUE(at::equal(got.slice(0, 0, kSize), at::full({kSize}, 1.0 + i % 3)));
    ASSERT_TRUE(at::equal(got.slice(0, kSize), at::full({got.numel() - kSize}, 7.0)));
  }
}

// One thread counts in place, donating what it replaces; others see whole counts that do not go back.
void count(const at::Tensor& counter) {
  for (int i = 0; i < 4 * kRounds; ++i) counter.add_(1);
}

void watch(const at::Tensor& counter) {
  float last = 0;
  for (int i = 0; i < 2 * kRounds; ++i) {
    const at::Tensor seen = i % 2 == 0 ? counter.cpu() : (counter + 0).cpu();
    const float now = seen[0].item<float>();
    ASSERT_TRUE(at::equal(seen, at::full({kSize}, now)));
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Threads, EagerOpsCapturesAndResizesAtOnce) {
  at::set_num_threads(1);
  const at::Tensor shared = ones(), counter = at::zeros({kSize}, shared.options());
  const int64_t donations = runtime::Engine::get().counters().donations;
  const std::vector<std::function<void()>> roles = {
      [&] { run_eagerly(shared); }, [&] { run_eagerly(shared); }, [&] { replay(shared); }, [&] { replay(shared); },
      [&] { resize(shared); },      [&] { resize(shared); },      [&] { count(counter); }, [&] { watch(counter); },
  };
  std::vector<std::thread> threads;
  for (const auto& role : roles)
    threads.emplace_back([&] {
      try {
        role();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.cpu()[0].item<float>(), 4 * kRounds);
  EXPECT_GT(runtime::Engine::get().counters().donations, donations);
  synchronize();
}

}  // namespace
}  // namespace flambeau::device
