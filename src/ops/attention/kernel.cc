#include "ops/flash_attention.h"

#include <map>

#include <nlohmann/json.hpp>

#include "ops/pointwise.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using nlohmann::json;

// What an operand's text may ask for; nothing near it is ever needed.
constexpr int64_t kMostElements = int64_t{1} << 40;

[[noreturn]] void refuse(std::string_view why) {
  raise<InvalidArgument>("[flash_attention] expected the description of a kernel, got {}; remove it from the cache", why);
}

hlo::Type type_of(const json& text) {
  const std::string name = text.at("type").get<std::string>();
  hlo::Type type{DType::F32, text.at("shape").get<Dims>()};
  int64_t elements = 1;
  for (int64_t d : type.dims)
    if (d < 1 || __builtin_mul_overflow(elements, d, &elements) || elements > kMostElements) refuse("sizes that cannot be");
  for (const DType t : {DType::S8, DType::S16, DType::S32, DType::BF16, DType::F16, DType::F32}) {
    if (hlo_name(t) != name) continue;
    type.dtype = t;
    return type;
  }
  refuse("an element type that is not known");
}

// Integers; 0, 1, 2, ... where they are not written out.
Value constant(Builder& b, const json& text, DType dtype) {
  const hlo::Type type = type_of({{"type", hlo_name(dtype)}, {"shape", text.at("shape")}});
  if (!text.contains("values")) return b.iota(type, 0);
  const auto values = text.at("values").get<std::vector<int64_t>>();
  if (!is_integer(dtype) || std::ssize(values) != type.elements()) refuse("a constant of another size or type");
  const size_t width = static_cast<size_t>(byte_size(dtype));
  const int64_t limit = int64_t{1} << (8 * width - 1);
  std::string bytes;  // little-endian, as every host is that has a plugin
  for (const int64_t v : values) {
    if (v < -limit || v >= limit) refuse("a constant beyond its type");
    bytes.append(reinterpret_cast<const char*>(&v), width);
  }
  return b.literal(type, bytes.data());
}

// [1, ...] as [...]: kernels of one row have no dimension for it.
Value without_rows(Builder& b, Value x) {
  const Dims& dims = x.type().dims;
  return b.reshape(x, {dims.begin() + 1, dims.end()});
}

using Named = std::map<std::string, Value, std::less<>>;

Value operand(Builder& b, const json& text, const Named& inputs) {
  const hlo::Type type = type_of(text);
  Value source;
  if (text.contains("constant")) {
    source = constant(b, text.at("constant"), type.dtype);
  } else {
    const auto found = inputs.find(text.at("input").get<std::string>());
    if (found == inputs.end()) refuse("an operand that this pass does not have");
    source = found->second;
  }
  if (source.dtype() != type.dtype) refuse(fmt::format("an operand {} for {}", type.to_string(), source.type().to_string()));
  const auto dims = text.at("dims").get<Dims>();
  if (std::ssize(dims) == source.rank() - 1 && source.dim(0) == 1) source = without_rows(b, source);
  return source.type() == type ? source : b.broadcast_in_dim(source, type.dims, dims);
}

// The results that have names.
Named call(Builder& b, const std::string& kernel, const Named& inputs) try {
  const json text = json::parse(kernel);
  std::vector<Value> operands;
  for (const json& o : text.at("operands")) operands.push_back(operand(b, o, inputs));
  Builder::CustomCall call{.target = text.at("target").get<std::string>(), .opaque = text.at("config").get<std::string>(),
                           .opaque_version = 1};
  if (call.target != "tpu_custom_call" || call.opaque.empty()) refuse("a call of something else than a TPU kernel");
  for (const json& r : text.at("results")) call.results.push_back(type_of(r));
  const std::vector<Value> results = b.custom_call(operands, call);
  Named named;
  for (size_t i = 0; i < results.size(); ++i)
    if (const json& r = text.at("results")[i]; r.contains("name")) named[r.at("name").get<std::string>()] = results[i];
  return named;
} catch (const json::exception& e) {
  refuse(fmt::format("a text that is none ({})", e.what()));
}

Value result(Builder& b, const Named& results, std::string_view name, const hlo::Type& type) {
  const auto found = results.find(name);
  if (found != results.end() && type.dims.front() == 1 && found->second.rank() == type.rank() - 1) {
    Dims dims = found->second.type().dims;
    dims.insert(dims.begin(), 1);
    const Value row = b.reshape(found->second, dims);
    if (row.type() == type) return row;
  }
  if (found == results.end() || found->second.type() != type) refuse(fmt::format("no result {} of type {}", name, type.to_string()));
  return found->second;
}

Named inputs_of(Value query, Value key, Value value, const std::optional<Value>& documents) {
  Named inputs{{"query", query}, {"key", key}, {"value", value}};
  if (documents) inputs["documents"] = *documents;
  return inputs;
}

std::array<Value, 2> flash_attention(Builder& b, Value query, Value key, Value value, std::optional<Value> documents,
                                     const std::string& kernel) {
  auto results = call(b, kernel, inputs_of(query, key, value, documents));
  const hlo::Type rows{DType::F32, {query.dim(0), query.dim(1), query.dim(2)}};
  const auto lse = results.find("logsumexp");
  // A matrix unit's lanes are all written; one is read.
  if (lse != results.end() && lse->second.type().elements() > rows.elements()) {
    const Value one = b.slice_dim(lse->second, lse->second.rank() - 1, 0, 1);
    if (one.type().elements() == rows.elements()) lse->second = b.reshape(one, rows.dims);
  }
  return {result(b, results, "output", query.type()), result(b, results, "logsumexp", rows)};
}

std::array<Value, 3> flash_attention_backward(Builder& b, Value gradient, Value query, Value key, Value value,
                                              std::optional<Value> documents, Value output, Value logsumexp,
                                              const std::string& dq_kernel, const std::string& dkv_kernel) {
  Named inputs = inputs_of(query, key, value, documents);
  inputs["gradient"] = gradient;
  inputs["output"] = output;
  inputs["logsumexp"] = logsumexp;
  inputs["delta"] = sum(b, b.multiply(convert(b, gradient, DType::F32), convert(b, output, DType::F32)), {3});
  const auto dq = call(b, dq_kernel, inputs), dkv = call(b, dkv_kernel, inputs);
  return {result(b, dq, "dq", query.type()), result(b, dkv, "dk", key.type()), result(b, dkv, "dv", value.type())};
}

}  // namespace

const Row kFlashAttention = row("flambeau::flash_attention", lower<&flash_attention>());
const Row kFlashAttentionBackward = row("flambeau::flash_attention_backward", lower<&flash_attention_backward>());

}  // namespace flambeau::ops
