// traffic: bytes of HBM that an instruction reads and writes.
//
// A fusion reads what it uses of its operands: all, or the slices that it takes. It writes its results, but of an update in
// place only the update, and nothing where it passes an operand on.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compiled/kernel_cost.h"
#include "compiled/scope.h"

namespace flambeau::compiled {
namespace {

constexpr int kDeepest = 200;

bool takes_part_of(std::string_view opcode) { return is_one_of(opcode, {"slice", "dynamic-slice", "gather"}); }
bool updates_in_place(std::string_view opcode) { return is_one_of(opcode, {"dynamic-update-slice", "scatter"}); }
bool renames(std::string_view opcode) { return is_one_of(opcode, {"bitcast", "get-tuple-element", "tuple"}); }

// What has its first operand's elements in an order of theirs, whether or not something is between them.
bool keeps_places(std::string_view opcode) { return is_one_of(opcode, {"copy", "convert", "pad"}); }

bool moves_nothing(const Instruction& i) {
  // The ends of asynchronous operations count at their starts, a loop's iterations where they run.
  if (i.opcode.ends_with("-done") || i.opcode.ends_with("-update") || renames(i.opcode)) return true;
  // A transfer between slices counts as what is sent.
  if (is_one_of(i.opcode, {"recv", "parameter", "constant", "after-all", "partition-id", "replica-id", "optimization-barrier",
                           "add-dependency", "while", "conditional", "call"}))
    return true;
  return i.opcode == "custom-call" &&
         is_one_of(i.custom_call_target, {"AllocateBuffer", "ConcatBitcast", "AsyncCollectiveDone", "Sharding"});
}

// Of an update or scatter: its new elements.
double update_bytes(const Scope& scope, const Instruction& i) {
  const size_t which = i.opcode == "scatter" ? 2 : 1;
  return i.operands.size() > which ? static_cast<double>(scope.at(i.operands[which]).shape.laid_out_bytes()) : 0;
}

const Instruction* parameter_of(const Computation& computation, size_t number) {
  for (const Instruction& i : computation.instructions) {
    if (i.opcode == "parameter" && i.parameter_number == static_cast<int64_t>(number)) return &i;
  }
  return nullptr;
}

class Fusion {
 public:
  Fusion(const Module& module, const Scope& scope) : module_(module), scope_(scope) {}

  // Bytes that the computation reads of what instruction `value` stands for, `whole` at most.
  double read_of(int value, double whole, int depth = 0) const {
    if (depth > kDeepest) raise<InvalidArgument>("[compiled.traffic] expected fusions at most {} deep", kDeepest);
    double total = 0;
    const auto& instructions = scope_.computation.instructions;
    for (size_t user = static_cast<size_t>(value) + 1; user < instructions.size() && total < whole; ++user) {
      const auto& operands = instructions[user].operands;
      for (size_t place = 0; place < operands.size(); ++place) {
        if (operands[place] == value) total += read_by(static_cast<int>(user), place, whole, depth);
      }
    }
    return std::min(total, whole);
  }

  // Bytes that are written for the result `value`, `whole` in all. `updated`: of what an update in place writes into.
  double written_of(int value, double whole, int depth = 0, bool updated = false) const {
    const Instruction& i = scope_.at(value);
    if (depth > kDeepest || i.operands.empty()) return i.opcode == "parameter" ? 0 : whole;
    if (i.opcode == "bitcast" || (updated && i.opcode == "copy")) return written_of(i.operands[0], whole, depth + 1, updated);
    if (continues_collective(i) || i.custom_call_target == "AsyncCollectiveDone") return 0;
    if (updates_in_place(i.opcode)) {
      const double base = written_of(i.operands[0], whole, depth + 1, /*updated=*/true);  // 0 for memory that was there before
      return std::min(whole, base + update_bytes(scope_, i));
    }
    if (i.opcode == "fusion" && i.called.size() == 1 && !i.shape.is_tuple()) {
      const Scope inner{callee(module_, i), &scope_, &i};
      return Fusion(module_, inner).written_of(inner.computation.root, whole, depth + 1, updated);
    }
    return whole;
  }

