// Softmax and losses. Everything is computed in float32 (float64 for float64) and rounded once.
#include "ops/check.h"
#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using hlo::Reduction;

Value as_compute(Builder& b, Value x) { return convert(b, x, compute_type(x.dtype())); }

// ---- softmax ------------------------------------------------------------------------------------------------------------

DType softmax_result(std::string_view op, Value x, bool half_to_float) {
  if (!is_float(x.dtype())) refuse_dtype(op, x.dtype());
  if (!half_to_float) return x.dtype();
  if (x.dtype() != DType::F16) raise<InvalidArgument>("conversion is supported for Half type only");
  return DType::F32;
}

// x less its greatest element along dim; and dim itself, wrapped. A rank-0 tensor counts as one of one element.
std::pair<Value, int64_t> shifted(Builder& b, Value x, int64_t dim) {
  dim = wrap_dim(dim, x.rank());
  x = at_least_1d(b, as_compute(b, x));
  Value greatest = b.reduce(x, {dim}, Reduction::Max);
  return {b.subtract(x, spread(b, greatest, x.dims(), {dim})), dim};
}

Value softmax(Builder& b, Value x, int64_t dim, bool half_to_float) {
  DType result = softmax_result("softmax_lastdim_kernel_impl", x, half_to_float);
  auto [logits, axis] = shifted(b, x, dim);
  Value e = b.exp(logits);
  Value y = b.divide(e, spread(b, sum(b, e, {axis}), e.dims(), {axis}));
  return b.reshape(convert(b, y, result), x.dims());
}

Value log_softmax(Builder& b, Value x, int64_t dim, bool half_to_float) {
  DType result = softmax_result("log_softmax_lastdim_kernel_impl", x, half_to_float);
  auto [logits, axis] = shifted(b, x, dim);
  Value total = b.log(sum(b, b.exp(logits), {axis}));
  Value y = b.subtract(logits, spread(b, total, logits.dims(), {axis}));
  return b.reshape(convert(b, y, result), x.dims());
}

void check_backward(Value grad, Value output) {
  if (grad.dims() != output.dims())
    raise<InvalidArgument>("expected grad and output of one shape, got {} and {}", shape_text(grad.dims()),
                           shape_text(output.dims()));
}

Value softmax_backward(Builder& b, Value grad, Value output, int64_t dim, DType input_dtype) {
  check_backward(grad, output);
  int64_t axis = wrap_dim(dim, grad.rank());
  Value g = at_least_1d(b, as_compute(b, grad)), y = at_least_1d(b, as_compute(b, output));
  Value inner = sum(b, b.multiply(g, y), {axis});
  Value dx = b.multiply(y, b.subtract(g, spread(b, inner, g.dims(), {axis})));
  return b.reshape(convert(b, dx, input_dtype), grad.dims());
}

Value log_softmax_backward(Builder& b, Value grad, Value output, int64_t dim, DType input_dtype) {
  check_backward(grad, output);
  int64_t axis = wrap_dim(dim, grad.rank());
  Value g = at_least_1d(b, as_compute(b, grad)), y = at_least_1d(b, as_compute(b, output));
  Value total = spread(b, sum(b, g, {axis}), g.dims(), {axis});
  Value dx = b.subtract(g, b.multiply(b.exp(y), total));
  return b.reshape(convert(b, dx, input_dtype), grad.dims());
}

// ---- reductions of losses
// -------------------------------------------------------------------------------------------------

enum LossReduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

Value reduced(Builder& b, Value loss, int64_t reduction, DType result) {
  Dims all = range(loss.rank());
  Value r = reduction == kMean ? mean(b, loss, all) : reduction == kSum ? sum(b, loss, all) : loss;
  return convert(b, r, result);
}

// The gradient that arrives at each element of a loss of shape `dims`.
Value arriving(Builder& b, Value grad, const Dims& dims, int64_t reduction) {
  Value g = as_compute(b, grad);
  if (reduction == kMean) g = times(b, g, 1 / static_cast<double>(hlo::Type{DType::F32, dims}.elements()));
  return b.broadcast(g, dims);
}

// f(x, y) element by element in the compute type of both.
template <class F>
Value elementwise_loss(Builder& b, Value self, Value target, int64_t reduction, F f) {
  DType result = result_type({Operand{self}, Operand{target}});
  if (!is_float(result)) refuse_dtype("loss", result);
  auto xs = align(b, {Operand{self}, Operand{target}}, compute_type(result));
  return reduced(b, f(xs[0], xs[1]), reduction, result);
}

