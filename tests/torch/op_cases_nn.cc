// Cases of matrix products, losses, normalisation, attention and optimizers.
#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "op_case.h"

namespace flambeau::op_test {

namespace {

const Options kOfFloats = {.dtypes = kFloats};
const DTypes kExact = {at::kInt, at::kLong, at::kFloat, at::kDouble};
const DTypes kSingleAndDouble = {at::kFloat, at::kDouble};
const DTypes kHalves = {at::kHalf, at::kBFloat16};

// Results of bfloat16 products near zero: both sides round sums of a few units once, at different points.
const std::vector<Options::Wider> kProducts = {
    {at::kHalf, 1e-3, 1e-2, "sums of terms near 9 that cancel; one unit in the last place of the terms"},
    {at::kBFloat16, 1.6e-2, 7e-2, "as float16"}};
const Options kMatrices = {.dtypes = kNumbers, .tolerances = kProducts};

const bool matrices = add_cases({
    {"aten::mm", {x(3, 4), y(4, 5)}, kMatrices},
    {"aten::mm", {x(3, 4), y(3, 5)}},
    {"aten::mm", {x(3), y(3, 5)}},
    {"aten::mm", {x(3, 4), y(4, 5)}, {.dtypes = kExact, .pairs = true}},
    {"aten::mm", {x(3, 0), y(0, 5)}, kOfFloats},
    {"aten::mm", {x(0, 4), y(4, 5)}, kOfFloats},
    {"aten::bmm", {x(2, 3, 4), y(2, 4, 5)}, kMatrices},
    {"aten::bmm", {x(2, 3, 4), y(3, 4, 5)}},
    {"aten::bmm", {x(3, 4), y(3, 4, 5)}},
    {"aten::addmm", {z(3, 5), x(3, 4), y(4, 5)}, kMatrices},
    {"aten::addmm", {z(5), x(3, 4), y(4, 5)}, kMatrices},
    {"aten::addmm", {z(3, 1), x(3, 4), y(4, 5), 2, -3}, kMatrices},
    {"aten::addmm", {z(5), x(3, 4), y(4, 5), 0.5, 1.5}, {.dtypes = kFloats, .tolerances = kProducts}},
    {"aten::addmm", {z(5).special(), x(3, 4), y(4, 5), 0, 1}, {.dtypes = kFloats, .tolerances = kProducts}},
    {"aten::addmm", {z(4), x(3, 4), y(4, 5)}},
    {"aten::baddbmm", {z(2, 3, 5), x(2, 3, 4), y(2, 4, 5)}, kMatrices},
    {"aten::baddbmm", {z(5), x(2, 3, 4), y(2, 4, 5), 2, 3}, kMatrices},
    {"aten::baddbmm", {z(5).special(), x(2, 3, 4), y(2, 4, 5), 0, 2}, {.dtypes = kFloats, .tolerances = kProducts}},
    {"aten::addbmm", {z(3, 5), x(2, 3, 4), y(2, 4, 5)}, {.dtypes = kExact}},
    {"aten::addbmm", {z(5), x(2, 3, 4), y(2, 4, 5), 2, 3}, {.dtypes = kExact}},
    {"aten::mv", {x(3, 4), y(4)}, kMatrices},
    {"aten::mv", {x(3, 4), y(3)}},
    {"aten::addmv", {z(3), x(3, 4), y(4)}, kMatrices},
    {"aten::addmv", {z(1), x(3, 4), y(4), 2, -1}, kMatrices},
    {"aten::addmv", {z(3), x(3, 4), y(3)}},
    {"aten::addr", {z(3, 4), x(3), y(4)}, {.tolerances = kProducts}},
    {"aten::addr", {z(4), x(3), y(4), 2, 3}, {.dtypes = kNumbers, .tolerances = kProducts}},
    {"aten::addr", {z(4), x(3, 1), y(4)}},
    {"aten::dot", {x(5), y(5)}, kMatrices},
    {"aten::dot", {x(5), y(4)}},
    {"aten::dot", {x(5), y(5)}, {.dtypes = kExact, .pairs = true}},
    {"aten::vdot", {x(5), y(5)}, {.dtypes = {at::kLong, at::kFloat, at::kDouble, at::kComplexFloat}}},
});

// Of our own: PyTorch's is tensordot, which has no other result type.
const Options kWidened = {.dtypes = {at::kHalf, at::kBFloat16, at::kFloat}, .tolerances = {{at::kFloat, 1e-5, 1e-5, "sums in another order"}}};
const bool contractions = add_cases({
    {"flambeau::dot_general", {x(2, 3, 4), y(5, 6, 4), ints(-1), ints(-1)}, kMatrices},      // y of a linear layer
    {"flambeau::dot_general", {x(2, 3, 5, 6), y(5, 6, 4), ints(2, 3), ints(0, 1)}, kMatrices},  // dx
    {"flambeau::dot_general", {x(2, 3, 5, 6), y(2, 3, 4), ints(0, 1), ints(0, 1)}, kMatrices},  // dw
    {"flambeau::dot_general", {x(2, 3, 5, 6), y(2, 3, 4), ints(0, 1), ints(0, 1), at::kFloat}, kWidened},
    {"flambeau::dot_general", {x(2, 3, 4), y(3, 5, 2), ints(0, 1), ints(2, 0)}, kMatrices},  // in another order
    {"flambeau::dot_general", {x(3, 4, 2), y(4, 5), ints(1), ints(0)}, kMatrices},           // from the midst
    {"flambeau::dot_general", {x(3, 4), y(3, 4), ints(0, 1), ints(0, 1)}, kMatrices},        // to a number
    {"flambeau::dot_general", {x(3), y(4), ints(), ints()}, kMatrices},
    {"flambeau::dot_general", {x(3, 0), y(0, 5), ints(1), ints(0)}, kOfFloats},
    {"flambeau::dot_general", {x(3, 4), y(4, 5), ints(1), ints(0)}, {.dtypes = kExact, .pairs = true}},
    {"flambeau::dot_general", {x(3, 4), y(5, 4), ints(1), ints(0)}},   // sizes differ
    {"flambeau::dot_general", {x(3, 4), y(4, 4), ints(1), ints(2)}},   // no such dimension
    {"flambeau::dot_general", {x(4, 4), y(4, 4), ints(1, 1), ints(0, 1)}},
});

// The noise is the same on the device and on the CPU, and so are all bits.
const Options kSameBits = {.dtypes = kFloat, .tolerances = {{at::kBFloat16, 0, 0, "the same bits"}}};
const auto whole = [](int64_t n) { return given(at::full({}, n, at::kLong)); };
const bool roundings = add_cases({
    {"flambeau::stochastic_round", {x(64, 5), whole(7), given(at::full({1}, -3, at::kLong)), 0}, kSameBits},
    {"flambeau::stochastic_round", {x(4, 3, 5), whole(int64_t{1} << 40), given(at::arange(4) - 2), 3}, kSameBits},
    {"flambeau::stochastic_round", {x(40).special(), whole(1), given(at::zeros({1}, at::kLong)), 1}, kSameBits},
    {"flambeau::stochastic_round", {scalar(), whole(1), given(at::ones({1}, at::kLong)), 2}, kSameBits},
    {"flambeau::stochastic_round", {x(4), whole(1), given(at::zeros({1}, at::kLong)), 4}, kSameBits},  // no such word
    {"flambeau::stochastic_round", {x(4), whole(1), given(at::arange(3)), 0}, kSameBits},              // a key a row
    {"flambeau::stochastic_round", {x(4), whole(1), given(at::zeros({1}, at::kLong)), 0}, {.dtypes = {at::kDouble, at::kBFloat16}}},
});
const bool orders = add_cases({
    {"flambeau::optimization_barrier", {tensors({x()})}},
    {"flambeau::optimization_barrier", {tensors({x(3), y(2, 4), z()})}},
});

// The .dtype forms have kernels for CUDA alone: the product in the wider type.
at::Tensor in(const c10::IValue& v, at::ScalarType t) { return v.toTensor().to(t); }
Options widened(std::function<at::Tensor(const std::vector<c10::IValue>&)> product) {
  return {.dtypes = {at::kHalf, at::kBFloat16, at::kFloat},
          .tolerances = {{at::kFloat, 1e-5, 1e-5, "sums in another order"}},
          .reference = [product](const std::vector<c10::IValue>& a) { return std::vector<at::Tensor>{product(a)}; }};
}
const bool widened_matrices = add_cases({
    {"aten::mm.dtype", {x(3, 4), y(4, 5), at::kFloat}, widened([](auto& a) {
       return at::mm(in(a[0], at::kFloat), in(a[1], at::kFloat));
     })},
    {"aten::bmm.dtype", {x(2, 3, 4), y(2, 4, 5), at::kFloat}, widened([](auto& a) {
       return at::bmm(in(a[0], at::kFloat), in(a[1], at::kFloat));
     })},
    {"aten::addmm.dtype", {z(5).of(at::kFloat), x(3, 4), y(4, 5), at::kFloat, 0.5, 2}, widened([](auto& a) {
       return at::addmm(in(a[0], at::kFloat), in(a[1], at::kFloat), in(a[2], at::kFloat), 0.5, 2);
     })},
    {"aten::baddbmm.dtype", {z(5).of(at::kFloat), x(2, 3, 4), y(2, 4, 5), at::kFloat, 0.5, 2}, widened([](auto& a) {
       return at::baddbmm(in(a[0], at::kFloat), in(a[1], at::kFloat), in(a[2], at::kFloat), 0.5, 2);
     })},
});

// ---- softmax and losses
// -------------------------------------------------------------------------------------------------------

const bool softmax = add_cases({
    {"aten::_softmax", {x(), -1, false}, kOfFloats},
    {"aten::_softmax", {x(3, 5), 0, false}, kOfFloats},
    {"aten::_softmax", {x(3, 5).special(), 1, false}, kOfFloats},
    {"aten::_softmax", {x(3, 5), 2, false}},
    {"aten::_log_softmax", {x(), -1, false}, kOfFloats},
    {"aten::_log_softmax", {x(2, 3, 5).range(-50, 50), 1, false}, kOfFloats},
    {"aten::_log_softmax", {x(3, 5).special(), 1, false}, kOfFloats},
    {"aten::_softmax_backward_data", {x(3, 5), y(3, 5).range(0, 1), 1, at::kFloat}, {.dtypes = kFloat}},
    {"aten::_softmax_backward_data", {x(3, 5), y(3, 5).range(0, 1), 0, at::kBFloat16}, {.dtypes = {at::kBFloat16}}},
    {"aten::_softmax_backward_data", {scalar(), scalar(1), 0, at::kDouble}, {.dtypes = {at::kDouble}}},
    {"aten::_log_softmax_backward_data", {x(3, 5), y(3, 5).range(-4, 0), 1, at::kFloat}, {.dtypes = kFloat}},
    {"aten::_log_softmax_backward_data",
     {x(2, 3, 5), y(2, 3, 5).range(-4, 0), 1, at::kBFloat16},
     {.dtypes = {at::kBFloat16}}},
    {"aten::_log_softmax_backward_data", {scalar(), scalar(1), 0, at::kDouble}, {.dtypes = {at::kDouble}}},
});

TensorSpec targets() { return given(at::tensor({1, -100, 0, 4}, at::kLong)); }
TensorSpec grid_targets() {
  return given(at::tensor({0, 2, 1, -100, 1, 1, 2, 0, 0, 2, 1, 1}, at::kLong).reshape({2, 2, 3}));
}

std::vector<OpCase> nll_cases() {
  std::vector<OpCase> cases;
  for (int64_t reduction : {0, 1, 2})
    for (const Arg& weight : {Arg(none), Arg(y(5).positive())}) {
      cases.push_back({"aten::nll_loss_forward", {x(4, 5), targets(), weight, reduction, -100}, kOfFloats});
      cases.push_back(
          {"aten::nll_loss_forward", {x(5), given(at::scalar_tensor(2, at::kLong)), weight, reduction, -100}, kOfFloats});
      TensorSpec grad = reduction == 0 ? z(4) : tensor(2, Shape{});
      cases.push_back({"aten::nll_loss_backward",
                       {grad, x(4, 5), targets(), weight, reduction, -100, tensor(2, Shape{}).range(2, 3)},
                       kOfFloats});
      Arg weight2d = std::holds_alternative<None>(weight.value) ? Arg(none) : Arg(y(3).positive());
      TensorSpec grad2d = reduction == 0 ? z(2, 2, 3) : tensor(2, Shape{});
      Options options = {.dtypes = kSingleAndDouble};
      cases.push_back({"aten::nll_loss2d_forward", {x(2, 3, 2, 3), grid_targets(), weight2d, reduction, -100}, options});
      cases.push_back({"aten::nll_loss2d_backward",
                       {grad2d, x(2, 3, 2, 3), grid_targets(), weight2d, reduction, -100, tensor(2, Shape{}).range(2, 3)},
                       options});
    }
  cases.push_back({"aten::nll_loss_backward",
                   {tensor(2, Shape{}), x(5), given(at::scalar_tensor(2, at::kLong)), y(5).positive(), 1, -100,
                    tensor(2, Shape{}).range(2, 3)},
                   kOfFloats});
  // Nothing but ignored targets; an ignored class by number; a target out of range; wrong sizes.
  cases.push_back(
      {"aten::nll_loss_forward", {x(2, 5), given(at::tensor({-100, -100}, at::kLong)), none, 1, -100}, kOfFloats});
  cases.push_back({"aten::nll_loss_forward", {x(2, 5), given(at::tensor({3, 1}, at::kLong)), none, 2, 3}, kOfFloats});
  cases.push_back({"aten::nll_loss_forward", {x(2, 5), given(at::tensor({3, 5}, at::kLong)), none, 1, -100}, kOfFloats});
  cases.push_back({"aten::nll_loss_forward", {x(3, 5), index(5, {4}), none, 1, -100}, kOfFloats});
  cases.push_back({"aten::nll_loss_forward", {x(0, 5), index(5, {0}), none, 1, -100}, {.dtypes = kFloat}});
  return cases;
}
const bool nll = add_cases(nll_cases());

// Losses compute in float32 here and round once; torch CPU rounds bfloat16 and float16 between its steps.
const std::vector<Options::Wider> kStepwise = {{at::kHalf, 4e-3, 4e-3, "torch rounds each step"},
                                               {at::kBFloat16, 3e-2, 3e-2, "torch rounds each step"}};

std::vector<OpCase> loss_cases() {
  std::vector<OpCase> cases;
  Options floats = {.dtypes = kFloats, .tolerances = kStepwise};
  for (int64_t reduction : {0, 1, 2}) {
    TensorSpec grad = reduction == 0 ? z(3, 5) : tensor(2, Shape{});
    cases.push_back({"aten::mse_loss", {x(), y(), reduction}, floats});
    cases.push_back({"aten::mse_loss_backward", {grad, x(3, 5), y(3, 5), reduction}, floats});
    cases.push_back({"aten::smooth_l1_loss", {x(3, 5), y(3, 5), reduction, 0.7}, floats});
    cases.push_back({"aten::smooth_l1_loss", {x(3, 5), y(3, 5), reduction, 0.0}, floats});
    cases.push_back({"aten::smooth_l1_loss_backward", {grad, x(3, 5), y(3, 5), reduction, 0.7}, floats});
    cases.push_back({"aten::huber_loss", {x(3, 5), y(3, 5), reduction, 1.5}, floats});
    cases.push_back({"aten::huber_loss_backward", {grad, x(3, 5), y(3, 5), reduction, 1.5}, floats});
    for (const Arg& weight : {Arg(none), Arg(z(3, 5).positive())}) {
      cases.push_back({"aten::binary_cross_entropy", {x(3, 5).range(0, 1), y(3, 5).range(0, 1), weight, reduction}, floats});
      cases.push_back({"aten::binary_cross_entropy_backward",
                       {grad, x(3, 5).range(0.05, 0.95), y(3, 5).range(0, 1), weight, reduction},
                       floats});
      cases.push_back(
          {"aten::binary_cross_entropy_with_logits", {x(3, 5), y(3, 5).range(0, 1), weight, none, reduction}, floats});
      cases.push_back({"aten::binary_cross_entropy_with_logits",
                       {x(3, 5), y(3, 5).range(0, 1), weight, z(5).positive(), reduction},
                       floats});
    }
  }
  cases.push_back({"aten::binary_cross_entropy",
                   {given(at::tensor({0.0, 1.0, 1.0})), given(at::tensor({1.0, 1.0, 0.0}))},
                   {.dtypes = kFloat}});
  cases.push_back(
      {"aten::binary_cross_entropy", {given(at::tensor({0.5, 1.5})), given(at::tensor({1.0, 1.0}))}, {.dtypes = kFloat}});
  cases.push_back({"aten::mse_loss", {x(0, 5), y(0, 5), 1}, floats});
  return cases;
}
const bool losses = add_cases(loss_cases());

// ---- normalisation
// --------------------------------------------------------------------------------------------------------------

// Saved statistics are float32 here, in the input's type on the CPU: not compared for half types.
const std::vector<Options::Wider> kNorms = {{at::kFloat, 1e-5, 2e-5, "a mean of squares in another order"}};
const Options kWhole = {.dtypes = kSingleAndDouble, .tolerances = kNorms};
const Options kFirstOfHalf = {.dtypes = kHalves, .skip_outputs = {1, 2}, .tolerances = kStepwise};

std::vector<OpCase> norm_cases() {
  std::vector<OpCase> cases;
  for (const Options& options : {kWhole, kFirstOfHalf}) {
    cases.push_back({"aten::native_layer_norm", {x(2, 3, 8), ints(8), y(8), z(8), 1e-5}, options});
    cases.push_back({"aten::native_layer_norm", {x(2, 3, 8), ints(3, 8), none, none, 1e-5}, options});
    cases.push_back({"aten::native_layer_norm", {x(2, 3, 8), ints(8), y(8), none, 0.1}, options});
    cases.push_back({"aten::_fused_rms_norm", {x(2, 3, 8), ints(8), y(8), 1e-5}, options});
    cases.push_back({"aten::_fused_rms_norm", {x(2, 3, 8), ints(3, 8), none, none}, options});
    cases.push_back({"aten::native_group_norm", {x(2, 6, 4), y(6), z(6), 2, 6, 4, 3, 1e-5}, options});
    cases.push_back({"aten::native_group_norm", {x(2, 6, 2, 2), none, none, 2, 6, 4, 2, 1e-5}, options});
  }
  cases.push_back({"aten::native_layer_norm", {x(2, 3), ints(4), none, none, 1e-5}, kWhole});
  cases.push_back({"aten::native_layer_norm", {x(2, 3), ints(3), y(4), none, 1e-5}, kWhole});
  cases.push_back({"aten::native_group_norm", {x(2, 6, 4), none, none, 2, 6, 4, 4, 1e-5}, kWhole});
  auto stat = [](Shape dims) { return tensor(2, std::move(dims)).range(0.5, 1.5); };
  for (const Arg& mask : {list(true, true, true), list(true, false, true), list(false, true, false)}) {
    cases.push_back({"aten::native_layer_norm_backward",
                     {x(2, 3, 8), y(2, 3, 8), ints(8), stat({2, 3, 1}), stat({2, 3, 1}), y(8), z(8), mask},
                     kWhole});
    cases.push_back({"aten::native_group_norm_backward",
                     {x(2, 6, 4), y(2, 6, 4), stat({2, 3}), stat({2, 3}), z(6), 2, 6, 4, 3, mask},
                     kWhole});
  }
  cases.push_back(
      {"aten::native_layer_norm_backward",
       {x(2, 3, 8), y(2, 3, 8), ints(3, 8), stat({2, 1, 1}), stat({2, 1, 1}), none, none, list(true, false, false)},
       kWhole});
  cases.push_back({"aten::native_group_norm_backward",
                   {x(2, 6, 4), y(2, 6, 4), stat({2, 3}), stat({2, 3}), none, 2, 6, 4, 3, list(true, false, false)},
                   kWhole});
  return cases;
}
const bool norms = add_cases(norm_cases());

// torch CPU has no kernel of _fused_rms_norm_backward: the gradients that autograd finds.
at::Tensor drawn(Shape dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return at::sin(at::arange(1, n + 1, at::kDouble) * 1.7).mul(2).reshape(dims);
}
TensorSpec drawn_spec(Shape dims) {
  return given([dims](at::ScalarType t) { return drawn(dims).to(t); });
}
at::ScalarType wide_type(at::ScalarType t) { return t == at::kDouble ? t : at::kFloat; }
at::Tensor rms_reciprocal(const at::Tensor& x, at::IntArrayRef dims) { return (x * x).mean(dims, true).rsqrt(); }

std::vector<at::Tensor> gradients(const at::Tensor& output, const std::vector<at::Tensor>& inputs, const at::Tensor& grad) {
  return torch::autograd::grad({output}, inputs, {grad}, /*retain_graph=*/{}, /*create_graph=*/false, /*allow_unused=*/true);
}

OpCase rms_backward_case(Shape normalized, std::vector<bool> mask) {
  Shape axes;
  for (size_t i = 0; i < normalized.size(); ++i) axes.push_back(-1 - static_cast<int64_t>(i));
  auto rstd = given([axes](at::ScalarType t) { return rms_reciprocal(drawn({2, 3, 8}).to(t).to(wide_type(t)), axes); });
  auto reference = [axes, mask](const std::vector<c10::IValue>& a) {
    at::AutoGradMode enabled(true);
    at::ScalarType t = a[1].toTensor().scalar_type(), wide = wide_type(t);
    at::Tensor x = in(a[1], wide).requires_grad_(), w = in(a[4], wide).requires_grad_();
    auto grads = gradients(x * rms_reciprocal(x, axes) * w, {x, w}, in(a[0], wide));
    for (size_t i = 0; i < 2; ++i) grads[i] = mask[i] ? grads[i].to(t) : at::Tensor();
    return grads;
  };
  return {"aten::_fused_rms_norm_backward",
          {x(2, 3, 8), drawn_spec({2, 3, 8}), normalized, rstd, normalized.size() == 1 ? y(8) : y(3, 8),
           list(bool(mask[0]), bool(mask[1]))},
          {.dtypes = kFloats,
           .tolerances = {{at::kFloat, 1e-5, 2e-5, "a mean of squares in another order"}},
           .reference = reference}};
}
const bool rms_backward = add_cases({rms_backward_case({8}, {true, true}), rms_backward_case({3, 8}, {true, true}),
                                     rms_backward_case({8}, {true, false}), rms_backward_case({8}, {false, true})});

// ---- attention
// ------------------------------------------------------------------------------------------------------------------

// PyTorch's math path in float32 or float64, on copies of grouped keys and values.
struct Heads {
  at::Tensor query, key, value, bias;
  at::Tensor output, logsumexp;

