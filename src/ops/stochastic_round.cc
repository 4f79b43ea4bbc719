// Rounding to bfloat16 that is right in the mean: up or down at random, each with the probability that the distance gives. A sum
// that grows by less than half of a bfloat16's last place would stay where it is under rounding to nearest.
//
// x float32, step int64 [], keys int64 [n], draw -> bfloat16 like x. `keys` has one key for the whole tensor, or one for each row of
// dimension 0. The noise of an element depends on (its key, its index within what the key is for, step, draw) alone, not on how the tensor
// is stacked or split over a mesh: Philox under the key, with (index, step) as the counter, and `draw`, 0 to 3, the word. Values that are
// no finite number are rounded to nearest.
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {
namespace {

// The index of each element within its row (dimension 0 apart) or within the whole tensor, U64.
Value element_index(Builder& b, const Dims& dims, bool by_row) {
  Value index = b.broadcast(b.constant(DType::U64, 0), dims);
  int64_t stride = 1;
  for (int64_t d = static_cast<int64_t>(dims.size()) - 1; d >= (by_row ? 1 : 0); --d) {
    Value along = b.iota({DType::U64, dims}, d);
    index = b.add(index, b.multiply(along, b.broadcast(b.constant(DType::U64, stride), dims)));
    stride *= dims[static_cast<size_t>(d)];
  }
  return index;
}

Value stochastic_round(Builder& b, Value x, Value step, Value keys, int64_t draw) {
  const bool by_row = keys.rank() == 1 && keys.dims()[0] > 1;
  if (x.dtype() != DType::F32 || keys.rank() != 1 || (by_row && (x.rank() == 0 || x.dims()[0] != keys.dims()[0])) || draw < 0 || draw > 3) {
    raise<InvalidArgument>("[stochastic_round] expected float32, a key for all of it or one a row, and a draw of 0 to 3, got {} {} with {} "
                           "keys, and {}", torch_name(x.dtype()), shape_text(x.dims()), shape_text(keys.dims()), draw);
  }
  const Dims& dims = x.dims();
  Value steps = b.broadcast(b.convert(step, DType::U64), dims);
  Value key = b.convert(keys, DType::U64);
  if (!by_row) key = b.reshape(key, {});
  Value words = random_words_of(b, element_index(b, dims, by_row), steps, key)[static_cast<size_t>(draw)];
  const auto bits = [&](int64_t value) { return b.broadcast(b.constant(DType::U32, value), dims); };
  // A float32 is its bfloat16 and 16 bits more. Adding 16 random ones carries into the bfloat16 as often as these bits say.
  Value noise = b.logical_and(words, bits(0xffff));
  Value rounded = b.logical_and(b.add(b.bitcast_convert(x, DType::U32), noise), bits(0xffff0000));
  Value up_or_down = b.convert(b.bitcast_convert(rounded, DType::F32), DType::BF16);
  return b.select(b.is_finite(x), up_or_down, b.convert(x, DType::BF16));
}

constexpr Row kRows[] = {
    own_row("flambeau::stochastic_round", lower<&stochastic_round>(), "(Tensor x, Tensor step, Tensor keys, int draw) -> Tensor"),
};

}  // namespace

std::span<const Row> stochastic_round_rows() { return kRows; }

}  // namespace flambeau::ops
