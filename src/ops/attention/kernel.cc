// Causal attention by kernels: custom calls that texts describe (ops/kernel_call.h; kernels/flash_attention.cc gives them). Takes and gives
// what attention in blocks does (blocks.cc), its twin.
#include "ops/kernel_call.h"
#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

NamedValues inputs_of(Value query, Value key, Value value, const std::optional<Value>& documents) {
  NamedValues inputs{{"query", query}, {"key", key}, {"value", value}};
  if (documents) inputs["documents"] = *documents;
  return inputs;
}

// The kernels of the gradients go with the call for the sake of its own gradient.
std::array<Value, 2> flash_attention(Builder& b, Value query, Value key, Value value, std::optional<Value> documents,
                                     const std::string& forward, const std::string&, const std::string&) {
  auto results = call_kernel(b, forward, inputs_of(query, key, value, documents));
  const hlo::Type rows{DType::F32, {query.dim(0), query.dim(1), query.dim(2)}};
  const auto lse = results.find("logsumexp");
  // A matrix unit's lanes are all written; one is read.
  if (lse != results.end() && lse->second.type().elements() > rows.elements()) {
    const Value one = b.slice_dim(lse->second, lse->second.rank() - 1, 0, 1);
    if (one.type().elements() == rows.elements()) lse->second = b.reshape(one, rows.dims);
  }
  return {kernel_result(b, results, "output", query.type()), kernel_result(b, results, "logsumexp", rows)};
}

std::array<Value, 3> flash_attention_backward(Builder& b, Value gradient, Value query, Value key, Value value,
                                              std::optional<Value> documents, Value output, Value logsumexp,
                                              const std::string& dq, const std::string& dkv) {
  NamedValues inputs = inputs_of(query, key, value, documents);
  inputs["gradient"] = gradient;
  inputs["output"] = output;
  inputs["logsumexp"] = logsumexp;
  inputs["delta"] = sum(b, b.multiply(convert(b, gradient, DType::F32), convert(b, output, DType::F32)), {3});
  const NamedValues of_queries = call_kernel(b, dq, inputs), of_keys = call_kernel(b, dkv, inputs);
  return {kernel_result(b, of_queries, "dq", query.type()), kernel_result(b, of_keys, "dk", key.type()),
          kernel_result(b, of_keys, "dv", value.type())};
}

constexpr Row kRows[] = {
    own_row("flambeau::flash_attention", lower<&flash_attention>(),
            "(Tensor query, Tensor key, Tensor value, Tensor? documents, str forward, str dq, str dkv) -> (Tensor output, Tensor logsumexp)"),
    own_row("flambeau::flash_attention_backward", lower<&flash_attention_backward>(),
            "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? documents, Tensor output, Tensor logsumexp, str dq, str dkv) -> "
            "(Tensor, Tensor, Tensor)"),
};

}  // namespace

std::span<const Row> kernel_attention_rows() { return kRows; }

}  // namespace flambeau::ops
