// Fused optimizer steps: lists in, lists out. The functional forms return what the in-place forms write.
//
// Arithmetic is float32 (float64 for float64), as ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp; float16 and
// bfloat16 state is rounded once. With found_inf = 1 (gradients overflowed under a loss scale) nothing changes.
#include <cmath>

#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using Tensors = std::vector<Value>;

DType arithmetic_type(DType t) { return compute_type(t); }

// A rate: a number that may change from call to call, or a tensor of one element (.tensor_lr).
using Rate = std::variant<Scalar, Value>;
Value as_value(Builder& b, const Rate& rate, DType t) {
  if (auto* number = std::get_if<Scalar>(&rate)) return number->as(b, t);
  return b.reshape(convert(b, std::get<Value>(rate), t), {});
}
Value scaled(Builder& b, Value x, Value rank0) { return b.multiply(x, b.broadcast(rank0, x.dims())); }
Value scaled(Builder& b, Value x, const Scalar& number) { return scaled(b, x, number.as(b, x.dtype())); }

// 1 - x, rounded once to `t`: a beta is near one, and 1 - beta in float32 would keep few of its digits.
Value one_minus(Builder& b, const Scalar& x, DType t) {
  if (x.known) return b.constant(t, 1 - x.known->as_double());
  return convert(b, b.subtract(b.constant(DType::F64, 1), x.as(b, DType::F64)), t);
}

// What optimizers share about one step.
struct Step {
  bool maximize;
  std::optional<Value> grad_scale, found_inf;

  // The gradient as it is written back, in arithmetic precision: without the loss scale.
  Value unscaled(Builder& b, Value grad) const {
    Value g = convert(b, grad, arithmetic_type(grad.dtype()));
    if (!grad_scale) return g;
    return b.divide(g, b.broadcast(b.reshape(convert(b, *grad_scale, g.dtype()), {}), g.dims()));
  }
  // A parameter and its gradient in arithmetic precision: as it is written back, and as it updates.
  struct Wide {
    Value param, raw, grad;
  };
  Wide wide(Builder& b, Value param, Value grad, const Scalar& weight_decay) const {
    DType t = arithmetic_type(param.dtype());
    Value p = convert(b, param, t), raw = convert(b, unscaled(b, grad), t);
    Value g = maximize ? b.negate(raw) : raw;
    return {p, raw, weight_decay.is(0) ? g : b.add(g, scaled(b, p, weight_decay))};
  }
  // `after` in before's dtype, or `before` when an overflow was found.
  Value unless_overflow(Builder& b, Value before, Value after) const {
    after = convert(b, after, before.dtype());
    if (!found_inf) return after;
    Value skip = compare_with(b, b.reshape(*found_inf, {}), 1, hlo::Comparison::EQ);
    return b.select(b.broadcast(skip, before.dims()), before, after);
  }
};

void check_lengths(std::string_view op, size_t expected, std::initializer_list<size_t> lengths) {
  for (size_t n : lengths)
    if (n != expected) raise<InvalidArgument>("[{}] expected lists of one length, got {} and {}", op, expected, n);
}

Tensors joined(std::initializer_list<Tensors> lists) {
  Tensors all;
  for (const Tensors& l : lists) all.insert(all.end(), l.begin(), l.end());
  return all;
}

// ---- Adam
// -----------------------------------------------------------------------------------------------------------------------

struct AdamOptions {
  Rate lr;
  Scalar beta1, beta2, weight_decay, eps;
  bool amsgrad, decoupled;  // decoupled: AdamW
};
struct AdamState {
  Value param, exp_avg, exp_avg_sq, max_exp_avg_sq;  // the last is none without amsgrad
};

// 1 - beta^step, exact also where beta is near one. `step` is of the type of arithmetic.
Value bias_correction(Builder& b, Value step, const Scalar& beta) {
  if (beta.is(0)) return constant_like(b, step, 1);
  DType t = step.dtype();
  Value log_beta = beta.known ? b.constant(t, std::log(beta.known->as_double())) : b.log1p(b.negate(one_minus(b, beta, t)));
  return b.negate(b.expm1(b.multiply(step, log_beta)));
}