  Heads(const c10::IValue& q, const c10::IValue& k, const c10::IValue& v, const c10::IValue& given_bias, bool causal,
        std::optional<double> scale, bool with_gradients) {
    at::ScalarType wide = wide_type(q.toTensor().scalar_type());
    query = in(q, wide), key = in(k, wide), value = in(v, wide);
    bool is_bias = given_bias.isTensor() && given_bias.toTensor().defined();
    if (is_bias) bias = given_bias.toTensor().scalar_type() == at::kBool ? given_bias.toTensor() : in(given_bias, wide);
    for (at::Tensor* t : {&query, &key, &value, &bias})
      if (with_gradients && t->defined() && t->is_floating_point()) *t = t->detach().requires_grad_();
    int64_t group = query.size(1) / key.size(1);
    at::Tensor keys = key.repeat_interleave(group, 1), values = value.repeat_interleave(group, 1);
    at::Tensor scores =
        at::matmul(query, keys.transpose(-1, -2)) * scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
    if (is_bias)
      scores = bias.scalar_type() == at::kBool ? scores.masked_fill(bias.logical_not(), -INFINITY) : scores + bias;
    if (causal)
      scores = scores.masked_fill(at::ones({query.size(2), key.size(2)}, at::kBool).tril().logical_not(), -INFINITY);
    logsumexp = at::logsumexp(scores, {-1});
    output = at::matmul(at::_safe_softmax(scores, -1), values);
  }
};

std::vector<at::Tensor> attention_reference(const std::vector<c10::IValue>& a) {
  Heads h(a[0], a[1], a[2], a[3], a[5].toBool(), a[7].isNone() ? std::nullopt : std::optional(a[7].toDouble()), false);
  std::vector<at::Tensor> outputs(9);
  outputs[0] = h.output.to(a[0].toTensor().scalar_type());
  outputs[1] = h.logsumexp;
  return outputs;
}

std::vector<at::Tensor> attention_gradients(const std::vector<c10::IValue>& a) {
  at::AutoGradMode enabled(true);
  Heads h(a[1], a[2], a[3], a[4], a[13].toBool(), a[16].isNone() ? std::nullopt : std::optional(a[16].toDouble()), true);
  std::vector<at::Tensor> inputs{h.query, h.key, h.value};
  bool bias = h.bias.defined() && h.bias.requires_grad();
  if (bias) inputs.push_back(h.bias);
  auto grads = gradients(h.output, inputs, in(a[0], h.output.scalar_type()));
  grads.resize(4);
  auto mask = a[5].toBoolList();
  for (size_t i = 0; i < 4; ++i)
    grads[i] = mask[i] && grads[i].defined() ? grads[i].to(a[1].toTensor().scalar_type()) : at::Tensor();
  return grads;
}

// Output and logsumexp as the backward pass gets them, from the same drawn inputs.
struct Scene {
  Shape query, key, value;
  std::optional<Shape> bias;
  bool causal = false;
  std::optional<double> scale = {};
  bool masks_a_row = false;  // the bias forbids all keys to the first query
  bool bool_bias = false;

