// Ops whose results are as long as the data says, against torch CPU: values, gradients, refusals.
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/capture.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

using at::indexing::Slice;
using Tensors = std::vector<at::Tensor>;

// x is float[4, 5], mask is bool[4, 5] and row_mask bool[4], longs int64[9] of small numbers.
struct Data {
  at::Tensor x, mask, row_mask, longs;
};

Data data(c10::Device device) {
  at::manual_seed(3);
  Data d{at::randn({4, 5}), {}, at::tensor({1, 0, 1, 1}).to(at::kBool), at::tensor({3, 1, 1, 0, 3, 5, 5, 1, 0}, at::kLong)};
  d.mask = d.x.gt(0.2);
  return {d.x.to(device).requires_grad_(), d.mask.to(device), d.row_mask.to(device), d.longs.to(device)};
}

at::Tensor weights(const at::Tensor& like) { return at::arange(1, like.numel() + 1, like.options().requires_grad(false)).view(like.sizes()).sin(); }

struct Case {
  std::string name;
  std::function<Tensors(const Data&)> f;
  int64_t waits = 1;  // of the host, gradient included
};

// y = x; y[indices] = values
at::Tensor written(const at::Tensor& x, at::ArrayRef<at::indexing::TensorIndex> indices, const at::Tensor& values) {
  at::Tensor y = x.clone();
  y.index_put_(indices, values);
  return y;
}

Tensors three(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

const Case kCases[] = {
    {"nonzero", [](const Data& d) { return Tensors{d.mask.nonzero()}; }},
    {"nonzero of floats", [](const Data& d) { return Tensors{d.x.detach().relu().nonzero()}; }},
    {"nonzero of nothing", [](const Data& d) { return Tensors{d.mask.slice(0, 0, 0).nonzero()}; }},
    {"nonzero of a scalar", [](const Data& d) { return Tensors{d.mask.any().nonzero()}; }},
    {"argwhere", [](const Data& d) { return Tensors{d.mask.argwhere()}; }},
    {"where(mask)", [](const Data& d) { return at::where(d.mask); }},
    {"x[mask]", [](const Data& d) { return Tensors{d.x.index({d.mask})}; }},
    {"x[no mask]", [](const Data& d) { return Tensors{d.x.index({d.mask.logical_and(d.mask.logical_not())})}; }},
    {"x[row_mask]", [](const Data& d) { return Tensors{d.x.index({d.row_mask})}; }},
    {"x[:, mask]", [](const Data& d) { return Tensors{d.x.index({Slice(), d.mask.select(0, 1)})}; }},
    {"x[row_mask, longs]", [](const Data& d) { return Tensors{d.x.index({d.row_mask, d.longs.slice(0, 1, 4)})}; }, 2},
    {"x.t()[mask.t()]", [](const Data& d) { return Tensors{d.x.t().index({d.mask.t()})}; }},
    {"x[mask] of uint8", [](const Data& d) { return Tensors{d.x.index({d.row_mask.to(at::kByte)})}; }},
    {"masked_select", [](const Data& d) { return Tensors{d.x.masked_select(d.mask)}; }},
    {"masked_select, broadcast", [](const Data& d) { return Tensors{d.x.masked_select(d.row_mask.unsqueeze(1))}; }},
    {"x[mask] = 2", [](const Data& d) { return Tensors{written(d.x, {d.mask}, at::scalar_tensor(2, d.x.options().requires_grad(false)))}; }, 0},
    {"x[row_mask] = row", [](const Data& d) { return Tensors{written(d.x, {d.row_mask}, d.x.select(0, 1).sin())}; }, 1},
    {"x[mask] = values", [](const Data& d) { return Tensors{written(d.x, {d.row_mask}, d.x.slice(0, 0, 3).sin())}; }, 1},
    {"x[:, mask] = values", [](const Data& d) { return Tensors{written(d.x, {Slice(), d.mask.select(0, 0)}, d.x.select(1, 0).unsqueeze(1).cos())}; }, 1},
    {"x[row_mask, 0] = values", [](const Data& d) { return Tensors{written(d.x, {d.row_mask, 0}, d.x.select(0, 0).slice(0, 0, 3).cos())}; }, 1},
    {"x[row_mask, longs] = values",
     [](const Data& d) { return Tensors{written(d.x, {d.row_mask, d.longs.slice(0, 3, 6).remainder(5)}, d.x.select(0, 0).slice(0, 0, 3).cos())}; }, 3},
    {"x.masked_scatter(mask, source)", [](const Data& d) { return Tensors{d.x.masked_scatter(d.mask, d.x.sin())}; }, 0},
    {"bincount", [](const Data& d) { return Tensors{d.longs.bincount(), d.longs.bincount({}, 9), d.longs.bincount(d.x.detach().flatten().slice(0, 0, 9))}; }, 3},
    {"repeat_interleave", [](const Data& d) { return Tensors{d.x.repeat_interleave(d.longs.slice(0, 0, 4), 0)}; }},
    {"repeat_interleave of a known size", [](const Data& d) { return Tensors{d.x.repeat_interleave(d.longs.slice(0, 0, 4), 0, 5)}; }, 0},
    {"unique", [](const Data& d) { return three(at::_unique2(d.longs, true, true, true)); }},
    {"unique of floats", [](const Data& d) { return three(at::_unique2(d.x.detach().round(), true, true, true)); }},
    {"unique of nothing", [](const Data& d) { return three(at::_unique2(d.longs.slice(0, 0, 0), true, true, true)); }, 0},
    {"unique_consecutive", [](const Data& d) { return three(at::unique_consecutive(d.longs, true, true)); }},
};

int64_t host_waits() { return runtime::Engine::get().counters().host_waits.load(); }

TEST(DataDependent, AgreesWithTorch) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    Data host = data(at::kCPU), ours = data(tpu());
    const int64_t before = host_waits();
    Tensors expected = c.f(host), got = c.f(ours);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(is_tpu(got[i]));
      ASSERT_EQ(got[i].scalar_type(), expected[i].scalar_type());
      ASSERT_EQ(got[i].sizes(), expected[i].sizes());
      EXPECT_TRUE(at::allclose(got[i].cpu(), expected[i], 1.3e-6, 1e-5)) << got[i].cpu() << "\nexpected\n" << expected[i];
    }
    if (expected[0].requires_grad()) {
      (expected[0] * weights(expected[0])).sum().backward();
      (got[0] * weights(got[0])).sum().backward();
      EXPECT_TRUE(at::allclose(ours.x.grad().cpu(), host.x.grad(), 1.3e-6, 1e-5)) << ours.x.grad().cpu() << "\nexpected\n" << host.x.grad();
    }
    EXPECT_EQ(host_waits() - before, c.waits);
  }
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was raised";
}

