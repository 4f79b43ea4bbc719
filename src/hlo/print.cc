#include "hlo/print.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "hlo/elements.h"
#include "hlo/sharding.h"

namespace flambeau::hlo {
namespace {

// ---- attributes
// -------------------------------------------------------------------------------------------------------------

// Decimal where it reads back exactly, the bit pattern for infinities and NaNs.
std::string float_text(DType dtype, const char* bytes) {
  const double value = decode_float(dtype, bytes);
  if (!std::isfinite(value)) return fmt::format("0x{:0{}X}", decode_bits(dtype, bytes), 2 * byte_size(dtype));
  std::string text = fmt::format("{}", value);  // the shortest that gives this double
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string element_text(DType dtype, const char* bytes) {
  if (dtype == DType::Pred) return *bytes ? "true" : "false";
  if (dtype == DType::U64) return std::to_string(decode_bits(dtype, bytes));
  if (is_integer(dtype)) return std::to_string(decode_integer(dtype, bytes));
  if (is_float(dtype)) return float_text(dtype, bytes);
  const DType part = dtype == DType::C64 ? DType::F32 : DType::F64;
  return fmt::format("({}, {})", float_text(part, bytes), float_text(part, bytes + byte_size(part)));
}

void append_nested(std::string& out, const Literal& literal, size_t dim, const char*& next) {
  if (dim == literal.type.dims.size()) {
    out += element_text(literal.type.dtype, next);
    next += byte_size(literal.type.dtype);
    return;
  }
  out += '[';
  for (int64_t i = 0; i < literal.type.dims[dim]; ++i) {
    if (i) out += ", ";
    append_nested(out, literal, dim + 1, next);
  }
  out += ']';
}

std::string hex_text(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out = "\"0x";
  out.reserve(2 * bytes.size() + 4);
  for (unsigned char c : bytes) {
    out += kDigits[c >> 4];
    out += kDigits[c & 15];
  }
  return out + '"';
}

constexpr int64_t kMostListed = 16;  // elements; longer constants are printed as bytes

struct AttributeText {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return fmt::format("{} : i64", v); }
  std::string operator()(double v) const { return float_text(DType::F64, reinterpret_cast<const char*>(&v)) + " : f64"; }
  std::string operator()(const std::string& v) const { return quoted(v); }
  std::string operator()(DType v) const { return std::string(hlo_name(v)); }
  std::string operator()(const Dims& v) const {
    return fmt::format("array<i64{}{}>", v.empty() ? "" : ": ", fmt::join(v, ", "));
  }
  std::string operator()(const std::vector<bool>& v) const {
    std::string out = v.empty() ? "array<i1" : "array<i1: ";
    for (size_t i = 0; i < v.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", static_cast<bool>(v[i]));
    return out + '>';
  }
  std::string operator()(const RawAttribute& v) const { return v.text; }
  std::string operator()(const Literal& v) const { return literal_text(v) + " : " + v.type.to_string(); }
  std::string operator()(const Sharding& v) const { return "#sdy.sharding" + v.to_string(); }
  std::string operator()(const std::vector<Sharding>& v) const {
    std::string out = "#sdy.sharding_per_value<[";
    for (size_t i = 0; i < v.size(); ++i) out += (i ? ", " : "") + v[i].to_string();
    return out + "]>";
  }
  std::string operator()(const std::vector<std::string>& v) const {  // names of mesh axes
    std::string out = "#sdy<manual_axes{";
    for (size_t i = 0; i < v.size(); ++i) out += (i ? ", " : "") + quoted(v[i]);
    return out + "}>";
  }
};

// Attributes named group.field are the fields of one structured attribute.
std::string_view structure_of(std::string_view group) {
  if (group == "dot_dimension_numbers") return "#stablehlo.dot";
  if (group == "scatter_dimension_numbers") return "#stablehlo.scatter";
  FLAMBEAU_CHECK(group == "dimension_numbers", "every group of attributes is known to the printer");
  return "#stablehlo.gather";
}

std::string field_text(const AttributeValue& value) {
  if (auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  return fmt::format("[{}]", fmt::join(std::get<Dims>(value), ", "));
}

void append_attributes(std::string& out, std::span<const Attribute> attributes) {
  std::string_view open_group;
  for (size_t i = 0; i < attributes.size(); ++i) {
    const auto& [name, value] = attributes[i];
    const size_t dot = name.find('.');
    const std::string_view group = dot == std::string_view::npos ? "" : name.substr(0, dot);
    if (group != open_group && !open_group.empty()) out += '>';
    if (i) out += ", ";
    if (group.empty()) {
      fmt::format_to(std::back_inserter(out), "{} = {}", name, attribute_text(value));
    } else {
      if (group != open_group) fmt::format_to(std::back_inserter(out), "{} = {}<", group, structure_of(group));
      fmt::format_to(std::back_inserter(out), "{} = {}", name.substr(dot + 1), field_text(value));
    }
    open_group = group;
  }
  if (!open_group.empty()) out += '>';
}

// ---- what a signature may say
// -------------------------------------------------------------------------------------------------

void check_sharding(const Graph& graph, std::string_view what, size_t i, const Signature& signature, const Type& type) {
  if (!signature.sharding) return;
  if (std::string fault = sharding_fault(*signature.sharding, graph.mesh(), type.rank()); !fault.empty())
    raise<InvalidArgument>("[sharding of {} {}] {}", what, i, fault);
}

void check_signatures(const Graph& graph) {
  std::unordered_set<int64_t> taken;
  for (size_t i = 0; i < graph.parameters().size(); ++i) {
    const Signature& signature = graph.parameter_signature(i);
    const Type& type = graph.parameters()[i].type();
    check_sharding(graph, "parameter", i, signature, type);
    if (!signature.aliasing_output) continue;
    const int64_t output = *signature.aliasing_output;
    if (output < 0 || output >= static_cast<int64_t>(graph.results().size()))
      raise<InvalidArgument>("[aliasing_output of parameter {}] expected an output in [0, {}), got {}", i,
                             graph.results().size(), output);
    if (graph.results()[static_cast<size_t>(output)].type() != type)
      raise<InvalidArgument>("[aliasing_output of parameter {}] expected an output of type {}, got {}", i, type.to_string(),
                             graph.results()[static_cast<size_t>(output)].type().to_string());
    if (!taken.insert(output).second)
      raise<InvalidArgument>(
          "[aliasing_output of parameter {}] expected each output to take over one buffer, got output {} again", i, output);
  }
  for (size_t i = 0; i < graph.results().size(); ++i)
    check_sharding(graph, "result", i, graph.result_signature(i), graph.results()[i].type());
}

// ---- the program
// ----------------------------------------------------------------------------------------------------------------

class Printer {
 public:
  Printer(const Graph& graph, const PrintOptions& options) : graph_(graph), options_(options), names_(graph.value_count()) {}

  std::string run() {
    check_signatures(graph_);
    out_ = fmt::format("module @{} {{\n", symbol(options_.module_name));
    if (graph_.mesh()) print_mesh(*graph_.mesh());
    print_head();
    for (const auto& node : graph_.body().nodes) print_node(*node, 2);
    print_return("func.return", graph_.results(), 2);
    return std::move(out_) + "  }\n}\n";
  }

 private:
  static constexpr uint32_t kUnnamed = UINT32_MAX;
  struct Name {
    uint32_t number = kUnnamed;
    uint32_t result = kUnnamed;  // among several of one operation
    bool argument = false;       // of the program
  };

  static std::string symbol(std::string_view name) {
    auto plain = [](char c) { return c == '_' || c == '.' || c == '$' || std::isalnum(static_cast<unsigned char>(c)); };
    const bool bare =
        !name.empty() && std::all_of(name.begin(), name.end(), plain) && !std::isdigit(static_cast<unsigned char>(name[0]));
    return bare ? std::string(name) : quoted(name);
  }

  void print_mesh(const Mesh& mesh) {
    out_ += "  sdy.mesh @mesh = <[";
    for (size_t i = 0; i < mesh.axes.size(); ++i)
      append("{}{}={}", i ? ", " : "", quoted(mesh.axes[i].name), mesh.axes[i].size);
    out_ += "]>\n";
  }

  void print_head() {
    out_ += "  func.func public @main(";
    for (size_t i = 0; i < graph_.parameters().size(); ++i) {
      const Value v = graph_.parameters()[i];
      names_[v.id()] = {static_cast<uint32_t>(i), kUnnamed, true};
      append("{}%arg{}: ", i ? ", " : "", i);
      print_type(v.type());
      print_signature(graph_.parameter_signature(i));
    }
    out_ += ") -> (";
    for (size_t i = 0; i < graph_.results().size(); ++i) {
      if (i) out_ += ", ";
      print_type(graph_.results()[i].type());
      print_signature(graph_.result_signature(i));
    }
    out_ += ") {\n";
  }

  void print_signature(const Signature& signature) {
    std::vector<std::string> parts;
    if (signature.sharding)
      parts.push_back("sdy.sharding = #sdy.sharding" + in_mesh_order(*signature.sharding, *graph_.mesh()).to_string());
    if (signature.aliasing_output) parts.push_back(fmt::format("tf.aliasing_output = {} : i32", *signature.aliasing_output));
    if (signature.donor && !signature.aliasing_output) parts.push_back("jax.buffer_donor = true");
    if (!parts.empty()) append(" {{{}}}", fmt::join(parts, ", "));
  }

  void print_node(const Node& node, size_t depth) {
    indent(depth);
    if (!node.results.empty()) {
      const bool several = node.results.size() > 1;
      for (size_t i = 0; i < node.results.size(); ++i)
        names_[node.results[i].id()] = {next_, several ? static_cast<uint32_t>(i) : kUnnamed, false};
      append("%{}", next_++);
      if (several) append(":{}", node.results.size());
      out_ += " = ";
    }
    append("\"{}\"", op_name(node.op));
    print_uses(node.operands);
    std::span<const Attribute> properties = node.attributes;
    const bool has_frontend = !properties.empty() && properties.back().name == kFrontendAttributes;
    if (has_frontend) properties = properties.first(properties.size() - 1);
    if (!properties.empty()) {
      out_ += " <{";
      append_attributes(out_, properties);
      out_ += "}>";
    }
    if (!node.regions.empty()) {
      out_ += " (";
      for (size_t i = 0; i < node.regions.size(); ++i) {
        if (i) out_ += ", ";
        print_region(*node.regions[i], node.op == Op::ManualComputation ? "sdy.return" : op_name(Op::Return), depth);
      }
      out_ += ')';
    }
    if (has_frontend) append(" {{mhlo.frontend_attributes = {}}}", attribute_text(node.attributes.back().value));
    out_ += " : ";
    print_types(node.operands);
    out_ += " -> ";
    if (node.results.size() == 1)
      print_type(node.results[0].type());
    else
      print_types(node.results);
    if (options_.sites && !node.site.empty()) append(" loc({})", quoted(node.site));
    out_ += '\n';
  }

  void print_region(const Block& block, std::string_view terminator, size_t depth) {
    out_ += "{\n";
    if (!block.parameters.empty()) {
      indent(depth);
      out_ += "^bb0(";
      for (size_t i = 0; i < block.parameters.size(); ++i) {
        names_[block.parameters[i].id()].number = next_;
        append("{}%{}: ", i ? ", " : "", next_++);
        print_type(block.parameters[i].type());
      }
      out_ += "):\n";
    }
    for (const auto& node : block.nodes) print_node(*node, depth + 1);
    print_return(terminator, block.results, depth + 1);
    indent(depth);
    out_ += '}';
  }

  void print_return(std::string_view name, const std::vector<Value>& results, size_t depth) {
    indent(depth);
    append("\"{}\"", name);
    print_uses(results);
    out_ += " : ";
    print_types(results);
    out_ += " -> ()\n";
  }

  void print_uses(const std::vector<Value>& values) {
    out_ += '(';
    for (size_t i = 0; i < values.size(); ++i) {
      const Name& name = names_[values[i].id()];
      FLAMBEAU_CHECK(name.number != kUnnamed, "a value is defined before its use");
      append("{}%{}{}", i ? ", " : "", name.argument ? "arg" : "", name.number);
      if (name.result != kUnnamed) append("#{}", name.result);
    }
    out_ += ')';
  }

  void print_types(const std::vector<Value>& values) {
    out_ += '(';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i) out_ += ", ";
      print_type(values[i].type());
    }
    out_ += ')';
  }

  void print_type(const Type& type) {
    out_ += "tensor<";
    for (int64_t d : type.dims) append("{}x", d);
    out_ += hlo_name(type.dtype);
    out_ += '>';
  }

  void indent(size_t depth) { out_.append(2 * depth, ' '); }

  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  const Graph& graph_;
  const PrintOptions& options_;
  std::vector<Name> names_;  // by value
  uint32_t next_ = 0;
  std::string out_;
};

}  // namespace

std::string literal_text(const Literal& literal) {
  const int64_t count = literal.type.elements();
  const char* next = literal.bytes.data();
  if (count == 0) return "dense<>";
  if (static_cast<int64_t>(literal.bytes.size()) == byte_size(literal.type.dtype))
    return fmt::format("dense<{}>", element_text(literal.type.dtype, next));
  // MLIR packs the bits of i1 in its byte form, in ways that changed over time: always a list.
  if (count > kMostListed && literal.type.dtype != DType::Pred) return fmt::format("dense<{}>", hex_text(literal.bytes));
  std::string out = "dense<";
  append_nested(out, literal, 0, next);
  return out + '>';
}

std::string attribute_text(const AttributeValue& value) { return std::visit(AttributeText{}, value); }

std::string dictionary_text(std::span<const Attribute> attributes) {
  std::string out = "{";
  append_attributes(out, attributes);
  return out + '}';
}

std::string print(const Graph& graph, const PrintOptions& options) { return Printer(graph, options).run(); }

}  // namespace flambeau::hlo
