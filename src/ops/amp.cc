// What torch.amp.GradScaler runs on the device: gradients without the loss scale, and the scale's next value.
#include <cmath>

#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

Value as_scalar(Builder& b, Value x, DType dtype, std::string_view name) {
  if (x.elements() != 1) raise<InvalidArgument>("{} must be a 1-element tensor.", name);
  if (x.dtype() != dtype) raise<InvalidArgument>("{} must be a {} tensor.", name, dtype == DType::F32 ? "float" : "int");
  return b.reshape(x, {});
}

// grad * inv_scale for each gradient, then found_inf: 1 where any element was not finite before, else as it was.
std::vector<Value> non_finite_check_and_unscale(Builder& b, std::vector<Value> grads, Value found_inf, Value inv_scale) {
  Value factor = as_scalar(b, inv_scale, DType::F32, "inv_scale"), found = as_scalar(b, found_inf, DType::F32, "found_inf");
  for (Value& grad : grads) {
    require_float("_amp_foreach_non_finite_check_and_unscale_", grad.dtype());
    const DType compute = compute_type(grad.dtype());
    const Value wide = convert(b, grad, compute);
    const Value finite = b.reduce(b.is_finite(wide), range(wide.rank()), hlo::Reduction::And);
    found = b.select(finite, found, constant_like(b, found, 1));
    grad = convert(b, b.multiply(wide, b.broadcast(convert(b, factor, compute), wide.dims())), grad.dtype());
  }
  grads.push_back(b.reshape(found, found_inf.dims()));
  return grads;
}

// (scale, growth_tracker): backed off after an overflow, grown after `interval` steps without one unless that is not finite.
std::array<Value, 2> update_scale(Builder& b, Value self, Value growth_tracker, Value found_inf, double growth, double backoff,
                                  int64_t interval) {
  const Value scale = as_scalar(b, self, DType::F32, "current_scale"), found = as_scalar(b, found_inf, DType::F32, "found_inf");
  const Value tracker = as_scalar(b, growth_tracker, DType::S32, "growth_tracker");
  const auto scaled = [&](double factor) { return convert(b, times(b, convert(b, scale, DType::F64), factor), DType::F32); };
  const Value overflow = compare_with(b, found, 0, hlo::Comparison::NE);
  const Value steps = plus(b, tracker, 1), grows = compare_with(b, steps, static_cast<double>(interval), hlo::Comparison::EQ);
  const Value grown = scaled(growth), zero = constant_like(b, tracker, 0);
  const Value kept = b.select(b.logical_and(grows, b.is_finite(grown)), grown, scale);
  return {b.reshape(b.select(overflow, scaled(backoff), kept), self.dims()),
          b.reshape(b.select(b.logical_or(overflow, grows), zero, steps), growth_tracker.dims())};
}

constexpr Row kRows[] = {
    row("aten::_amp_foreach_non_finite_check_and_unscale", lower<&non_finite_check_and_unscale>()),
    row("aten::_amp_update_scale", lower<&update_scale>()),
};

}  // namespace

std::span<const Row> amp_rows() { return kRows; }

}  // namespace flambeau::ops
