// What a collective is: its kind, who takes part, how many bytes.
#include "compiled/collectives.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "compiled/fields.h"

namespace flambeau::compiled {
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

// "1,2" and "0:3" are both lists: of single numbers and of ranges, the last one included. Empty where it is none, or one that
// is long or has numbers that no pod reaches.
std::vector<int64_t> numbers_of(std::string_view list) {
  constexpr int64_t kMost = 1 << 20;
  std::vector<int64_t> numbers;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(part.size() + 1, list.size()));
    const char* const end = part.data() + part.size();
    int64_t first = 0;
    auto [at, error] = std::from_chars(part.data(), end, first);
    int64_t last = first;
    if (error == std::errc() && at < end && *at == ':') {
      const auto second = std::from_chars(at + 1, end, last);
      at = second.ptr;
      error = second.ec;
    }
    if (error != std::errc() || at != end || first < 0 || last < first || last > kMost) return {};
    for (int64_t n = first; n <= last; ++n) numbers.push_back(n);
    if (std::ssize(numbers) > kMost) return {};
  }
  return numbers;
}

// Of "{1,2}x{0:3}": devices in the same place of their slices are a group. Nothing where it says something else.
ReplicaGroups groups_between_slices(std::string_view target) {
  const size_t middle = target.find("}x{");
  if (middle == std::string_view::npos || !target.starts_with('{') || !target.ends_with('}')) return {};
  const std::vector<int64_t> slices = numbers_of(target.substr(1, middle - 1));
  const std::vector<int64_t> places = numbers_of(target.substr(middle + 3, target.size() - middle - 4));
  ReplicaGroups groups{.count = static_cast<int64_t>(places.size()), .size = static_cast<int64_t>(slices.size()), .dims = {}, .order = {}, .ids = {}};
  if (groups.count == 0 || groups.size == 0 || places.size() * slices.size() > (1 << 20)) return {};
  for (const int64_t place : places)
    for (const int64_t slice : slices) groups.ids.push_back((slice - 1) * groups.count + place);
  return groups;
}

// "ALL_REDUCE" is an all-reduce.
std::string kind_of_transfer(std::string_view name) {
  if (name == "ONE_TO_ONE") return "collective-permute";
  std::string kind(name);
  for (char& c : kind) c = c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return kind;
}

}  // namespace

std::string_view collective_kind(std::string_view opcode) { return opcode.ends_with("-done") ? std::string_view() : collective_of(opcode); }

std::string_view collective_of(std::string_view opcode) {
  for (const std::string_view part : {"-start", "-done"})
    if (opcode.ends_with(part)) opcode.remove_suffix(part.size());
  for (const std::string_view kind : {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
                                      "collective-permute", "collective-broadcast"}) {
    if (opcode == kind) return kind;
  }
  return {};
}

bool begins_and_goes_on(const Computation& computation, const Instruction& i) {
  const int index = index_in(computation, i);
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
    c.operand_bytes = checked_sum(c.operand_bytes, shape.bytes());
    if (c.type.empty() && !shape.is_tuple()) c.type = shape.type;
  }
  if (!i.source_target_pairs.empty()) c.group_size = longest_ring(i.source_target_pairs);
  if (c.group_size == 0) c.group_size = device_count;
  c.result_bytes = c.operand_bytes;
  if (kind == "all-gather") c.result_bytes = checked_product(c.operand_bytes, std::max<int64_t>(c.group_size, 1));
  if (kind == "reduce-scatter") c.result_bytes = c.operand_bytes / std::max<int64_t>(c.group_size, 1);
  return c;
}

int receiver_of(const Computation& computation, const Instruction& send) {
  const auto found = std::ranges::find_if(computation.instructions, [&](const Instruction& i) {
    return i.opcode == "recv" && !i.transfer.kind.empty() && i.transfer.rendezvous == send.transfer.rendezvous;
  });
  return found == computation.instructions.end() ? -1 : static_cast<int>(found - computation.instructions.begin());
}

Collective transfer_at(const Scope& scope, const Instruction& send, int64_t device_count) {
  Collective c{.kind = kind_of_transfer(send.transfer.kind),
               .type = {},
               .channel = send.channel,
               .groups = groups_between_slices(send.transfer.target),
               .source_target_pairs = {},
               .between_slices = true,
               .name = send.name,
               .op_name = {}};
  c.group_size = c.groups.size > 0 ? c.groups.size : device_count;
  if (!send.operands.empty()) {
    const Shape& shape = scope.at(send.operands[0]).shape;
    c.operand_bytes = c.result_bytes = shape.bytes();
    c.type = shape.type;
  }
  const int receiver = receiver_of(scope.computation, send);
  if (receiver < 0) return c;
  const Shape& received = scope.at(receiver).shape;
  c.result_bytes = received.is_tuple() && !received.parts.empty() ? received.parts[0].bytes() : received.bytes();
  return c;
}

}  // namespace flambeau::compiled
