// What a collective is: its kind, who takes part, how many bytes.
#include "hlo/compiled/collectives.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "hlo/compiled/fields.h"

namespace flambeau::hlo::compiled {
namespace {

// Whether XLA's name for "all-reduce of which each device keeps a slice" is on the fusion or call around `scope`.
bool in_all_reduce_scatter(const Scope& scope) {
  constexpr std::string_view kName = "all-reduce-scatter";
  for (const Scope* s = &scope; s != nullptr; s = s->caller) {
    if (std::string_view(s->computation.name).starts_with(kName)) return true;
    if (s->call == nullptr || s->call->opcode == "while") return false;
  }
  return false;
}

// The longest way around from device to device. Each device sends to one: no step is taken twice.
int64_t longest_ring(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  std::unordered_map<int64_t, int64_t> next(pairs.begin(), pairs.end());
  std::unordered_set<int64_t> receivers, seen;
  for (const auto& [source, target] : pairs) receivers.insert(target);
  int64_t longest = 0;
  auto walk = [&](int64_t device) {
    int64_t length = 0;
    for (auto at = next.find(device); seen.insert(device).second; device = at->second, at = next.find(device)) {
      ++length;
      if (at == next.end()) break;
    }
    longest = std::max(longest, length);
  };
  for (const auto& [source, target] : pairs) {  // open chains from their beginnings, then rings
    if (!receivers.contains(source)) walk(source);
  }
  for (const auto& [source, target] : pairs) {
    if (!seen.contains(source)) walk(source);
  }
  return longest;
}

}  // namespace

std::string_view collective_kind(std::string_view opcode) {
  constexpr std::string_view kStart = "-start";
  if (opcode.ends_with(kStart)) opcode.remove_suffix(kStart.size());
  for (const std::string_view kind : {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
                                      "collective-permute", "collective-broadcast"}) {
    if (opcode == kind) return kind;
  }
  return {};
}

bool begins_and_goes_on(const Computation& computation, const Instruction& i) {
  const auto index = static_cast<int>(&i - computation.instructions.data());
  return std::any_of(computation.instructions.begin(), computation.instructions.end(), [&](const Instruction& user) {
    return user.custom_call_target == "AsyncCollectiveStart" &&
           std::find(user.operands.begin(), user.operands.end(), index) != user.operands.end();
  });
}

Collective collective_at(const Scope& scope, const Instruction& i, int64_t device_count) {
  std::string_view kind = collective_kind(i.opcode);
  if (kind == "all-reduce" && in_all_reduce_scatter(scope)) kind = "reduce-scatter";
  Collective c{.kind = std::string(kind),
               .type = {},
               .group_size = i.groups.size,
               .channel = i.channel,
               .groups = i.groups,
               .source_target_pairs = i.source_target_pairs,
               .name = i.name,
               .op_name = {}};
  for (const int operand : i.operands) {
    const Shape& shape = scope.at(operand).shape;
    c.operand_bytes += shape.bytes();
    if (c.type.empty() && !shape.is_tuple()) c.type = shape.type;
  }
  if (!i.source_target_pairs.empty()) c.group_size = longest_ring(i.source_target_pairs);
  if (c.group_size == 0) c.group_size = device_count;
  c.result_bytes = c.operand_bytes;
  if (kind == "all-gather") c.result_bytes = checked_product(c.operand_bytes, std::max<int64_t>(c.group_size, 1));
  if (kind == "reduce-scatter") c.result_bytes = c.operand_bytes / std::max<int64_t>(c.group_size, 1);
  return c;
}

}  // namespace flambeau::hlo::compiled