// All in arithmetic precision; `grad` as Step::unscaled gives it.
AdamState adam_update(Builder& b, AdamState s, Value grad, Value step, const AdamOptions& o, bool maximize) {
  DType t = s.param.dtype();
  Value lr = as_value(b, o.lr, t);
  Value g = maximize ? b.negate(grad) : grad;
  if (!o.weight_decay.is(0)) {
    if (o.decoupled) s.param = b.subtract(s.param, scaled(b, s.param, b.multiply(lr, o.weight_decay.as(b, t))));
    else g = b.add(g, scaled(b, s.param, o.weight_decay));
  }
  s.exp_avg = b.add(s.exp_avg, scaled(b, b.subtract(g, s.exp_avg), one_minus(b, o.beta1, t)));
  s.exp_avg_sq = b.add(scaled(b, s.exp_avg_sq, o.beta2), scaled(b, b.multiply(g, g), one_minus(b, o.beta2, t)));
  Value second = s.exp_avg_sq;
  if (o.amsgrad) second = s.max_exp_avg_sq = b.maximum(s.max_exp_avg_sq, s.exp_avg_sq);
  step = b.reshape(convert(b, step, t), {});
  Value correction1 = bias_correction(b, step, o.beta1), correction2 = b.sqrt(bias_correction(b, step, o.beta2));
  Value denominator = b.divide(b.sqrt(second), b.broadcast(correction2, second.dims()));
  denominator = b.add(denominator, b.broadcast(o.eps.as(b, t), second.dims()));
  s.param = b.subtract(s.param, b.divide(scaled(b, s.exp_avg, b.divide(lr, correction1)), denominator));
  return s;
}

Tensors adam(Builder& b, Tensors params, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs, Tensors max_exp_avg_sqs,
             const Tensors& steps, const AdamOptions& o, const Step& step) {
  size_t n = params.size();
  check_lengths("_fused_adam", n,
                {grads.size(), exp_avgs.size(), exp_avg_sqs.size(), o.amsgrad ? max_exp_avg_sqs.size() : n, steps.size()});
  for (size_t i = 0; i < n; ++i) {
    DType t = arithmetic_type(params[i].dtype());
    auto wide = [&](Value x) { return convert(b, x, t); };
    Value grad = convert(b, step.unscaled(b, grads[i]), t);
    AdamState s{wide(params[i]), wide(exp_avgs[i]), wide(exp_avg_sqs[i]), o.amsgrad ? wide(max_exp_avg_sqs[i]) : Value()};
    s = adam_update(b, s, grad, steps[i], o, step.maximize);
    params[i] = step.unless_overflow(b, params[i], s.param);
    exp_avgs[i] = step.unless_overflow(b, exp_avgs[i], s.exp_avg);
    exp_avg_sqs[i] = step.unless_overflow(b, exp_avg_sqs[i], s.exp_avg_sq);
    if (o.amsgrad) max_exp_avg_sqs[i] = step.unless_overflow(b, max_exp_avg_sqs[i], s.max_exp_avg_sq);
    if (step.grad_scale) grads[i] = step.unless_overflow(b, grads[i], grad);
  }
  return joined({params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs});
}

template <bool Decoupled, class Lr>
Tensors fused_adam(Builder& b, Tensors self, Tensors grads, Tensors exp_avgs, Tensors exp_avg_sqs, Tensors max_exp_avg_sqs,
                   Tensors state_steps, Lr lr, Scalar beta1, Scalar beta2, Scalar weight_decay, Scalar eps, bool amsgrad,
                   bool maximize, std::optional<Value> grad_scale, std::optional<Value> found_inf) {
  AdamOptions options{lr, beta1, beta2, weight_decay, eps, amsgrad, Decoupled};
  return adam(b, std::move(self), std::move(grads), std::move(exp_avgs), std::move(exp_avg_sqs), std::move(max_exp_avg_sqs),
              state_steps, options, {maximize, grad_scale, found_inf});
}

