// Batch norm: normalisation of each channel (dimension 1) over all other dimensions.
//
// Everything between input and output is float32 (float64 for float64), rounded once; saved statistics are float32 where the
// input is float16 or bfloat16, as on every PyTorch device but the CPU. The rows are the functional forms, which give the
// new running statistics as results; src/device/batch_norm.cc serves the forms that write them in place.
#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

using Optional = const std::optional<Value>&;

// The input in the type of computation, with its channels.
struct Channels {
  Value x;
  Dims reduced;  // all dimensions but 1

  Channels(Builder& b, Value input, std::initializer_list<const std::optional<Value>*> parameters) {
    if (!is_float(input.dtype())) refuse_dtype("batch_norm", input.dtype());
    if (input.rank() < 2)
      raise<InvalidArgument>("batch_norm expects an input of at least 2 dimensions, got {}", shape_text(input.dims()));
    for (const std::optional<Value>* p : parameters)
      if (*p && (*p)->dims() != Dims{input.dim(1)})
        raise<InvalidArgument>("[batch_norm] expected weight, bias and running statistics of {} elements, got shape {}",
                               input.dim(1), shape_text((*p)->dims()));
    x = convert(b, input, compute_type(input.dtype()));
    reduced = others(input.rank(), 1);
  }
  DType type() const { return x.dtype(); }
  int64_t count() const { return x.elements() / x.dim(1); }
  Value spread(Builder& b, Value statistic) const { return along(b, convert(b, statistic, type()), x.dims(), 1); }
  Value centred(Builder& b, Value average) const { return b.subtract(x, spread(b, average)); }
};

Value reciprocal_root(Builder& b, Value variance, double eps) { return b.rsqrt(plus(b, variance, eps)); }

Value normalised(Builder& b, const Channels& at, Value average, Value rstd, Optional weight, Optional bias, DType result) {
  Value y = b.multiply(at.centred(b, average), at.spread(b, rstd));
  if (weight) y = b.multiply(y, at.spread(b, *weight));
  if (bias) y = b.add(y, at.spread(b, *bias));
  return convert(b, y, result);
}

// The mean of a batch and its squares' sum around it.
struct Moments {
  Value average, squares;

  Moments(Builder& b, const Channels& at) {
    if (at.x.elements() == 0)
      raise<InvalidArgument>("input tensor must have at least one element, but got input_sizes = {}",
                             shape_text(at.x.dims()));
    average = mean(b, at.x, at.reduced);
    Value centred = at.centred(b, average);
    squares = sum(b, b.multiply(centred, centred), at.reduced);
  }
  Value rstd(Builder& b, const Channels& at, double eps) const {
    return reciprocal_root(b, b.divide(squares, constant_like(b, squares, static_cast<double>(at.count()))), eps);
  }
  Value unbiased_variance(Builder& b, const Channels& at) const {
    return b.divide(squares, constant_like(b, squares, static_cast<double>(at.count() - 1)));
  }
};

// (1 - momentum) * running + momentum * now
Value moved(Builder& b, Value running, Value now, const Scalar& momentum) {
  Value m = scalar_like(b, now, momentum), old = convert(b, running, now.dtype());
  return convert(b, b.add(b.multiply(b.subtract(constant_like(b, m, 1), m), old), b.multiply(m, now)), running.dtype());
}

// Output, saved mean and reciprocal deviation (empty in evaluation), new running mean and variance.
using Results = std::array<Value, 5>;

Results training_form(Builder& b, Value input, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                      const Scalar& momentum, double eps) {
  Channels at(b, input, {&weight, &bias, &running_mean, &running_var});
  Moments moments(b, at);
  Value rstd = moments.rstd(b, at, eps);
  Results out{normalised(b, at, moments.average, rstd, weight, bias, input.dtype()), moments.average, rstd, {}, {}};
  if (running_mean) out[3] = moved(b, *running_mean, moments.average, momentum);
  if (running_var) out[4] = moved(b, *running_var, moments.unbiased_variance(b, at), momentum);
  return out;
}

std::array<Value, 3> no_training(Builder& b, Value input, std::optional<Value> weight, std::optional<Value> bias,
                                 std::optional<Value> running_mean, std::optional<Value> running_var, const Scalar&,
                                 double eps) {
  Channels at(b, input, {&weight, &bias, &running_mean, &running_var});
  if (!running_mean || !running_var)
    raise<InvalidArgument>("Expected running_mean and running_var to be defined when training=False");
  Value rstd = reciprocal_root(b, convert(b, *running_var, at.type()), eps), none = zeros(b, at.type(), {0});
  return {normalised(b, at, *running_mean, rstd, weight, bias, input.dtype()), none, none};
}

