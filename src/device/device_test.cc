// The device through PyTorch's own C++ API; every reference value is PyTorch's on the CPU.
#include <ATen/ATen.h>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"
#include "device/fallback.h"
#include "device/register.h"

namespace flambeau::device {
namespace {

class Environment : public testing::Environment {
 public:
  void SetUp() override { initialize({}, true); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

at::Tensor on_tpu(const at::Tensor& x) { return x.to(tpu()); }

void expect_close(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_TRUE(is_tpu(got));
  ASSERT_EQ(got.scalar_type(), want.scalar_type());
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_TRUE(at::allclose(got.cpu(), want, 1.3e-6, 1e-5)) << got.cpu() << "\nexpected\n" << want;
}

TEST(Device, CopiesThereAndBack) {
  at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  expect_close(on_tpu(x), x);
  expect_close(on_tpu(x).t(), x.t());
  expect_close(on_tpu(x).slice(1, 1, 3), x.slice(1, 1, 3));
  EXPECT_EQ(on_tpu(x).select(0, 2).select(0, 1).item<float>(), 9);
  EXPECT_EQ(on_tpu(at::empty({0, 3})).cpu().sizes(), at::IntArrayRef({0, 3}));
}

TEST(Device, WritesThroughViews) {
  at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  at::Tensor y = on_tpu(x);
  x.select(1, 2).add_(10);
  y.select(1, 2).add_(10);
  expect_close(y, x);
  x.t().slice(0, 1, 3).copy_(at::ones({2, 3}));
  y.t().slice(0, 1, 3).copy_(at::ones({2, 3}));
  expect_close(y, x);
  EXPECT_ANY_THROW(on_tpu(at::ones({1})).expand({4}).add_(1));
}

TEST(Device, AutogradReachesLeaves) {
  at::Tensor a = at::randn({3, 4}), b = a.clone();
  a.requires_grad_();
  at::Tensor c = on_tpu(b).requires_grad_();
  a.mm(a.t()).sum().backward();
  c.mm(c.t()).sum().backward();
  expect_close(c.grad(), a.grad());
}

TEST(Device, SeedsRepeat) {
  auto draw = [] {
    auto generator = default_generator();
    generator.set_current_seed(7);
    return at::randn({100}, at::TensorOptions().device(tpu())).cpu();
  };
  EXPECT_TRUE(at::equal(draw(), draw()));
}

int64_t donations() { return runtime::Engine::get().counters().donations; }

TEST(Device, DonatesInPlaceWhatNobodyElseReads) {
  at::Tensor x = at::zeros({1000}, at::TensorOptions().device(tpu()));
  int64_t before = donations();
  for (int i = 0; i < 10; ++i) x.add_(1);
  EXPECT_EQ(donations(), before + 10);
  EXPECT_EQ(x.sum().item<float>(), 10000);
  const auto held = storage_of(x).held();
  before = donations();
  x.add_(1);
  EXPECT_EQ(donations(), before);
  EXPECT_FALSE(held.array->deleted());
}

// Ops of another thread that fail on their data say so to who waits for them, and to nobody else.
TEST(Device, AFailedCheckIsRaisedByReadersAndSynchronize) {
  const at::Tensor weight = on_tpu(at::ones({4, 2})), good = on_tpu(at::full({3}, 1, at::kLong)), bad = on_tpu(at::full({3}, 9, at::kLong));
  synchronize();
  const at::Tensor wrong = at::embedding(weight, bad), sum = wrong + 1;
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(at::embedding(weight, good).defined());
  expect_close(at::embedding(weight, good), at::ones({3, 2}));
  EXPECT_ANY_THROW(sum.cpu());
  synchronize();
  const at::Tensor again = at::embedding(weight, bad), more = at::embedding(weight, bad);
  EXPECT_THAT([] { synchronize(); }, testing::ThrowsMessage<Error>(testing::HasSubstr("and 1 more failure")));
  synchronize();
}

TEST(Device, ImpossibleSizesAreRefusedAsPyTorchDoes) {
  constexpr int64_t kLarge = int64_t{1} << 40;
  const std::pair<const char*, std::function<void(at::Device)>> cases[] = {
      {"repeat", [](at::Device d) { at::ones({2}, d).repeat({kLarge, kLarge >> 20}); }},
      {"repeat, negative", [](at::Device d) { at::ones({2}, d).repeat({-1}); }},
      {"full", [](at::Device d) { at::full({kLarge, kLarge}, 1.0, d); }},
      {"empty", [](at::Device d) { at::empty({kLarge, kLarge}, d); }},
      {"empty, negative", [](at::Device d) { at::empty({2, -1}, d); }},
      {"randn", [](at::Device d) { at::randn({kLarge, kLarge}, d); }},
      {"randn, negative", [](at::Device d) { at::randn({-1}, d); }},
      {"resize_", [](at::Device d) { at::ones({2}, d).resize_({kLarge, kLarge}); }},
      {"resize_, negative", [](at::Device d) { at::ones({2}, d).resize_({-1}); }},
      {"expand", [](at::Device d) { at::ones({2}, d).expand({kLarge, kLarge, 2}).add(1); }},
  };
  const auto message = [](const std::function<void(at::Device)>& f, at::Device device) {
    try {
      f(device);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      return text.substr(0, text.find_first_of("[=:"));
    }
    return std::string("nothing raised");
  };
  for (const auto& [name, f] : cases) EXPECT_EQ(message(f, tpu()), message(f, at::kCPU)) << name;
  at::Tensor x = on_tpu(at::arange(4, at::kFloat));
  EXPECT_ANY_THROW(x.resize_({kLarge, kLarge}));
  expect_close(x, at::arange(4, at::kFloat));
}

// Another version of PyTorch may lack an op, or have other arguments.
TEST(Device, RowsThatThisPyTorchDoesNotFitAreLeftOut) {
  const ops::Row* relu = ops::find_row("aten::relu");
  ASSERT_TRUE(relu);
  ops::Row unknown = *relu, other_overload = *relu, unnamed = *relu;
  unknown.name = "aten::an_op_of_tomorrow";
  other_overload.name = "aten::relu.of_tomorrow";
  unnamed.name = "aten::";
  const ops::Row rows[] = {unknown, other_overload, unnamed};
  EXPECT_NO_THROW(register_rows(rows));
  expect_close(on_tpu(at::arange(-2, 3, at::kFloat)).relu(), at::arange(-2, 3, at::kFloat).relu());
}

// Without Python a warning goes to standard error, and nothing says a line.
TEST(Device, OpsWithoutARowRunOnTheCPU) {
  set_fallback(FallbackMode::Silent);
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  const int64_t before = fallbacks()["aten::special_bessel_j0.out"];
  expect_close(at::special_bessel_j0(on_tpu(x).t()), at::special_bessel_j0(x.t()));
  EXPECT_EQ(fallbacks()["aten::special_bessel_j0.out"], before + 1);
  set_fallback(FallbackMode::Error);
  EXPECT_THROW(at::special_bessel_j0(on_tpu(x)), c10::NotImplementedError);
  set_fallback(FallbackMode::Warn);
}

}  // namespace
}  // namespace flambeau::device
