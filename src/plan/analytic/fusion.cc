#include "plan/analytic/fusion.h"

#include <algorithm>
#include <unordered_set>

namespace flambeau::plan {

using hlo::Block;
using hlo::Node;
using hlo::Op;
using hlo::Value;

namespace {

constexpr double kSmall = double(64 << 10);  // bytes: below, a value's memory and traffic do not count

bool is_alias(Op op) {
  return op == Op::Reshape || op == Op::Transpose || op == Op::BitcastConvert || op == Op::ShardingConstraint ||
         op == Op::OptimizationBarrier || op == Op::DynamicUpdateSlice;
}
bool is_kernel(Op op) {
  return op == Op::DotGeneral || op == Op::Convolution || op == Op::Reduce || op == Op::ReduceWindow || op == Op::Gather ||
         op == Op::Scatter || op == Op::Sort || op == Op::CustomCall || op == Op::AllReduce || op == Op::AllGather || op == Op::ReduceScatter ||
         op == Op::AllToAll || op == Op::CollectivePermute || op == Op::Cholesky || op == Op::TriangularSolve || op == Op::Fft ||
         op == Op::SelectAndScatter;
}
bool is_region(Op op) {
  return op == Op::While || op == Op::If || op == Op::Case || op == Op::ManualComputation;
}
bool is_movement(Op op) {
  return op == Op::Convert || op == Op::BroadcastInDim || op == Op::Slice || op == Op::DynamicSlice || op == Op::Pad ||
         op == Op::Concatenate || op == Op::Reverse || is_alias(op);
}
// Operations whose operands have to lie in memory as they are: most kernels, and a stack of values (each one row of the
// result).
bool reads_memory(const Node& node) {
  if (node.op != Op::Concatenate) return is_kernel(node.op) && node.op != Op::Reduce && node.op != Op::DotGeneral;
  return node.operands[0].dim(std::get<int64_t>(*node.find("dimension"))) == 1;
}

}  // namespace

Fusion::Fusion(const hlo::Graph& graph, const Layouts& layouts)
    : graph_(graph), layouts_(layouts), forms_(graph.value_count(), Form::Buffer), users_(graph.value_count()),
      wanted_whole_(graph.value_count()) {
  visit(graph.body(), nullptr);
  for (const Value v : graph.results()) need(v);
  decide(graph.body());
}

void Fusion::visit(const Block& block, const Node* loop) {
  for (const Value v : block.parameters)
    if (layouts_.local_bytes(v) < kSmall) forms_[v.id()] = Form::Nothing;
  for (const auto& node : block.nodes) {
    shares_.emplace(node.get(), share_of(layouts_, *node));
    if (is_region(node->op)) {
      for (const auto& region : node->regions) {
        visit(*region, node->op == Op::While ? node.get() : loop);
        for (const Value v : region->results) need(v);
      }
      for (const Value v : node->operands) need(v);
    }
    classify(*node);
    find_hoisted(*node, loop);
    std::vector<Value> seen;
    for (const Value operand : node->operands) {
      if (std::ranges::find(seen, operand) != seen.end()) continue;
      const bool renames = std::ranges::any_of(node->results, [&](Value v) { return form(v) == Form::Alias && original_of(v) == operand; });
      seen.push_back(operand);
      if (!renames) ++users_[storage(operand).id()];
      if (reads_memory(*node) || (node->op == Op::ShardingConstraint && !share(*node).transfers.empty())) need(operand);
    }
  }
}

void Fusion::classify(const Node& node) {
  const bool sends = !shares_.at(&node).transfers.empty();
  for (const Value v : node.results) {
    Form form = Form::Fused;
    const bool is_constant = node.op == Op::Constant || node.op == Op::Iota || node.op == Op::PartitionId;
    if (is_constant || layouts_.local_bytes(v) < kSmall) form = Form::Nothing;
    else if (is_alias(node.op) && !sends) form = Form::Alias;
    else if (is_kernel(node.op) || is_region(node.op) || sends) form = Form::Buffer;
    forms_[v.id()] = form;
  }
}

// Converted rows of a stack that the loop does not change.
void Fusion::find_hoisted(const Node& node, const Node* loop) {
  if (node.op != Op::Convert || !loop || layouts_.local_bytes(node.results[0]) < kSmall) return;
  Value row = node.operands[0];
  const Node* slice = graph_.definition(row);
  while (slice && slice->op == Op::Reshape) slice = graph_.definition(slice->operands[0]);
  if (!slice || slice->op != Op::DynamicSlice || graph_.block_of(slice->operands[0]) == loop->regions[1]->id) return;
  const Value stack = slice->operands[0];
  if (byte_size(node.results[0].dtype()) >= byte_size(stack.dtype())) return;  // would take more memory
  auto found = std::ranges::find_if(
      hoisted_, [&](const Hoisted& h) { return h.stack == stack && h.dtype == node.results[0].dtype(); });
  if (found == hoisted_.end()) {
    const double ratio = double(byte_size(node.results[0].dtype())) / double(byte_size(stack.dtype()));
    hoisted_.push_back({stack, node.results[0].dtype(), layouts_.local_bytes(stack) * ratio, node.site, {}});
    found = std::prev(hoisted_.end());
  }
  if (found->loops.empty() || found->loops.back() != loop) found->loops.push_back(loop);
  hoisted_as_[node.results[0].id()] = static_cast<size_t>(found - hoisted_.begin());
}

void Fusion::need(Value value) { wanted_whole_[storage(value).id()] = true; }

Value Fusion::original_of(Value alias) const {
  const Node& node = *graph_.definition(alias);
  if (node.op != Op::OptimizationBarrier) return node.operands[0];
  return node.operands[size_t(std::ranges::find(node.results, alias) - node.results.begin())];
}

Value Fusion::storage(Value value) const {
  while (form(value) == Form::Alias) value = original_of(value);
  return value;
}

// Whether the kernel that makes a Fused value has an operation that `is`.
template <class Is>
bool Fusion::any_inside(Value value, const Is& is) const {
  std::vector<Value> open{value};
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const Value v = storage(open.back());
    open.pop_back();
    const Node* node = graph_.definition(v);
    if (!node || form(v) != Form::Fused || hoisted_as_.contains(v.id()) || !seen.insert(v.id()).second) continue;
    if (is(node->op)) return true;
    open.insert(open.end(), node->operands.begin(), node->operands.end());
  }
  return false;
}

