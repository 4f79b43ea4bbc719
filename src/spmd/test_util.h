// What tests of a mesh share.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device.h"
#include "spmd/sharding_rules.h"

namespace flambeau::spmd {

using Tensors = std::vector<at::Tensor>;

// Follows sharding rules while it lives.
struct Following {
  explicit Following(Degrees degrees, bool sequence_parallel = true) {
    use_sharding_rules(ShardingRules(degrees, standard_rules(sequence_parallel)));
  }
  ~Following() { use_sharding_rules(std::nullopt); }
};

inline at::Tensor values(std::vector<int64_t> shape, double seed) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return (at::arange(n, at::kFloat) * 0.37 + seed).sin().view(shape);
}

// The tensor on the device, stored as `axes` says.
inline at::Tensor placed(const at::Tensor& host, const Axes& axes) {
  const at::Tensor whole = host.contiguous();
  return make_tensor(device::tpu(), whole.sizes().vec(), whole.scalar_type(), axes, [&](const Part& part, void* out) {
    at::Tensor view = whole;
    for (size_t d = 0; d < part.start.size(); ++d) view = view.narrow(static_cast<int64_t>(d), part.start[d], part.size[d]);
    const at::Tensor dense = view.contiguous();
    std::memcpy(out, dense.data_ptr(), static_cast<size_t>(dense.nbytes()));
  });
}

inline void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_TRUE(at::allclose(got.cpu(), want, 1.3e-6, 1e-5)) << what << ": " << (got.cpu() - want).abs().max().item<float>();
}

inline void expect_error(const std::function<void()>& f, const std::string& part) {
  EXPECT_THAT(f, testing::ThrowsMessage<std::exception>(testing::HasSubstr(part)));
}

}  // namespace flambeau::spmd