 private:
  double read_by(int user, size_t place, double whole, int depth) const {
    const Instruction& i = scope_.at(user);
    if (renames(i.opcode)) return i.opcode == "bitcast" ? read_of(user, whole, depth + 1) : 0;
    if (takes_part_of(i.opcode)) return place == 0 ? static_cast<double>(i.shape.laid_out_bytes()) : whole;
    if (updates_in_place(i.opcode) && place == 0) return i.opcode == "scatter" ? update_bytes(scope_, i) : 0;
    if (continues_collective(i) || is_one_of(i.custom_call_target, {"AsyncCollectiveStart", "AsyncCollectiveDone"})) return 0;
    if (place == 0 && keeps_places(i.opcode)) return read_through(user, whole, depth);
    if (i.opcode == "fusion" && i.called.size() == 1) return read_by_fusion(user, place, whole, depth);
    return whole;
  }

  // Of an operation's operand that it hands on element by element: the part that others take of the result. None of them
  // makes memory within a fusion.
  double read_through(int user, double whole, int depth) const {
    if (is_result(user)) return whole;
    const auto all = static_cast<double>(scope_.at(user).shape.laid_out_bytes());
    return all > 0 ? whole * read_of(user, all, depth + 1) / all : 0;
  }

  double read_by_fusion(int user, size_t place, double whole, int depth) const {
    const Instruction& i = scope_.at(user);
    const Scope inner{callee(module_, i), &scope_, &i};
    const Instruction* parameter = parameter_of(inner.computation, place);
    if (parameter == nullptr) return 0;
    const Fusion fusion(module_, inner);
    const int value = index_in(inner.computation, *parameter);
    const Handed handed = fusion.hands_back(value);
    if (handed == Handed::No) return fusion.read_of(value, whole, depth + 1);
    return handed == Handed::Renamed ? read_of(user, whole, depth + 1) : read_through(user, whole, depth);
  }

  // Whether the computation's result is `value`, and nothing else is made of that.
  enum class Handed { No, Renamed, Copied };
  Handed hands_back(int value) const {
    Handed handed = Handed::Renamed;
    for (int at = scope_.computation.root; at != value; at = scope_.at(at).operands[0]) {
      const Instruction& i = scope_.at(at);
      if (i.operands.empty() || !(i.opcode == "bitcast" || keeps_places(i.opcode))) return Handed::No;
      if (i.opcode != "bitcast") handed = Handed::Copied;
    }
    return handed;
  }

  // Whether it leaves the computation as it is.
  bool is_result(int value) const {
    const auto is_it = [&](int at) {
      while (at != value && scope_.at(at).opcode == "bitcast" && !scope_.at(at).operands.empty()) at = scope_.at(at).operands[0];
      return at == value;
    };
    const Instruction& root = scope_.computation.root_instruction();
    return is_it(scope_.computation.root) || (root.opcode == "tuple" && std::any_of(root.operands.begin(), root.operands.end(), is_it));
  }