bool Fusion::is_arithmetic(Value value) const {
  return any_inside(value, [](Op op) { return !is_movement(op); });
}

// A matrix product that has no memory of its own: no other kernel recomputes that.
bool Fusion::is_costly(Value value) const {
  return any_inside(value, [](Op op) { return op == Op::DotGeneral; });
}

void Fusion::decide(const Block& block) {
  for (const auto& node : block.nodes) {
    for (const auto& region : node->regions)
      if (is_region(node->op)) decide(*region);
    decide(*node);
  }
}

void Fusion::decide(const Node& node) {
  if (node.results.empty()) return;
  const Value v = node.results[0];
  if (node.op == Op::DotGeneral && form(v) == Form::Buffer && share(node).transfers.empty()) {
    // What follows is part of the product's kernel, if nothing else reads the product.
    if (users_[v.id()] == 1 && !wanted_whole_[v.id()]) forms_[v.id()] = Form::Fused;
  }
  if (node.op == Op::DotGeneral || node.op == Op::Reduce) {
    for (const Value operand : node.operands) {
      const Value base = storage(operand);
      if (form(base) == Form::Fused && !takes_in(node, base)) keep(base);
    }
  }
  for (const Value result : node.results) {
    if (form(result) != Form::Fused || node.op == Op::DotGeneral) continue;
    if (wanted_whole_[result.id()]) forms_[result.id()] = Form::Buffer;
    else if (users_[result.id()] > 1 && is_costly(result)) keep(result);
  }
}