// ---- SGD
// ------------------------------------------------------------------------------------------------------------------------

template <class Lr>
Tensors fused_sgd(Builder& b, Tensors params, Tensors grads, Tensors buffers, Scalar weight_decay, Scalar momentum, Lr lr,
                  Scalar dampening, bool nesterov, bool maximize, bool is_first_step, std::optional<Value> grad_scale,
                  std::optional<Value> found_inf) {
  Step step{maximize, grad_scale, found_inf};
  check_lengths("_fused_sgd", params.size(), {grads.size(), buffers.empty() ? params.size() : buffers.size()});
  for (size_t i = 0; i < params.size(); ++i) {
    auto [p, raw, g] = step.wide(b, params[i], grads[i], weight_decay);
    DType t = p.dtype();
    if (!momentum.is(0) && !buffers.empty()) {
      Value buffer = g;
      if (!is_first_step) buffer = b.add(scaled(b, convert(b, buffers[i], t), momentum), scaled(b, g, one_minus(b, dampening, t)));
      buffers[i] = step.unless_overflow(b, buffers[i], buffer);
      g = nesterov ? b.add(g, scaled(b, buffer, momentum)) : buffer;
    }
    params[i] = step.unless_overflow(b, params[i], b.subtract(p, scaled(b, g, as_value(b, lr, t))));
    if (grad_scale) grads[i] = step.unless_overflow(b, grads[i], raw);
  }
  return joined({params, grads, buffers});
}

// ---- Adagrad
// --------------------------------------------------------------------------------------------------------------------

template <class Lr>
Tensors fused_adagrad(Builder& b, Tensors params, Tensors grads, Tensors sums, Tensors state_steps, Lr lr, Scalar lr_decay,
                      Scalar weight_decay, Scalar eps, bool maximize, std::optional<Value> grad_scale,
                      std::optional<Value> found_inf) {
  Step step{maximize, grad_scale, found_inf};
  check_lengths("_fused_adagrad", params.size(), {grads.size(), sums.size(), state_steps.size()});
  for (size_t i = 0; i < params.size(); ++i) {
    auto [p, raw, g] = step.wide(b, params[i], grads[i], weight_decay);
    DType t = p.dtype();
    Value before = plus(b, b.reshape(convert(b, state_steps[i], t), {}), -1);
    Value rate = b.divide(as_value(b, lr, t), plus(b, b.multiply(before, lr_decay.as(b, t)), 1));
    Value sum = b.add(convert(b, sums[i], t), b.multiply(g, g));
    Value root = b.add(b.sqrt(sum), b.broadcast(eps.as(b, t), sum.dims()));
    sums[i] = step.unless_overflow(b, sums[i], sum);
    params[i] = step.unless_overflow(b, params[i], b.subtract(p, b.divide(scaled(b, g, rate), root)));
    if (grad_scale) grads[i] = step.unless_overflow(b, grads[i], raw);
  }
  if constexpr (std::is_same_v<Lr, Scalar>) return joined({params, grads, sums, state_steps});  // its schema writes the steps too
  else return joined({params, grads, sums});
}

constexpr Row kRows[] = {
    row("aten::_fused_adagrad", lower<&fused_adagrad<Scalar>>()),
    row("aten::_fused_adagrad.tensor_lr", lower<&fused_adagrad<Value>>()),
    row("aten::_fused_adam", lower<&fused_adam<false, Scalar>>()),
    row("aten::_fused_adam.tensor_lr", lower<&fused_adam<false, Value>>()),
    row("aten::_fused_adamw", lower<&fused_adam<true, Scalar>>()),
    row("aten::_fused_adamw.tensor_lr", lower<&fused_adam<true, Value>>()),
    row("aten::_fused_sgd", lower<&fused_sgd<Scalar>>()),
    row("aten::_fused_sgd.tensor_lr", lower<&fused_sgd<Value>>()),
};

}  // namespace

std::span<const Row> optim_rows() { return kRows; }

}  // namespace flambeau::ops
