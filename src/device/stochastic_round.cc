#include "device/stochastic_round.h"

#include <bit>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/philox.h"
#include "device/device.h"
#include "ops/stochastic_round.h"

namespace flambeau::device {
namespace {

c10::BFloat16 rounded(float x, uint32_t word) {
  if (!std::isfinite(x)) return x;
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + (word & 0xffff)) >> 16), c10::BFloat16::from_bits()};
}

at::Tensor on_host(const at::Tensor& given, uint64_t step, const at::Tensor& keys, size_t draw) {
  const at::Tensor x = given.contiguous(), out = at::empty(x.sizes(), at::kBFloat16), dense_keys = keys.contiguous();
  const float* from = x.const_data_ptr<float>();
  c10::BFloat16* to = out.data_ptr<c10::BFloat16>();
  const int64_t row = std::max<int64_t>(1, x.numel() / keys.numel());
  const int64_t* key = dense_keys.const_data_ptr<int64_t>();
  at::parallel_for(0, x.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<uint64_t>(i % row), own = static_cast<uint64_t>(key[i / row]);
      const philox::Block words = philox::encrypt({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                                   static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
                                                  {static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32)});
      to[i] = rounded(from[i], words[draw]);
    }
  });
  return out;
}

}  // namespace

at::Tensor stochastic_round(const at::Tensor& x, const at::Tensor& step, const at::Tensor& keys, int64_t draw) {
  if (!is_tpu(x)) return on_host(x, static_cast<uint64_t>(step.item<int64_t>()), keys, static_cast<size_t>(draw));
  const runtime::CallArgument arguments[] = {ref_of(x), ref_of(step), ref_of(keys), draw};
  return call(ops::kStochasticRound, arguments);
}

}  // namespace flambeau::device