// Whether the kernel of a product or a sum makes its Fused operand on the way: what is computed from memory element by element,
// even if others recompute it. Not a product, not a stack, and nothing where a ring takes it piece after piece.
bool Fusion::takes_in(const Node& node, Value operand) const {
  const Node& made_by = *graph_.definition(operand);
  if (node.op == Op::Reduce) return made_by.op != Op::DotGeneral;
  const bool stack = made_by.op == Op::Concatenate && reads_memory(made_by);
  return !stack && !is_costly(operand) && !(ring_of(share(node)) && is_arithmetic(operand));
}

// Gives a Fused value memory; of one that was widened, the narrow one, which each reader widens.
void Fusion::keep(Value value) {
  const Node& node = *graph_.definition(value);
  const Value from = node.op == Op::Convert ? storage(node.operands[0]) : value;
  const bool widens = node.op == Op::Convert && form(from) == Form::Fused && byte_size(node.operands[0].dtype()) < byte_size(value.dtype());
  forms_[(widens ? from : value).id()] = Form::Buffer;
}

// Adds what `value` is made of, of which a part is wanted: another one each time, as of two slices.
void Fusion::collect(Value value, double fraction, Reading& reading) const {
  value = storage(value);
  if (form(value) == Form::Nothing) return;
  double& seen = reading.fractions.try_emplace(value.id(), 0).first->second;
  fraction = std::min(fraction, 1 - seen);
  if (fraction <= 0) return;
  seen += fraction;
  if (form(value) == Form::Buffer || hoisted_as_.contains(value.id())) {
    const double bytes = layouts_.local_bytes(value) * fraction;
    const auto found = std::ranges::find_if(reading.reads, [&](const Read& r) { return r.buffer == value; });
    if (found == reading.reads.end()) reading.reads.push_back({value, bytes});
    else found->bytes += bytes;
    return;
  }
  const Node* node = graph_.definition(value);
  fraction *= part_taken(*node);
  for (const Value operand : node->operands) collect(operand, fraction, reading);
}

// Of the first operand.
double Fusion::part_taken(const Node& node) const {
  if (node.op != Op::Slice && node.op != Op::DynamicSlice && node.op != Op::Gather) return 1;
  return std::min(1.0, layouts_.local_bytes(node.results[0]) / std::max(1.0, layouts_.local_bytes(node.operands[0])));
}

std::vector<Read> Fusion::reads_of(Value value) const {
  Reading reading;
  collect(value, 1, reading);
  return std::move(reading.reads);
}

std::vector<Read> Fusion::reads(const Node& node) const {
  Reading reading;
  for (size_t i = 0; i < node.operands.size(); ++i) collect(node.operands[i], i == 0 ? part_taken(node) : 1, reading);
  if (node.op == Op::Reduce) leave_out_product(node, reading.reads);
  return std::move(reading.reads);
}

// A sum over what a product's kernel makes is that kernel's, if it needs nothing that comes later: a maximum over scores is,
// the sum of what is relative to that maximum is not.
void Fusion::leave_out_product(const Node& reduce, std::vector<Read>& reads) const {
  const auto last = std::ranges::max_element(reads, {}, [](const Read& r) { return r.buffer.id(); });
  if (last == reads.end() || graph_.block_of(last->buffer) != graph_.block_of(reduce.results[0])) return;
  const Node* made_by = graph_.definition(last->buffer);
  if (!made_by) return;
  const bool is_product = made_by->op == Op::DotGeneral ||
                          std::ranges::any_of(made_by->operands, [&](Value v) { return is_costly(v); });
  if (is_product && !needs_kernel_after(reduce, last->buffer)) reads.erase(last);
}

// Whether what the node's operands are made of, other than `buffer`, has kernels that come after that: of small values too.
bool Fusion::needs_kernel_after(const Node& node, Value buffer) const {
  std::vector<Value> open(node.operands.begin(), node.operands.end());
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const Value v = open.back();
    open.pop_back();
    const Node* made_by = graph_.definition(v);
    if (v == buffer || v.id() < buffer.id() || !made_by || !seen.insert(v.id()).second) continue;
    if (is_kernel(made_by->op) || is_region(made_by->op)) return true;
    open.insert(open.end(), made_by->operands.begin(), made_by->operands.end());
  }
  return false;
}

}  // namespace flambeau::plan
