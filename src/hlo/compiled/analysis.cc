#include "hlo/compiled/analysis.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "hlo/compiled/fields.h"
#include "hlo/compiled/scope.h"

namespace flambeau::hlo::compiled {
namespace {

constexpr int kDeepest = 200;
constexpr int64_t kMostVisits = 5'000'000;

// The kind of a collective's opcode; empty for what is none, and for the later pieces of an asynchronous one.
std::string_view collective_kind(std::string_view opcode) {
  constexpr std::string_view kStart = "-start";
  if (opcode.ends_with(kStart)) opcode.remove_suffix(kStart.size());
  for (const std::string_view kind : {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
                                      "collective-permute", "collective-broadcast"}) {
    if (opcode == kind) return kind;
  }
  return {};
}

// What runs the computations that it calls; others (reduce, sort, ...) apply theirs to single elements.
bool runs_callees(std::string_view opcode) {
  for (const std::string_view runs : {"fusion", "call", "conditional", "async-start", "custom-call"}) {
    if (opcode == runs) return true;
  }
  return false;
}

// Whether XLA's name for "all-reduce of which each device keeps a slice" is on the fusion or call around `scope`.
bool in_all_reduce_scatter(const Scope& scope) {
  constexpr std::string_view kName = "all-reduce-scatter";
  for (const Scope* s = &scope; s != nullptr; s = s->caller) {
    if (std::string_view(s->computation.name).starts_with(kName)) return true;
    if (s->call == nullptr || s->call->opcode == "while") return false;
  }
  return false;
}

// Whether TPU's compiler begins `i` here and lets it go on within what runs next, which may be a loop: the fusions there, and the one
// that waits for its end, hold the same instruction again.
bool begins_and_goes_on(const Computation& computation, const Instruction& i) {
  const auto index = static_cast<int>(&i - computation.instructions.data());
  return std::any_of(computation.instructions.begin(), computation.instructions.end(), [&](const Instruction& user) {
    return user.custom_call_target == "AsyncCollectiveStart" && std::count(user.operands.begin(), user.operands.end(), index) > 0;
  });
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

std::string op_name_of(const Scope& scope, const Instruction& i) {
  if (!i.op_name.empty()) return i.op_name;
  for (const Scope* s = &scope; s->call != nullptr && s->call->opcode != "while"; s = s->caller) {
    if (!s->call->op_name.empty()) return s->call->op_name;
  }
  return {};
}

class Walker {
 public:
  Walker(const Module& module, int64_t device_count) : module_(module), device_count_(device_count) {}

  Analysis run() {
    const Scope entry{module_.entry_computation()};
    read_signature(entry.computation);
    walk(entry, -1, 0);
    return std::move(analysis_);
  }

 private:
  void read_signature(const Computation& entry) {
    std::vector<const Instruction*> parameters;
    for (const Instruction& i : entry.instructions) {
      if (i.opcode == "parameter") parameters.push_back(&i);
    }
    std::sort(parameters.begin(), parameters.end(),
              [](const Instruction* a, const Instruction* b) { return a->parameter_number < b->parameter_number; });
    const auto& aliased = module_.aliased_parameters;
    for (const Instruction* p : parameters) {
      const bool is_aliased = std::find(aliased.begin(), aliased.end(), p->parameter_number) != aliased.end();
      analysis_.parameters.push_back({p->name, p->op_name, p->shape, is_aliased});
    }
    analysis_.result = entry.root_instruction().shape;
  }

  void walk(const Scope& scope, int loop, int depth) {
    if (depth > kDeepest) raise<InvalidArgument>("[hlo.analyze] expected calls at most {} deep", kDeepest);
    for (const Instruction& i : scope.computation.instructions) {
      if (++visits_ > kMostVisits)
        raise<InvalidArgument>("[hlo.analyze] expected at most {} visits of instructions", kMostVisits);
      if (const auto kind = collective_kind(i.opcode); !kind.empty()) add_collective(scope, i, kind, loop);
      if (const double flops = contraction_flops(scope, i); flops > 0)
        analysis_.contractions.push_back({i.name, op_name_of(scope, i), flops, loop});
      if (i.opcode == "while" && i.called.size() == 2) {
        analysis_.loops.push_back({i.name, i.op_name, loop, trip_count(module_, scope, i)});
        const int inner = static_cast<int>(analysis_.loops.size()) - 1;
        walk({callee(module_, i, 0), &scope, &i}, inner, depth + 1);
        walk({callee(module_, i, 1), &scope, &i}, inner, depth + 1);
      } else if (runs_callees(i.opcode)) {
        for (size_t which = 0; which < i.called.size(); ++which)
          walk({callee(module_, i, which), &scope, &i}, loop, depth + 1);
      }
    }
  }

  void add_collective(const Scope& scope, const Instruction& i, std::string_view kind, int loop) {
    if (i.channel != 0) {
      if (goes_on(i.channel, loop) || !seen_.emplace(i.channel, loop).second) return;
      if (begins_and_goes_on(scope.computation, i)) begun_.emplace(i.channel, loop);
    }
    if (kind == "all-reduce" && in_all_reduce_scatter(scope)) kind = "reduce-scatter";
    Collective c{.kind = std::string(kind),
                 .type = {},
                 .group_size = i.groups.size,
                 .channel = i.channel,
                 .loop = loop,
                 .name = i.name,
                 .op_name = op_name_of(scope, i)};
    for (const int operand : i.operands) {
      const Shape& shape = scope.at(operand).shape;
      c.operand_bytes += shape.bytes();
      if (c.type.empty() && !shape.is_tuple()) c.type = shape.type;
    }
    if (!i.source_target_pairs.empty()) c.group_size = longest_ring(i.source_target_pairs);
    if (c.group_size == 0) c.group_size = device_count_;
    c.result_bytes = c.operand_bytes;
    if (kind == "all-gather") c.result_bytes = checked_product(c.operand_bytes, std::max<int64_t>(c.group_size, 1));
    if (kind == "reduce-scatter") c.result_bytes = c.operand_bytes / std::max<int64_t>(c.group_size, 1);
    analysis_.collectives.push_back(std::move(c));
  }

  // Whether an instruction of this channel in `loop` is part of a collective that began there or around it.
  bool goes_on(int64_t channel, int loop) const {
    const auto [first, last] = begun_.equal_range(channel);
    const std::vector<int> around = analysis_.nest(loop);
    return std::any_of(first, last, [&](const auto& begun) {
      return begun.second == -1 || std::find(around.begin(), around.end(), begun.second) != around.end();
    });
  }

  const Module& module_;
  int64_t device_count_;
  int64_t visits_ = 0;
  std::set<std::pair<int64_t, int>> seen_;  // channel, loop
  std::multimap<int64_t, int> begun_;        // the same, of those that go on after their first instruction
  Analysis analysis_;
};

}  // namespace

std::vector<int> Analysis::nest(int loop) const {
  std::vector<int> nest;
  for (; loop >= 0; loop = loops[static_cast<size_t>(loop)].parent) nest.insert(nest.begin(), loop);
  return nest;
}

double Analysis::runs(int loop) const {
  double runs = 1;
  for (const int around : nest(loop)) runs *= static_cast<double>(loops[static_cast<size_t>(around)].trips.value_or(1));
  return runs;
}

double Analysis::flops() const {
  double total = 0;
  for (const Contraction& c : contractions) total += c.flops * runs(c.loop);
  return total;
}

bool Analysis::exact() const {
  return std::all_of(loops.begin(), loops.end(), [](const Loop& loop) { return loop.trips.has_value(); });
}

Analysis analyze(const Module& module, int64_t device_count) { return Walker(module, device_count).run(); }

}  // namespace flambeau::hlo::compiled