template <class F>
Value elementwise_backward(Builder& b, Value grad, Value self, Value target, int64_t reduction, F derivative) {
  DType result = result_type({Operand{self}, Operand{target}});
  auto xs = align(b, {Operand{self}, Operand{target}}, compute_type(result));
  Value g = convert(b, arriving(b, grad, xs[0].dims(), reduction), compute_type(result));
  return convert(b, b.multiply(derivative(xs[0], xs[1]), g), result);
}

// ---- regression
// -----------------------------------------------------------------------------------------------------------

Value mse_loss(Builder& b, Value self, Value target, int64_t reduction) {
  return elementwise_loss(b, self, target, reduction, [&](Value x, Value y) {
    Value d = b.subtract(x, y);
    return b.multiply(d, d);
  });
}

Value mse_loss_backward(Builder& b, Value grad, Value self, Value target, int64_t reduction) {
  return elementwise_backward(b, grad, self, target, reduction,
                              [&](Value x, Value y) { return times(b, b.subtract(x, y), 2); });
}

// Quadratic within `width` of zero, linear outside: 0.5 d^2 scale, slope * (|d| - width / 2).
Value rounded_corner(Builder& b, Value d, double width, double scale, double slope) {
  Value size = b.abs(d);
  Value inside = times(b, b.multiply(d, d), 0.5 * scale);
  Value outside = times(b, plus(b, size, -0.5 * width), slope);
  return b.select(compare_with(b, size, width, Comparison::LT), inside, outside);
}
Value rounded_corner_slope(Builder& b, Value d, double width, double scale, double slope) {
  Value outside = times(b, b.sign(d), slope);
  return b.select(compare_with(b, b.abs(d), width, Comparison::LT), times(b, d, scale), outside);
}

void check_beta(double beta) {
  if (!(beta >= 0)) raise<InvalidArgument>("smooth_l1_loss does not support negative values for beta.");
}
void check_delta(double delta) {
  if (!(delta > 0)) raise<InvalidArgument>("huber_loss does not support non-positive values for delta.");
}
double inverse(double beta) { return beta == 0 ? 0 : 1 / beta; }  // beta = 0: nothing is inside

Value smooth_l1_loss(Builder& b, Value self, Value target, int64_t reduction, double beta) {
  check_beta(beta);
  return elementwise_loss(b, self, target, reduction,
                          [&](Value x, Value y) { return rounded_corner(b, b.subtract(x, y), beta, inverse(beta), 1); });
}
Value smooth_l1_loss_backward(Builder& b, Value grad, Value self, Value target, int64_t reduction, double beta) {
  return elementwise_backward(b, grad, self, target, reduction, [&](Value x, Value y) {
    return rounded_corner_slope(b, b.subtract(x, y), beta, inverse(beta), 1);
  });
}

Value huber_loss(Builder& b, Value self, Value target, int64_t reduction, double delta) {
  check_delta(delta);
  return elementwise_loss(b, self, target, reduction,
                          [&](Value x, Value y) { return rounded_corner(b, b.subtract(x, y), delta, 1, delta); });
}
Value huber_loss_backward(Builder& b, Value grad, Value self, Value target, int64_t reduction, double delta) {
  return elementwise_backward(b, grad, self, target, reduction,
                              [&](Value x, Value y) { return rounded_corner_slope(b, b.subtract(x, y), delta, 1, delta); });
}

// ---- binary cross entropy
// ---------------------------------------------------------------------------------------------------

Value weighted(Builder& b, Value loss, const std::optional<Value>& weight) {
  return weight ? b.multiply(loss, b.broadcast(convert(b, *weight, loss.dtype()), loss.dims())) : loss;
}

Value binary_cross_entropy(Builder& b, Value self, Value target, std::optional<Value> weight, int64_t reduction) {
  if (self.dims() != target.dims())
    raise<InvalidArgument>(
        "Using a target size ({}) that is different to the input size ({}) is deprecated. Please ensure they "
        "have the same size.",
        shape_text(target.dims()), shape_text(self.dims()));
  Value x = as_compute(b, self), y = convert(b, target, x.dtype());
  if (checks_wanted())
    check(b, b.logical_and(compare_with(b, x, 0, Comparison::GE), compare_with(b, x, 1, Comparison::LE)),
          "all elements of input should be between 0 and 1");
  Value floor = constant_like(b, x, -100);  // PyTorch's bound of a logarithm
  Value log_p = b.maximum(b.log(x), floor), log_q = b.maximum(b.log1p(b.negate(x)), floor);
  Value loss = b.subtract(b.multiply(plus(b, y, -1), log_q), b.multiply(y, log_p));
  return reduced(b, weighted(b, loss, weight), reduction, self.dtype());
}