Results functional(Builder& b, Value input, std::optional<Value> weight, std::optional<Value> bias,
                   std::optional<Value> running_mean, std::optional<Value> running_var, bool training,
                   const Scalar& momentum, double eps) {
  if (training) return training_form(b, input, weight, bias, running_mean, running_var, momentum, eps);
  auto [y, saved_mean, saved_rstd] = no_training(b, input, weight, bias, running_mean, running_var, momentum, eps);
  return {y, saved_mean, saved_rstd, *running_mean, *running_var};
}

std::array<Value, 3> no_stats(Builder& b, Value input, std::optional<Value> weight, std::optional<Value> bias, bool training,
                              const Scalar& momentum, double eps) {
  Results r = functional(b, input, weight, bias, {}, {}, training, momentum, eps);
  return {r[0], r[1], r[2]};
}

// The reserved tensor of cuDNN stays empty.
std::array<Value, 6> with_update_functional(Builder& b, Value input, std::optional<Value> weight, std::optional<Value> bias,
                                            Value running_mean, Value running_var, const Scalar& momentum, double eps) {
  Results r = training_form(b, input, weight, bias, running_mean, running_var, momentum, eps);
  return {r[0], r[1], r[2], zeros(b, DType::U8, {0}), r[3], r[4]};
}

// With n the normalised input and h = grad * weight: dx = rstd (h - mean(h) - n mean(h n)) in training, rstd h in
// evaluation.
std::array<Value, 3> backward(Builder& b, Value grad, Value input, std::optional<Value> weight,
                              std::optional<Value> running_mean, std::optional<Value> running_var,
                              std::optional<Value> save_mean, std::optional<Value> save_rstd, bool train, double eps,
                              Dims mask) {
  Channels at(b, input, {&weight});
  if (train ? !save_mean || !save_rstd : !running_mean || !running_var)
    raise<InvalidArgument>("[native_batch_norm_backward] expected {}",
                           train ? "saved statistics in training" : "running statistics in evaluation");
  Value g = convert(b, grad, at.type());
  Value average = train ? *save_mean : *running_mean;
  Value rstd = train ? *save_rstd : reciprocal_root(b, convert(b, *running_var, at.type()), eps);
  Value n = b.multiply(at.centred(b, average), at.spread(b, rstd));
  DType parameter = weight ? weight->dtype() : input.dtype();
  std::array<Value, 3> out;
  if (wanted(mask, 0)) {
    Value dx = g;
    if (train) {
      auto channel_mean = [&](Value v) { return at.spread(b, mean(b, v, at.reduced)); };
      dx = b.subtract(b.subtract(g, channel_mean(g)), b.multiply(n, channel_mean(b.multiply(g, n))));
    }
    if (weight) dx = b.multiply(dx, at.spread(b, *weight));
    out[0] = convert(b, b.multiply(dx, at.spread(b, rstd)), input.dtype());
  }
  if (wanted(mask, 1)) out[1] = convert(b, sum(b, b.multiply(g, n), at.reduced), parameter);
  if (wanted(mask, 2)) out[2] = convert(b, sum(b, g, at.reduced), parameter);
  return out;
}

std::array<Value, 3> backward_with_reserve(Builder& b, Value grad, Value input, std::optional<Value> weight,
                                           std::optional<Value> running_mean, std::optional<Value> running_var,
                                           std::optional<Value> save_mean, std::optional<Value> save_rstd, bool update,
                                           double eps, Dims mask, Value) {
  return backward(b, grad, input, weight, running_mean, running_var, save_mean, save_rstd, update, eps, mask);
}

constexpr Row kRows[] = {
    row("aten::_native_batch_norm_legit_functional", lower<&functional>()),
    row("aten::_native_batch_norm_legit_no_training", lower<&no_training>()),
    row("aten::_native_batch_norm_legit.no_stats", lower<&no_stats>()),
    row("aten::_batch_norm_with_update_functional", lower<&with_update_functional>()),
    row("aten::native_batch_norm_backward", lower<&backward>()),
    row("aten::batch_norm_backward", lower<&backward_with_reserve>()),
};

}  // namespace

std::span<const Row> batch_norm_rows() { return kRows; }

}  // namespace flambeau::ops
