// Cases of the fused steps of LSTM and GRU. The CPU has none: the references are their definitions, and what autograd makes
// of them.
#include <torch/csrc/autograd/autograd.h>

#include "op_case.h"

namespace flambeau::op_test {

namespace {

at::ScalarType wide_type(at::ScalarType t) { return t == at::kDouble ? t : at::kFloat; }

// A tensor argument in the type of computation, a leaf for autograd; undefined where there is none.
at::Tensor leaf(const c10::IValue& v) {
  if (!v.isTensor() || !v.toTensor().defined()) return {};
  return v.toTensor().to(wide_type(v.toTensor().scalar_type())).detach().requires_grad_();
}
at::Tensor sum_of(const at::Tensor& gates, const at::Tensor& bias) { return bias.defined() ? gates + bias : gates; }

struct Step {
  std::vector<at::Tensor> inputs;  // both gates, the state, both biases
  at::Tensor hy, cy, workspace;

  std::vector<at::Tensor> gradients(const at::Tensor& dh, const at::Tensor& dc) const {
    std::vector<at::Tensor> outputs, grads, wanted;
    if (dh.defined()) outputs.push_back(hy), grads.push_back(dh);
    if (dc.defined()) outputs.push_back(cy), grads.push_back(dc);
    for (const at::Tensor& t : inputs)
      if (t.defined()) wanted.push_back(t);
    return torch::autograd::grad(outputs, wanted, grads);
  }
};

Step lstm(std::vector<at::Tensor> in) {
  auto gates = (sum_of(in[0], in[3]) + sum_of(in[1], in[4])).chunk(4, 1);
  at::Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  at::Tensor cy = f * in[2] + i * g;
  return {in, o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

Step gru(std::vector<at::Tensor> in) {
  auto x = sum_of(in[0], in[3]).chunk(3, 1), h = sum_of(in[1], in[4]).chunk(3, 1);
  at::Tensor r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid(), n = (x[2] + r * h[2]).tanh();
  return {in, n + z * (in[2] - n), {}, at::cat({r, z, n, in[2], h[2]}, 1)};
}

std::vector<at::Tensor> rounded(std::vector<at::Tensor> tensors, const c10::IValue& like) {
  for (at::Tensor& t : tensors)
    if (t.defined()) t = t.detach().to(like.toTensor().scalar_type());
  return tensors;
}

template <auto step>
Step step_of(const std::vector<c10::IValue>& a) {
  return step({leaf(a[0]), leaf(a[1]), leaf(a[2]), leaf(a[3]), leaf(a[4])});
}

// Gates of 2 x `count` hidden units, drawn anew for the backward cases, which get what a forward pass has saved.
Shape gates(int64_t count) { return {3, 4 * count}; }
at::Tensor drawn(Shape dims, double phase, at::ScalarType t) {
  return at::arange(c10::multiply_integers(dims), at::kDouble)
      .add(1)
      .mul(1.7)
      .add(phase)
      .sin()
      .mul(2)
      .reshape(dims)
      .to(t)
      .to(wide_type(t));
}
std::vector<at::Tensor> scene(int64_t count, at::ScalarType t) {
  return {drawn(gates(count), 0, t).requires_grad_(),
          drawn(gates(count), 1, t).requires_grad_(),
          drawn(gates(1), 2, t).requires_grad_(),
          {},
          {}};
}
template <auto step, int64_t count>
TensorSpec saved(at::Tensor Step::* what) {
  return given([what](at::ScalarType t) { return (step(scene(count, t)).*what).detach().to(t); });
}

// The workspace is our own: of a half type it is rounded, as its reader expects.
const Options kCells = {.dtypes = kFloats,
                        .tolerances = {{at::kHalf, 2e-3, 2e-3, "gates are rounded before the gradient reads them"},
                                       {at::kBFloat16, 1.6e-2, 2e-2, "as float16"}}};
Options with_reference(std::function<std::vector<at::Tensor>(const std::vector<c10::IValue>&)> reference) {
  Options options = kCells;
  options.reference = [reference](const std::vector<c10::IValue>& a) {
    at::AutoGradMode enabled(true);
    return reference(a);
  };
  return options;
}

std::vector<at::Tensor> lstm_gradients(const std::vector<c10::IValue>& a) {
  at::ScalarType t = a[4].toTensor().scalar_type();
  auto grads = lstm(scene(4, t))
                   .gradients(a[0].isTensor() ? leaf(a[0]).detach() : at::Tensor(),
                              a[1].isTensor() ? leaf(a[1]).detach() : at::Tensor());
  return rounded({grads[0], grads[2], a[5].toBool() ? grads[0].sum({0}) : at::Tensor()}, a[4]);
}
std::vector<at::Tensor> gru_gradients(const std::vector<c10::IValue>& a) {
  auto grads = gru(scene(3, a[1].toTensor().scalar_type())).gradients(leaf(a[0]).detach(), {});
  bool bias = a[2].toBool();
  return rounded(
      {grads[0], grads[1], grads[2], bias ? grads[0].sum({0}) : at::Tensor(), bias ? grads[1].sum({0}) : at::Tensor()},
      a[1]);
}

std::vector<OpCase> cell_cases() {
  std::vector<OpCase> cases;
  Options lstm_forward = with_reference([](auto& a) {
    Step s = step_of<&lstm>(a);
    return rounded({s.hy, s.cy, s.workspace}, a[0]);
  });
  Options gru_forward = with_reference([](auto& a) {
    Step s = step_of<&gru>(a);
    return rounded({s.hy, s.workspace}, a[0]);
  });
  cases.push_back({"aten::_thnn_fused_lstm_cell", {x(3, 16), y(3, 16), z(3, 4), x(16), y(16)}, lstm_forward});
  cases.push_back({"aten::_thnn_fused_lstm_cell", {x(3, 16), y(3, 16), z(3, 4), none, none}, lstm_forward});
  cases.push_back({"aten::_thnn_fused_gru_cell", {x(3, 12), y(3, 12), z(3, 4), x(12), y(12)}, gru_forward});
  cases.push_back({"aten::_thnn_fused_gru_cell", {x(3, 12), y(3, 12), z(3, 4), none, none}, gru_forward});
  auto cx = given([](at::ScalarType t) { return scene(4, t)[2].detach().to(t); });
  for (bool bias : {true, false}) {
    for (auto [dh, dc] : {std::pair<Arg, Arg>{x(3, 4), y(3, 4)}, {x(3, 4), none}, {none, y(3, 4)}})
      cases.push_back({"aten::_thnn_fused_lstm_cell_backward_impl",
                       {dh, dc, cx, saved<&lstm, 4>(&Step::cy), saved<&lstm, 4>(&Step::workspace), bias},
                       with_reference(lstm_gradients)});
    cases.push_back({"aten::_thnn_fused_gru_cell_backward",
                     {x(3, 4), saved<&gru, 3>(&Step::workspace), bias},
                     with_reference(gru_gradients)});
  }
  return cases;
}
const bool cells = add_cases(cell_cases());

}  // namespace

}  // namespace flambeau::op_test