Value binary_cross_entropy_backward(Builder& b, Value grad, Value self, Value target, std::optional<Value> weight,
                                    int64_t reduction) {
  Value x = as_compute(b, self), y = convert(b, target, x.dtype());
  Value variance = b.multiply(b.subtract(constant_like(b, x, 1), x), x);
  Value slope = b.divide(b.subtract(x, y), b.maximum(variance, constant_like(b, x, 1e-12)));
  Value g = convert(b, arriving(b, grad, x.dims(), reduction), x.dtype());
  return convert(b, weighted(b, b.multiply(slope, g), weight), self.dtype());
}

// (1 - y) x + (1 + (pos_weight - 1) y) log(1 + exp(-x))
Value binary_cross_entropy_with_logits(Builder& b, Value self, Value target, std::optional<Value> weight,
                                       std::optional<Value> pos_weight, int64_t reduction) {
  DType result = result_type({Operand{self}, Operand{target}});
  auto xs = align(b, {Operand{self}, Operand{target}}, compute_type(result));
  Value x = xs[0], y = xs[1];
  Value softplus = b.add(b.log1p(b.exp(b.negate(b.abs(x)))), b.maximum(b.negate(x), constant_like(b, x, 0)));
  if (pos_weight) {
    Value extra = plus(b, b.broadcast(convert(b, *pos_weight, x.dtype()), x.dims()), -1);
    softplus = b.multiply(plus(b, b.multiply(extra, y), 1), softplus);
  }
  Value loss = b.add(b.multiply(b.subtract(constant_like(b, y, 1), y), x), softplus);
  return reduced(b, weighted(b, loss, weight), reduction, result);
}

// ---- negative log likelihood
// ------------------------------------------------------------------------------------------------

// Class scores [N, C, ...] (or [C]) with targets [N, ...] (or []): one target a position.
struct Targets {
  int64_t axis;   // of the classes
  Value classes;  // S32 with an axis of size 1; 0 where ignored
  Value weight;   // of each position, in the compute type, same shape; 0 where ignored
};

Targets read_targets(Builder& b, Value self, Value target, const std::optional<Value>& weight, int64_t ignore_index) {
  int64_t axis = self.rank() > 1 ? 1 : 0;
  if (self.rank() == 0 || target.dims() != erased(self.dims(), axis))
    raise<InvalidArgument>("size mismatch (got input: {}, target: {})", shape_text(self.dims()), shape_text(target.dims()));
  if (!is_float(self.dtype())) refuse_dtype("nll_loss_out_frame", self.dtype());
  if (target.dtype() != DType::S64 && target.dtype() != DType::U8)
    raise<InvalidArgument>("expected scalar type Long or Byte but found {}", torch_name(target.dtype()));
  int64_t classes = self.dim(axis);
  if (weight && weight->dims() != Dims{classes})
    raise<InvalidArgument>(
        "weight tensor should be defined either for all {} classes or no classes but got weight tensor of shape: {}",
        classes, shape_text(weight->dims()));
  Dims dims = replaced(self.dims(), axis, 1);
  Value t = b.reshape(b.convert(target, DType::S64), dims);
  Value ignored = b.compare(t, b.broadcast(b.constant(DType::S64, ignore_index), dims), Comparison::EQ);
  t = b.select(ignored, zeros(b, DType::S64, dims), t);
  check_index(b, t, classes, "Target is out of bounds.");
  t = b.convert(t, DType::S32);  // 64-bit comparisons halve the vector width
  DType compute = compute_type(self.dtype());
  Value w = filled(b, compute, 1, dims);
  if (weight) w = take_along(b, along(b, convert(b, *weight, compute), self.dims(), axis), axis, t);
  return {axis, t, b.select(ignored, zeros(b, compute, dims), w)};
}