  const Module& module_;
  const Scope& scope_;
};

// The part of an instruction's shape that is its result: an asynchronous one's also names operands and what is under way.
std::vector<const Shape*> results_of(const Instruction& i) {
  const auto& parts = i.shape.parts;
  const bool starts = i.opcode.ends_with("-start") || i.custom_call_target == "AsyncCollectiveStart";
  if (i.opcode == "copy-start" && !parts.empty()) return {&parts[0]};
  if (starts && i.opcode != "all-reduce-start" && parts.size() >= 2) return {&parts[1]};
  if (parts.empty()) return {&i.shape};
  std::vector<const Shape*> results;
  for (const Shape& part : parts) results.push_back(&part);
  return results;
}

double hbm(const Shape& shape) { return static_cast<double>(shape.hbm_bytes()); }

Traffic fusion_traffic(const Module& module, const Scope& outer, const Instruction& call) {
  const Scope scope{callee(module, call), &outer, &call};
  const Fusion fusion(module, scope);
  Traffic traffic;
  for (size_t number = 0; number < call.operands.size(); ++number) {
    const double whole = hbm(outer.at(call.operands[number]).shape);
    const Instruction* parameter = whole > 0 ? parameter_of(scope.computation, number) : nullptr;
    if (parameter != nullptr) traffic.read += fusion.read_of(index_in(scope.computation, *parameter), whole);
  }
  const Instruction& root = scope.computation.root_instruction();
  if (root.custom_call_target == "AsyncCollectiveStart" && call.shape.parts.size() >= 2) {
    traffic.written = hbm(call.shape.parts[1]);
    return traffic;
  }
  const auto results = results_of(call);
  const bool tuple = root.opcode == "tuple" && root.operands.size() == results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    const double whole = hbm(*results[i]);
    if (tuple) traffic.written += fusion.written_of(root.operands[i], whole);
    else traffic.written += results.size() == 1 ? fusion.written_of(scope.computation.root, whole) : whole;
  }
  return traffic;
}

// What a kernel says that it moves beyond reading each operand and writing each result once.
double read_again(const Scope& scope, const Instruction& kernel) {
  double once = 0;
  for (const Shape* result : results_of(kernel)) once += static_cast<double>(result->bytes());
  for (const int operand : kernel.operands) once += static_cast<double>(scope.at(operand).shape.bytes());
  return std::max(0.0, kernel_cost(kernel.backend_config).bytes - once);
}

}  // namespace

bool awaits_operands(const Instruction& i) { return i.opcode == "async-start" && i.operands.empty() && i.called.size() == 1; }

bool brings_operands(const Scope& scope, const Instruction& i) {
  return i.opcode == "async-update" && i.operands.size() > 1 && awaits_operands(scope.at(i.operands[0]));
}

bool continues_collective(const Instruction& i) {
  if (collective_kind(i.opcode).empty()) return false;
  constexpr std::string_view kConfig = "\"async_collective_fusion_config\":{", kFirst = "\"flag_start\":\"-1\"";
  const size_t at = i.backend_config.find(kConfig);
  if (at == std::string::npos) return false;
  const size_t end = i.backend_config.find('}', at);
  return std::string_view(i.backend_config).substr(at, end - at).find(kFirst) == std::string_view::npos;
}

Traffic traffic(const Module& module, const Scope& scope, const Instruction& i) {
  if (brings_operands(scope, i)) {
    Traffic traffic;
    for (size_t place = 1; place < i.operands.size(); ++place) traffic.read += hbm(scope.at(i.operands[place]).shape);
    if (i.shape.parts.size() >= 2) traffic.written = hbm(i.shape.parts[1]);  // {operands, results, state}
    return traffic;
  }
  if (moves_nothing(i)) return {};
  if ((i.opcode == "fusion" || i.opcode == "async-start") && i.called.size() == 1) return fusion_traffic(module, scope, i);
  Traffic traffic;
  for (const Shape* result : results_of(i)) traffic.written += hbm(*result);
  if (updates_in_place(i.opcode)) {
    const double update = traffic.written > 0 ? std::min(update_bytes(scope, i), traffic.written) : 0;
    // A scatter adds to what is there.
    traffic = {.read = i.opcode == "scatter" ? update : 0, .written = update};
  }
  for (size_t place = 0; place < i.operands.size(); ++place) {
    const double whole = hbm(scope.at(i.operands[place]).shape);
    if (place == 0 && updates_in_place(i.opcode)) continue;
    if (place == 0 && takes_part_of(i.opcode)) traffic.read += std::min(whole, static_cast<double>(i.shape.laid_out_bytes()));
    else traffic.read += whole;
  }
  if (i.opcode == "custom-call") traffic.read += read_again(scope, i);
  return traffic;
}

}  // namespace flambeau::compiled
