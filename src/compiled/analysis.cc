#include "compiled/analysis.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "compiled/collectives.h"
#include "compiled/scope.h"

namespace flambeau::compiled {
namespace {

constexpr int kDeepest = 200;
constexpr int64_t kMostVisits = 5'000'000;

std::string op_name_of(const Scope& scope, const Instruction& i) {
  if (!i.op_name.empty()) return i.op_name;
  for (const Scope* s = &scope; s->call != nullptr && s->call->opcode != "while"; s = s->caller) {
    if (!s->call->op_name.empty()) return s->call->op_name;
  }
  return {};
}

// Whether a fusion holds what stands in `scope`.
bool is_fused(const Scope& scope) {
  for (const Scope* s = &scope; s->call != nullptr && s->call->opcode != "while"; s = s->caller) {
    if (s->call->opcode == "fusion") return true;
  }
  return false;
}

bool is_same(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.type == b.type && a.operand_bytes == b.operand_bytes && a.group_size == b.group_size;
}

// The indices of a computation's instructions as they run; operands before users where no whole schedule says more.
std::vector<int> order_of(const Computation& computation) {
  if (computation.schedule.size() == computation.instructions.size()) return computation.schedule;
  std::vector<int> order(computation.instructions.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  return order;
}

// Runs through a module in the order of its schedules.
class Walker {
 public:
  Walker(const Module& module, int64_t device_count) : module_(module), device_count_(device_count) {}

  Analysis run() {
    const Scope entry{module_.entry_computation()};
    read_signature(entry.computation);
    run_sequence(entry, -1, 0);
    return std::move(analysis_);
  }

 private:
  using Started = std::map<int, std::vector<size_t>>;  // an instruction that starts collectives: which

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

  void count_visit(int depth) {
    if (depth > kDeepest) raise<InvalidArgument>("[compiled.analyze] expected calls at most {} deep", kDeepest);
    if (++visits_ > kMostVisits)
      raise<InvalidArgument>("[compiled.analyze] expected at most {} visits of instructions", kMostVisits);
  }

  // The entry, a loop's body or condition, what a call or a branch runs.
  void run_sequence(const Scope& scope, int loop, int depth) {
    Started started;
    for (const int index : order_of(scope.computation)) {
      const Instruction& i = scope.at(index);
      count_visit(depth);
      if (i.opcode == "while" && i.called.size() == 2) {
        analysis_.loops.push_back({.name = i.name, .op_name = i.op_name, .parent = loop, .trips = trip_count(module_, scope, i),
                                   .computation = static_cast<size_t>(&scope.computation - module_.computations.data()),
                                   .instruction = static_cast<size_t>(index)});
        const int inner = static_cast<int>(analysis_.loops.size()) - 1;
        run_sequence({callee(module_, i, 0), &scope, &i}, inner, depth + 1);
        run_sequence({callee(module_, i, 1), &scope, &i}, inner, depth + 1);
      } else if (i.opcode == "call" || i.opcode == "conditional") {
        for (size_t which = 0; which < i.called.size(); ++which)
          run_sequence({callee(module_, i, which), &scope, &i}, loop, depth + 1);
      } else if (i.opcode == "send-done") {
        // Sent is not received yet.
      } else if (i.opcode.ends_with("-done")) {
        end_collectives(scope, i, started);
      } else {
        run_operation(scope, index, loop, depth, started);
      }
    }
  }

  void run_operation(const Scope& scope, int index, int loop, int depth, Started& started) {
    const Instruction& i = scope.at(index);
    if (awaits_operands(i)) return;
    const bool brings = brings_operands(scope, i);
    Operation operation{.name = i.name, .opcode = i.opcode, .op_name = i.op_name, .loop = loop};
    std::vector<size_t> begun;
    look_into(scope, brings ? scope.at(i.operands[0]) : i, loop, depth, operation, begun);
    const Traffic bytes = traffic(module_, scope, i);
    operation.bytes_read = bytes.read;
    operation.bytes_written = bytes.written;
    if (begun.empty() && operation.flops == 0 && bytes.read + bytes.written == 0) return;
    analysis_.operations.push_back(std::move(operation));
    if (i.opcode == "send") started.emplace(receiver_of(scope.computation, i), std::move(begun));
    else if (i.opcode.ends_with("-start") || brings) started.emplace(index, std::move(begun));
  }

  // What an instruction, or the fusion that it is, multiplies and sends.
  void look_into(const Scope& scope, const Instruction& i, int loop, int depth, Operation& operation,
                 std::vector<size_t>& begun) {
    const bool is_transfer = i.opcode == "send" && !i.transfer.kind.empty();
    if (is_transfer || !collective_kind(i.opcode).empty()) take_collective(scope, i, loop, begun);
    if (const double flops = contraction_flops(scope, i); flops > 0) {
      analysis_.contractions.push_back({i.name, op_name_of(scope, i), flops, loop});
      operation.flops += flops;
    }
    if (!runs_callees(i.opcode)) return;
    for (size_t which = 0; which < i.called.size(); ++which) {
      const Scope inner{callee(module_, i, which), &scope, &i};
      for (const Instruction& part : inner.computation.instructions) {
        count_visit(depth + 1);
        look_into(inner, part, loop, depth + 1, operation, begun);
      }
    }
  }

  // A collective that begins with the operation to come, or a further piece of one that began before.
  void take_collective(const Scope& scope, const Instruction& i, int loop, std::vector<size_t>& begun) {
    const size_t here = analysis_.operations.size();
    Collective c = i.opcode == "send" ? transfer_at(scope, i, device_count_) : collective_at(scope, i, device_count_);
    if (const auto known = piece_of(scope, c, loop)) {
      end_at(*known, here);
      return;
    }
    if (i.channel != 0) seen_.insert_or_assign({i.channel, loop}, analysis_.collectives.size());
    if (begins_and_goes_on(scope.computation, i)) going_on_.insert(analysis_.collectives.size());
    c.loop = loop;
    c.op_name = op_name_of(scope, i);
    c.operation = c.begin = c.end = here;
    begun.push_back(analysis_.collectives.size());
    analysis_.collectives.push_back(std::move(c));
  }

  // The collective that `c`, in `loop`, is a part of: one that began there, or around the loop and goes on. Only fusions hold
  // pieces, and a channel alone does not tell whose: who writes collectives by hand may give all of them the same one.
  std::optional<size_t> piece_of(const Scope& scope, const Collective& c, int loop) const {
    if (c.channel == 0 || !is_fused(scope)) return std::nullopt;
    for (int around = loop;; around = analysis_.loops[static_cast<size_t>(around)].parent) {
      const auto found = seen_.find({c.channel, around});
      if (found != seen_.end() && (around == loop || going_on_.contains(found->second)) &&
          is_same(analysis_.collectives[found->second], c))
        return found->second;
      if (around < 0) return std::nullopt;
    }
  }

  // The collective has ended before the operation `position`; what lies after its own first operation is beside it.
  void end_at(size_t collective, size_t position) {
    Collective& c = analysis_.collectives[collective];
    if (c.begin == c.operation) ++c.begin;  // it has not been seen to be asynchronous
    c.end = std::max(c.begin, position);
  }

  void end_collectives(const Scope& scope, const Instruction& done, const Started& started) {
    const Instruction* i = &done;
    while (!i->operands.empty()) {
      const int operand = i->operands[0];
      if (const auto found = started.find(operand); found != started.end()) {
        for (const size_t collective : found->second) end_at(collective, analysis_.operations.size());
        return;
      }
      i = &scope.at(operand);
      if (!i->opcode.ends_with("-update")) return;
    }
  }

  const Module& module_;
  int64_t device_count_;
  int64_t visits_ = 0;
  std::map<std::pair<int64_t, int>, size_t> seen_;  // channel and loop: a collective
  std::set<size_t> going_on_;                       // collectives
  Analysis analysis_;
};

}  // namespace

bool runs_callees(std::string_view opcode) {
  return is_one_of(opcode, {"fusion", "call", "conditional", "async-start", "custom-call"});
}

std::string value_name(std::string_view instruction, const std::vector<int64_t>& element) {
  if (element.empty()) return std::string(instruction);
  return fmt::format("{}{{{}}}", instruction, fmt::join(element, ","));
}

std::vector<int> Analysis::nest(int loop) const {
  std::vector<int> nest;
  for (; loop >= 0; loop = loops[static_cast<size_t>(loop)].parent) nest.insert(nest.begin(), loop);
  return nest;
}

double Analysis::runs(int loop) const {
  double runs = 1;
  for (const int l : nest(loop)) runs *= loops[static_cast<size_t>(l)].iterations();
  return runs;
}

double Analysis::flops() const {
  double total = 0;
  for (const Contraction& c : contractions) total += c.flops * runs(c.loop);
  return total;
}

double Analysis::hbm_bytes() const {
  double total = 0;
  for (const Operation& o : operations) total += o.bytes() * runs(o.loop);
  return total;
}

bool Analysis::exact() const {
  return std::all_of(loops.begin(), loops.end(), [](const Loop& loop) { return loop.trips.has_value(); });
}

Analysis analyze(const Module& module, int64_t device_count) { return Walker(module, device_count).run(); }

}  // namespace flambeau::compiled
