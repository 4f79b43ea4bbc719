// The device through PyTorch's own C++ API; every reference value is PyTorch's on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "device/device.h"

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

TEST(Device, DonatesInPlace) {
  at::Tensor x = at::zeros({1000}, at::TensorOptions().device(tpu()));
  for (int i = 0; i < 10; ++i) x.add_(1);
  EXPECT_EQ(x.sum().item<float>(), 10000);
}

}  // namespace
}  // namespace flambeau::device