TEST(DataDependent, RefusesWhatTorchRefuses) {
  Data d = data(tpu());
  const std::pair<std::function<void()>, std::string> refusals[] = {
      {[&] { d.x.index({d.mask.t()}); }, "The shape of the mask [5, 4] at index 0 does not match the shape of the indexed tensor [4, 5] at index 0"},
      {[&] { d.x.masked_select(d.longs); }, "masked_select: expected BoolTensor for mask"},
      {[&] { d.longs.sub(2).bincount(); }, "bincount only supports 1-d non-negative integral inputs."},
      {[&] { d.x.detach().flatten().bincount(); }, "\"bincount_cpu\" not implemented for 'Float'"},
      {[&] { at::repeat_interleave(d.longs.sub(2)); }, "repeats can not be negative"},
  };
  for (const auto& [f, text] : refusals) EXPECT_THAT(message_of(f), testing::HasSubstr(text));
}

// A captured step has fixed shapes; where nothing depends on how many there are, it works.
TEST(DataDependent, InACapturedStep) {
  Data d = data(tpu());
  at::Tensor x = d.x.detach();
  const auto refusal = [&](std::function<at::Tensor()> f) { return message_of([&] { Capture("step", [&](auto&) { return Tensors{f()}; })({}); }); };
  EXPECT_THAT(refusal([&] { return d.mask.nonzero(); }), testing::HasSubstr("[capture] aten::nonzero gives as many elements as the data says"));
  EXPECT_THAT(refusal([&] { return x.index({d.mask}); }), testing::HasSubstr("torch.nonzero_static"));
  EXPECT_THAT(refusal([&] { return std::get<0>(at::_unique2(d.longs)); }), testing::HasSubstr("aten::unique"));
  Capture step("step", [&](auto&) { return Tensors{written(x, {d.row_mask}, x.slice(0, 0, 3)), at::nonzero_static(d.mask, 20)}; });
  Tensors results = step({});
  EXPECT_TRUE(results[0].cpu().equal(written(x.cpu(), {d.row_mask.cpu()}, x.cpu().slice(0, 0, 3))));
  EXPECT_TRUE(results[1].cpu().equal(at::nonzero_static(d.mask.cpu(), 20)));
}

}  // namespace
}  // namespace flambeau::device