std::array<Value, 2> nll_loss_forward(Builder& b, Value self, Value target, std::optional<Value> weight, int64_t reduction,
                                      int64_t ignore_index) {
  Targets targets = read_targets(b, self, target, weight, ignore_index);
  Value picked = convert(b, take_along(b, self, targets.axis, targets.classes), compute_type(self.dtype()));
  Value loss = b.negate(b.multiply(picked, targets.weight));
  // An ignored position adds nothing, even where its score is infinite.
  loss = b.select(compare_with(b, targets.weight, 0, Comparison::EQ), zeros(b, loss.dtype(), loss.dims()), loss);
  if (reduction == kNone && self.rank() > 1)
    return {convert(b, b.reshape(loss, target.dims()), self.dtype()), b.constant(self.dtype(), 0)};
  Dims all = range(self.rank());
  Value total = sum(b, loss, all), total_weight = sum(b, targets.weight, all);
  if (reduction == kMean) total = b.divide(total, total_weight);
  return {convert(b, total, self.dtype()), convert(b, total_weight, self.dtype())};
}

// Written as a comparison with an iota, not as a scatter: it fuses into what follows (log_softmax's backward) and costs one
// pass.
Value nll_loss_backward(Builder& b, Value grad, Value self, Value target, std::optional<Value> weight, int64_t reduction,
                        int64_t ignore_index, Value total_weight) {
  Targets targets = read_targets(b, self, target, weight, ignore_index);
  const Dims& dims = targets.weight.dims();
  Value g = as_compute(b, grad);
  if (reduction == kMean) g = b.divide(g, convert(b, total_weight, g.dtype()));
  g = g.rank() == 0 ? b.broadcast(g, dims) : b.reshape(g, dims);
  // 0 / 0 where every position is ignored stays out of the gradient.
  Value ignored = compare_with(b, targets.weight, 0, Comparison::EQ);
  Value each = b.select(ignored, zeros(b, g.dtype(), dims), b.negate(b.multiply(g, targets.weight)));
  Value index = b.iota({DType::S32, self.dims()}, targets.axis);
  Value hit = b.compare(index, b.broadcast(targets.classes, self.dims()), Comparison::EQ);
  Value dx = b.select(hit, b.broadcast(each, self.dims()), zeros(b, each.dtype(), self.dims()));
  return convert(b, dx, self.dtype());
}

void check_2d(Value self, Value target) {
  if (self.rank() != 4)
    raise<InvalidArgument>("only batches of spatial inputs supported (4D tensors), but got input of size: {}",
                           shape_text(self.dims()));
  if (target.rank() != 3)
    raise<InvalidArgument>("only batches of spatial targets supported (3D tensors) but got targets of dimension: {}",
                           target.rank());
}
std::array<Value, 2> nll_loss2d_forward(Builder& b, Value self, Value target, std::optional<Value> weight, int64_t reduction,
                                        int64_t ignore_index) {
  check_2d(self, target);
  return nll_loss_forward(b, self, target, weight, reduction, ignore_index);
}
Value nll_loss2d_backward(Builder& b, Value grad, Value self, Value target, std::optional<Value> weight, int64_t reduction,
                          int64_t ignore_index, Value total_weight) {
  check_2d(self, target);
  return nll_loss_backward(b, grad, self, target, weight, reduction, ignore_index, total_weight);
}

constexpr Row kRows[] = {
    row("aten::_softmax", lower<&softmax>()),
    row("aten::_softmax_backward_data", lower<&softmax_backward>()),
    row("aten::_log_softmax", lower<&log_softmax>()),
    row("aten::_log_softmax_backward_data", lower<&log_softmax_backward>()),
    row("aten::mse_loss", lower<&mse_loss>()),
    row("aten::mse_loss_backward", lower<&mse_loss_backward>()),
    row("aten::smooth_l1_loss", lower<&smooth_l1_loss>()),
    row("aten::smooth_l1_loss_backward", lower<&smooth_l1_loss_backward>()),
    row("aten::huber_loss", lower<&huber_loss>()),
    row("aten::huber_loss_backward", lower<&huber_loss_backward>()),
    row("aten::binary_cross_entropy", lower<&binary_cross_entropy>()),
    row("aten::binary_cross_entropy_backward", lower<&binary_cross_entropy_backward>()),
    row("aten::binary_cross_entropy_with_logits", lower<&binary_cross_entropy_with_logits>()),
    row("aten::nll_loss_forward", lower<&nll_loss_forward>()),
    row("aten::nll_loss_backward", lower<&nll_loss_backward>()),
    row("aten::nll_loss2d_forward", lower<&nll_loss2d_forward>()),
    row("aten::nll_loss2d_backward", lower<&nll_loss2d_backward>()),
};

}  // namespace

std::span<const Row> loss_rows() { return kRows; }

}  // namespace flambeau::ops
