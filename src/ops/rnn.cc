// One step of an LSTM or a GRU: what follows the two matrix products, fused. PyTorch unrolls sequences, layers and
// directions itself.
//
// Gates are [batch, 4 H] in the order input, forget, cell, output (LSTM) or [batch, 3 H] in the order reset, update, new
// (GRU). The workspace keeps what the backward pass needs: the activated gates of an LSTM; reset, update, new, hx and the
// hidden part of `new` of a GRU. float16 and bfloat16 compute in float32.
#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

Value wide(Builder& b, Value x) { return convert(b, x, compute_type(x.dtype())); }

// [batch, n H] as n parts of [batch, H].
std::vector<Value> parts(Builder& b, Value x, int64_t n) {
  int64_t size = x.dim(1) / n;
  std::vector<Value> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(b.slice_dim(x, 1, i * size, (i + 1) * size));
  return out;
}

Value joined(Builder& b, std::initializer_list<Value> xs, DType dtype) {
  std::vector<Value> narrow;
  for (Value x : xs) narrow.push_back(convert(b, x, dtype));
  return b.concatenate(narrow, 1);
}

void check_gates(std::string_view cell, Value input_gates, Value hidden_gates, Value state, int64_t n) {
  if (!is_float(input_gates.dtype())) refuse_dtype(cell, input_gates.dtype());
  if (input_gates.type() != hidden_gates.type() || input_gates.rank() != 2 ||
      state.dims() != Dims{input_gates.dim(0), input_gates.dim(1) / n} || input_gates.dim(1) % n != 0)
    raise<InvalidArgument>(
        "[{}] expected gates of one type and shape [batch, {} H] and a state of shape [batch, H], got {}, {} and {}", cell,
        n, input_gates.type().to_string(), hidden_gates.type().to_string(), state.type().to_string());
}

Value with_bias(Builder& b, Value gates, const std::optional<Value>& bias) {
  Value x = wide(b, gates);
  return bias ? b.add(x, along(b, wide(b, *bias), x.dims(), 1)) : x;
}

// f * (1 - f), the derivative of a sigmoid at its value.
Value sigmoid_slope(Builder& b, Value f) { return b.multiply(f, b.subtract(constant_like(b, f, 1), f)); }
Value tanh_slope(Builder& b, Value f) { return b.subtract(constant_like(b, f, 1), b.multiply(f, f)); }

// ---- LSTM ---------------------------------------------------------------------------------------------------------------

std::array<Value, 3> lstm_cell(Builder& b, Value input_gates, Value hidden_gates, Value cx, std::optional<Value> input_bias,
                               std::optional<Value> hidden_bias) {
  check_gates("_thnn_fused_lstm_cell", input_gates, hidden_gates, cx, 4);
  DType t = input_gates.dtype();
  auto gates = parts(b, b.add(with_bias(b, input_gates, input_bias), with_bias(b, hidden_gates, hidden_bias)), 4);
  Value in = b.logistic(gates[0]), forget = b.logistic(gates[1]), cell = b.tanh(gates[2]), out = b.logistic(gates[3]);
  Value cy = b.add(b.multiply(forget, wide(b, cx)), b.multiply(in, cell));
  return {convert(b, b.multiply(out, b.tanh(cy)), t), convert(b, cy, t), joined(b, {in, forget, cell, out}, t)};
}

std::array<Value, 3> lstm_cell_backward(Builder& b, std::optional<Value> grad_hy, std::optional<Value> grad_cy, Value cx,
                                        Value cy, Value workspace, bool has_bias) {
  if (!grad_hy && !grad_cy) return {};
  DType t = workspace.dtype();
  auto gates = parts(b, wide(b, workspace), 4);
  Value in = gates[0], forget = gates[1], cell = gates[2], out = gates[3], squashed = b.tanh(wide(b, cy));
  Value dout = zeros(b, in.dtype(), in.dims()), dc = grad_cy ? wide(b, *grad_cy) : dout;
  if (grad_hy) {
    Value dh = wide(b, *grad_hy);
    dout = b.multiply(dh, squashed);
    dc = b.add(dc, b.multiply(b.multiply(dh, out), tanh_slope(b, squashed)));
  }
  Value grad_gates = joined(b,
                            {b.multiply(b.multiply(dc, cell), sigmoid_slope(b, in)),
                             b.multiply(b.multiply(dc, wide(b, cx)), sigmoid_slope(b, forget)),
                             b.multiply(b.multiply(dc, in), tanh_slope(b, cell)), b.multiply(dout, sigmoid_slope(b, out))},
                            in.dtype());
  return {convert(b, grad_gates, t), convert(b, b.multiply(dc, forget), t),
          has_bias ? convert(b, sum(b, grad_gates, {0}), t) : Value()};
}

// ---- GRU ----------------------------------------------------------------------------------------------------------------

std::array<Value, 2> gru_cell(Builder& b, Value input_gates, Value hidden_gates, Value hx, std::optional<Value> input_bias,
                              std::optional<Value> hidden_bias) {
  check_gates("_thnn_fused_gru_cell", input_gates, hidden_gates, hx, 3);
  DType t = input_gates.dtype();
  auto input = parts(b, with_bias(b, input_gates, input_bias), 3),
       hidden = parts(b, with_bias(b, hidden_gates, hidden_bias), 3);
  Value reset = b.logistic(b.add(input[0], hidden[0])), update = b.logistic(b.add(input[1], hidden[1]));
  Value fresh = b.tanh(b.add(input[2], b.multiply(reset, hidden[2]))), old = wide(b, hx);
  Value hy = b.add(fresh, b.multiply(update, b.subtract(old, fresh)));
  return {convert(b, hy, t), joined(b, {reset, update, fresh, old, hidden[2]}, t)};
}

std::array<Value, 5> gru_cell_backward(Builder& b, Value grad_hy, Value workspace, bool has_bias) {
  DType t = workspace.dtype();
  auto kept = parts(b, wide(b, workspace), 5);
  Value reset = kept[0], update = kept[1], fresh = kept[2], old = kept[3], hidden = kept[4], dh = wide(b, grad_hy);
  Value dupdate = b.multiply(b.multiply(dh, b.subtract(old, fresh)), sigmoid_slope(b, update));
  Value dfresh = b.multiply(b.multiply(dh, b.subtract(constant_like(b, update, 1), update)), tanh_slope(b, fresh));
  Value dreset = b.multiply(b.multiply(dfresh, hidden), sigmoid_slope(b, reset));
  Value input = joined(b, {dreset, dupdate, dfresh}, dh.dtype()),
        other = joined(b, {dreset, dupdate, b.multiply(dfresh, reset)}, dh.dtype());
  std::array<Value, 5> out{convert(b, input, t), convert(b, other, t), convert(b, b.multiply(dh, update), t)};
  if (has_bias) out[3] = convert(b, sum(b, input, {0}), t), out[4] = convert(b, sum(b, other, {0}), t);
  return out;
}

constexpr Row kRows[] = {
    row("aten::_thnn_fused_lstm_cell", lower<&lstm_cell>()),
    row("aten::_thnn_fused_lstm_cell_backward_impl", lower<&lstm_cell_backward>()),
    row("aten::_thnn_fused_gru_cell", lower<&gru_cell>()),
    row("aten::_thnn_fused_gru_cell_backward", lower<&gru_cell_backward>()),
};

}  // namespace

std::span<const Row> rnn_rows() { return kRows; }

}  // namespace flambeau::ops
