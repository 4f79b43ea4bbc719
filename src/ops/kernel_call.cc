#include "ops/kernel_call.h"

#include <nlohmann/json.hpp>

#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using nlohmann::json;

// What an operand's text may ask for; nothing near it is ever needed.
constexpr int64_t kMostElements = int64_t{1} << 40;

[[noreturn]] void refuse(std::string_view why) {
  raise<InvalidArgument>("[kernel] expected the description of a call, got {}; remove it from the cache", why);
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

Value operand(Builder& b, const json& text, const NamedValues& inputs) {
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

hlo::Attribute attribute(const std::string& name, const json& value) {
  if (value.is_boolean()) return {name, value.get<bool>()};
  if (value.is_number_integer()) return {name, value.get<int64_t>()};
  if (value.is_number_float()) return {name, value.get<double>()};
  if (value.is_string()) return {name, value.get<std::string>()};
  refuse(fmt::format("an attribute {} that is no truth value, number or text", name));
}

// What is called, without results.
Builder::CustomCall called(const json& text) {
  constexpr std::string_view kMosaic = "tpu_custom_call", kOwn = "flambeau.";
  Builder::CustomCall call{.target = text.at("target").get<std::string>()};
  if (call.target == kMosaic) {
    call.opaque = text.at("config").get<std::string>();
    call.opaque_version = 1;
    if (call.opaque.empty()) refuse("a kernel without a configuration");
  } else if (call.target.starts_with(kOwn)) {
    for (const auto& [name, value] : text.at("attributes").items()) call.attributes.push_back(attribute(name, value));
  } else {
    refuse("a call of something else than a kernel");
  }
  return call;
}

}  // namespace

NamedValues call_kernel(Builder& b, const std::string& kernel, const NamedValues& inputs) try {
  const json text = json::parse(kernel);
  std::vector<Value> operands;
  for (const json& o : text.at("operands")) operands.push_back(operand(b, o, inputs));
  Builder::CustomCall call = called(text);
  for (const json& r : text.at("results")) call.results.push_back(type_of(r));
  const std::vector<Value> results = b.custom_call(operands, call);
  NamedValues named;
  for (size_t i = 0; i < results.size(); ++i)
    if (const json& r = text.at("results")[i]; r.contains("name")) named[r.at("name").get<std::string>()] = results[i];
  return named;
} catch (const json::exception& e) {
  refuse(fmt::format("a text that is none ({})", e.what()));
}

Value kernel_result(Builder& b, const NamedValues& results, std::string_view name, const hlo::Type& type) {
  const auto found = results.find(name);
  if (found != results.end() && !type.dims.empty() && type.dims.front() == 1 && found->second.rank() == type.rank() - 1) {
    Dims dims = found->second.type().dims;
    dims.insert(dims.begin(), 1);
    const Value row = b.reshape(found->second, dims);
    if (row.type() == type) return row;
  }
  if (found == results.end() || found->second.type() != type) refuse(fmt::format("no result {} of type {}", name, type.to_string()));
  return found->second;
}

std::span<const Row> kernel_rows() { return kernel_attention_rows(); }

}  // namespace flambeau::ops