  at::Tensor make_bias(at::ScalarType t) const {
    at::Tensor m = drawn(*bias);
    if (masks_a_row) m.select(-2, 0).fill_(-INFINITY);
    return bool_bias ? m.gt(-0.5) : m.to(t);
  }
  Arg bias_arg() const {
    if (!bias) return none;
    return given([s = *this](at::ScalarType t) { return s.make_bias(t); });
  }
  Arg scale_arg() const { return scale ? Arg(*scale) : Arg(none); }
  Heads heads(at::ScalarType t) const {
    auto part = [&](const Shape& s) { return drawn(s).to(t); };
    return {part(query), part(key), part(value), bias ? c10::IValue(make_bias(t)) : c10::IValue(), causal, scale, false};
  }
};

std::vector<OpCase> attention_cases() {
  const Scene scenes[] = {
      {.query = {2, 4, 5, 8}, .key = {2, 4, 7, 8}, .value = {2, 4, 7, 8}, .bias = {}},
      {.query = {2, 4, 6, 8}, .key = {2, 2, 6, 8}, .value = {2, 2, 6, 4}, .bias = {}, .causal = true},
      {.query = {1, 4, 3, 8}, .key = {1, 1, 6, 8}, .value = {1, 1, 6, 8}, .bias = {}, .causal = true, .scale = 0.3},
      {.query = {2, 4, 5, 8}, .key = {2, 2, 7, 8}, .value = {2, 2, 7, 8}, .bias = Shape{5, 7}},
      {.query = {2, 4, 5, 8}, .key = {2, 2, 7, 8}, .value = {2, 2, 7, 8}, .bias = Shape{2, 1, 5, 7}, .masks_a_row = true},
      {.query = {2, 2, 5, 8}, .key = {2, 2, 7, 8}, .value = {2, 2, 7, 8}, .bias = Shape{2, 1, 1, 7}, .bool_bias = true},
  };
  const std::vector<Options::Wider> tolerances = {
      {at::kHalf, 4e-3, 4e-3, "probabilities are rounded before they meet the values"},
      {at::kBFloat16, 3e-2, 3e-2, "as float16"},
      {at::kFloat, 1e-5, 2e-5, "sums in another order"}};
  std::vector<OpCase> cases;
  for (const Scene& s : scenes) {
    Options options = {.dtypes = kFloats, .tolerances = tolerances, .reference = attention_reference};
    std::vector<Arg> qkv{drawn_spec(s.query), drawn_spec(s.key), drawn_spec(s.value)};
    cases.push_back({"aten::_scaled_dot_product_fused_attention_overrideable",
                     {qkv[0], qkv[1], qkv[2], s.bias_arg(), 0.0, s.causal, false, s.scale_arg()},
                     options});
    auto output = given([s](at::ScalarType t) { return s.heads(t).output.to(t); });
    auto logsumexp = given([s](at::ScalarType t) { return s.heads(t).logsumexp; });
    Shape out_dims = s.query;
    out_dims[3] = s.value[3];
    auto undefined = given(at::Tensor());
    options.reference = attention_gradients;
    bool bias_gradient = s.bias && !s.bool_bias;
    Arg bias = s.bias ? s.bias_arg() : Arg(undefined);
    cases.push_back(
        {"aten::_scaled_dot_product_fused_attention_overrideable_backward",
         {tensor(1, out_dims), qkv[0], qkv[1], qkv[2], bias, list(true, true, true, bias_gradient), output, logsumexp,
          undefined, undefined, s.query[2], s.key[2], 0.0, s.causal, undefined, undefined, s.scale_arg()},
         options});
  }
  return cases;
}
const bool attention = add_cases(attention_cases());

// ---- optimizers
// -----------------------------------------------------------------------------------------------------------------

const std::vector<Options::Wider> kSteps = {
    {at::kFloat, 1e-5, 1e-5, "1 - beta^step is exact here, a difference of float32 there"},
    {at::kBFloat16, 1.6e-2, 1e-4, "rounded once"}};

std::vector<OpCase> optimizer_cases() {
  std::vector<OpCase> cases;
  auto pair = [](TensorSpec s) {
    auto at_shape = [&](Shape dims) {
      TensorSpec t = s;
      t.dims = std::move(dims);
      return t;
    };
    return tensors({at_shape({3, 5}), at_shape({4})});
  };
  auto at_step = [](double step) { return tensors({given(at::scalar_tensor(step)), given(at::scalar_tensor(step))}); };
  Arg inverse_scale = given(at::scalar_tensor(4.0)), clean = given(at::scalar_tensor(0.0)),
      overflow = given(at::scalar_tensor(1.0));
  Arg no_tensors = tensors({});
  auto lr_tensor = given(at::scalar_tensor(0.01));
  Options options = {.dtypes = kSingleAndDouble, .tolerances = kSteps};
  struct Variation {
    double step, weight_decay;
    bool amsgrad, maximize;
    Arg grad_scale, found_inf;
  };
  const Variation variations[] = {{1, 0, false, false, none, none},
                                  {3, 0.1, false, false, none, none},
                                  {100, 0.1, true, false, none, none},
                                  {3, 0.1, false, true, none, none},
                                  {3, 0.1, true, false, inverse_scale, clean},
                                  {3, 0.1, true, false, inverse_scale, overflow}};
  for (std::string name : {"aten::_fused_adam", "aten::_fused_adamw"})
    for (const Variation& v : variations)
      for (bool tensor_lr : {false, true}) {
        Arg maxima = v.amsgrad ? pair(x().positive()) : no_tensors;
        Arg lr = tensor_lr ? Arg(lr_tensor) : Arg(0.01);
        cases.push_back({name + (tensor_lr ? ".tensor_lr" : ""),
                         {pair(x()), pair(x()), pair(x()), pair(x().positive()), maxima, at_step(v.step), lr, 0.9, 0.95,
                          v.weight_decay, 1e-8, v.amsgrad, v.maximize, v.grad_scale, v.found_inf},
                         options});
      }
  struct SgdVariation {
    double weight_decay, momentum, dampening;
    bool nesterov, maximize, is_first_step;
    Arg grad_scale, found_inf;
  };
  const SgdVariation sgd[] = {{0, 0, 0, false, false, false, none, none},
                              {0.1, 0.9, 0, false, false, true, none, none},
                              {0.1, 0.9, 0.2, false, true, false, none, none},
                              {0.1, 0.9, 0, true, false, false, none, none},
                              {0, 0.9, 0, false, false, false, inverse_scale, clean},
                              {0, 0.9, 0, false, false, false, inverse_scale, overflow}};
  for (const SgdVariation& v : sgd)
    for (bool tensor_lr : {false, true}) {
      Arg buffers = v.momentum != 0 ? pair(x()) : no_tensors;
      Arg lr = tensor_lr ? Arg(lr_tensor) : Arg(0.01);
      cases.push_back({tensor_lr ? "aten::_fused_sgd.tensor_lr" : "aten::_fused_sgd",
                       {pair(x()), pair(x()), buffers, v.weight_decay, v.momentum, lr, v.dampening, v.nesterov, v.maximize,
                        v.is_first_step, v.grad_scale, v.found_inf},
                       options});
    }
  struct AdagradVariation {
    double step, lr_decay, weight_decay;
    bool maximize;
    Arg grad_scale, found_inf;
  };
  const AdagradVariation adagrad[] = {{1, 0, 0, false, none, none},
                                      {3, 0.5, 0.1, true, none, none},
                                      {100, 0.01, 0.1, false, inverse_scale, clean},
                                      {3, 0.5, 0.1, false, inverse_scale, overflow}};
  for (const AdagradVariation& v : adagrad)
    for (bool tensor_lr : {false, true}) {
      Arg lr = tensor_lr ? Arg(lr_tensor) : Arg(0.01);
      cases.push_back({tensor_lr ? "aten::_fused_adagrad.tensor_lr" : "aten::_fused_adagrad",
                       {pair(x()), pair(x()), pair(x().positive()), at_step(v.step), lr, v.lr_decay, v.weight_decay, 1e-10,
                        v.maximize, v.grad_scale, v.found_inf},
                       options});
    }
  return cases;
}
const bool optimizers = add_cases(optimizer_cases());

Arg float_of(double value) {
  return given([value](at::ScalarType) { return at::full({}, value, at::kFloat); });
}
Arg steps_of(int64_t value) {
  return given([value](at::ScalarType) { return at::full({}, value, at::kInt); });
}
const bool loss_scales = add_cases({
    {"aten::_amp_foreach_non_finite_check_and_unscale", {tensors({x(3, 4), y(5)}), float_of(0), float_of(0.25)}, {.dtypes = kFloats}},
    {"aten::_amp_foreach_non_finite_check_and_unscale", {tensors({x(3, 4), y(5)}), float_of(1), float_of(0.25)}, {.dtypes = kFloats}},
    {"aten::_amp_foreach_non_finite_check_and_unscale",
     {tensors({x(3, 4), y(50).special(), x(0)}), float_of(0), float_of(0.3)},
     {.dtypes = kFloats}},
    {"aten::_amp_update_scale", {float_of(1024), steps_of(0), float_of(0), 2.0, 0.5, 2}, {.dtypes = kFloat}},
    {"aten::_amp_update_scale", {float_of(1024), steps_of(1), float_of(0), 2.1, 0.5, 2}, {.dtypes = kFloat}},
    {"aten::_amp_update_scale", {float_of(1024), steps_of(1), float_of(1), 2.0, 0.3, 2}, {.dtypes = kFloat}},
    {"aten::_amp_update_scale", {float_of(3e38), steps_of(1), float_of(0), 2.0, 0.5, 2}, {.dtypes = kFloat}},
});

}  // namespace

}  // namespace flambeau::op_test
