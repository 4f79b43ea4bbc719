#include "runtime/checkpoint_policy.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace flambeau::runtime {
namespace {

using Names = std::vector<std::string_view>;

constexpr std::string_view kAttention = "_scaled_dot_product_fused_attention_overrideable", kBlockAttention = "causal_attention",
                           kFlashAttention = "flash_attention";

// "mm" of "aten::mm.dtype"
std::string_view base_name(std::string_view row) {
  if (size_t colons = row.find("::"); colons != std::string_view::npos) row.remove_prefix(colons + 2);
  return row.substr(0, row.find('.'));
}

const std::map<std::string_view, Names>& groups() {
  static const std::map<std::string_view, Names> all = {
      {"mm", {"mm", "addmm", "dot_general"}},
      {"bmm", {"bmm", "baddbmm", "addbmm"}},
      {"matmul", {"mm", "addmm", "dot_general", "bmm", "baddbmm", "addbmm"}},
      {"attention", {kAttention, kBlockAttention, kFlashAttention}},
  };
  return all;
}

bool is_matmul(std::string_view name) {
  const Names& names = groups().at("matmul");
  return std::ranges::find(names, name) != names.end();
}

bool in_table(std::string_view name) {
  return std::ranges::any_of(ops::all_rows(), [&](const ops::Row& row) { return base_name(row.name) == name; });
}

double elements(const Dims& dims) {
  double product = 1;
  for (int64_t d : dims) product *= static_cast<double>(d);
  return product;
}

const Dims& sizes_of(const Call& call, size_t argument) { return std::get<ValueView>(call.arguments[argument]).view.sizes; }

// Of a loop or a manual computation.
const Trace* body_of(const Call& call) { return call.loop ? call.loop->body.get() : call.manual ? call.manual->body.get() : nullptr; }

double bytes_of(const ValueView& v) { return elements(v.view.sizes) * static_cast<double>(byte_size(v.dtype)); }

double bytes_moved(const Trace& trace, const Call& call) {
  double bytes = 0;
  for (const Recorded& argument : call.arguments) {
    if (auto* v = std::get_if<ValueView>(&argument)) bytes += bytes_of(*v);
    if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&argument))
      for (const auto& v : *list)
        if (v) bytes += bytes_of(*v);
  }
  for (const auto& output : call.outputs)
    if (output) bytes += static_cast<double>(trace.type(*output).bytes());
  return bytes;
}

double multiplications(const Trace& trace, const Call& call) {
  const std::string_view name = base_name(call.row->name);
  if (name == "dot_general") {
    double contracted = 1;
    const Dims& sizes = sizes_of(call, 0);
    for (int64_t d : std::get<Dims>(call.arguments[2])) contracted *= static_cast<double>(sizes.at(static_cast<size_t>(d < 0 ? d + std::ssize(sizes) : d)));
    return elements(trace.type(*call.outputs[0]).dims) * contracted;
  }
  if (is_matmul(name)) {
    const size_t left = name.starts_with("add") || name.starts_with("badd") ? 1 : 0;  // behind what is added
    const double batch = name == "addbmm" ? static_cast<double>(sizes_of(call, left)[0]) : 1;
    return batch * elements(trace.type(*call.outputs[0]).dims) * static_cast<double>(sizes_of(call, left).back());
  }
  if (name == kAttention) {
    const Dims &query = sizes_of(call, 0), &key = sizes_of(call, 1), &value = sizes_of(call, 2);
    return elements(query) / static_cast<double>(query.back()) * static_cast<double>(key[2] * (key[3] + value[3]));
  }
  if (name == kBlockAttention || name == kFlashAttention) {  // half of the square, in a product with the keys and one with the values
    const Dims& query = sizes_of(call, 0);
    return elements(query) * static_cast<double>(query[2]);
  }
  return 0;
}

}  // namespace

std::vector<std::string> parse_kept_ops(std::string_view text) {
  std::vector<std::string> ops;
  for (const std::string& part : flambeau::split(text, ',')) {
    std::string_view name = trimmed(part);
    if (name.starts_with("aten::")) name = base_name(name);
    if (!groups().contains(name) && !in_table(name))
      raise<InvalidArgument>("[activation_checkpoint.selective_ops] expected matmul, mm, bmm, attention, or an op by PyTorch's name such "
                             "as silu, got \"{}\"; write for example \"mm,attention\"", name);
    ops.emplace_back(name);
  }
  return ops;
}

bool is_of(const Call& call, const std::vector<std::string>& ops) {
  if (const Trace* body = body_of(call)) return std::ranges::any_of(body->calls(), [&](const Call& inner) { return is_of(inner, ops); });
  const std::string_view name = base_name(call.row->name);
  return std::ranges::any_of(ops, [&](const std::string& op) {
    const auto group = groups().find(op);
    return group == groups().end() ? name == op : std::ranges::find(group->second, name) != group->second.end();
  });
}

bool is_copy(const Call& call) {
  constexpr std::array<std::string_view, 7> kCopies = {"identity", "shard_hint", "_to_copy", "copy", "repeat", "full_like", "fill"};
  return call.row && std::ranges::find(kCopies, base_name(call.row->name)) != kCopies.end();
}

bool gathers_weight(const Call& call) { return call.row && call.row->name == "flambeau::gather_weight"; }

double cost_of(const Trace& trace, const Call& call) {
  // Accelerators compute 150 to 250 operations while they read a byte, but ops in a row are fused and share the reading.
  constexpr double kOperationsPerByte = 10;
  constexpr double kRandomOperationsPerByte = 20;  // Philox: about 80 integer operations a word
  if (const Trace* body = body_of(call)) {
    double once = 0;
    for (const Call& inner : body->calls()) once += cost_of(*body, inner);
    if (call.loop) return once * static_cast<double>(call.loop->trip_count);
    // The body of a manual computation is a device's part.
    if (call.outputs.empty() || body->type(call.manual->results[0]).elements() == 0) return once;
    return once * elements(trace.type(*call.outputs[0]).dims) / elements(body->type(call.manual->results[0]).dims);
  }
  if (is_copy(call)) return 0;
  const double per_byte = kOperationsPerByte + (call.row->random ? kRandomOperationsPerByte : 0);
  return 2 * multiplications(trace, call) + bytes_moved(trace, call) * per_byte;
}

}  // namespace flambeau::runtime
