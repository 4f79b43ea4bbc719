#include "runtime/joint_graph.h"

#include <algorithm>
#include <limits>

namespace flambeau::runtime {
namespace {

void make_unique(std::vector<ValueId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

bool draws(const Call& call) { return call.loop ? call.loop->body->random() : call.row->random; }

}  // namespace

JointGraph::JointGraph(const JointLoop& joint, const CheckpointPolicy& policy) : joint_(joint), trace_(*joint.body), policy_(policy) {
  dependent_.assign(trace_.value_count(), false);
  parameter_.assign(trace_.value_count(), false);
  find_inputs();
  for (const Call& call : trace_.calls()) add_call(call);
}

// Inputs are the externals that are no values of the trace around, in order: the index, the carry, the rows, the cotangents.
void JointGraph::find_inputs() {
  size_t input = 0;
  for (size_t i = 0; i < trace_.externals().size(); ++i) {
    const ValueId id = trace_.external_value(i);
    if (trace_.externals()[i].outer) {
      parameter_[id] = true;
      continue;
    }
    const bool is_carry = input >= 1 && input < 1 + joint_.carry;
    dependent_[id] = input >= 1 + joint_.carry + joint_.stacked;
    parameter_[id] = !is_carry && !dependent_[id];
    if (is_carry) carry_.push_back(id);
    ++input;
  }
}

void JointGraph::add_call(const Call& call) {
  CallFacts facts;
  for_each_value(call, [&](ValueId id) { facts.inputs.push_back(id); });
  make_unique(facts.inputs);
  for (const auto& output : call.outputs)
    if (output) facts.outputs.push_back(*output);
  facts.cost = cost_of(trace_, call);
  const bool dependent = std::ranges::any_of(facts.inputs, [&](ValueId id) { return dependent_[id]; });
  facts.forced = !dependent && policy_.keep_gathered && gathers_weight(call);
  facts.keepable = !dependent && (facts.forced || !is_wasteful(call, facts));
  if (!policy_.keep_scalars && std::ranges::any_of(facts.outputs, [&](ValueId id) { return trace_.type(id).rank() == 0; }))
    facts.keepable = false;
  const bool parameter = !draws(call) && std::ranges::all_of(facts.inputs, [&](ValueId id) { return parameter_[id]; });
  for (ValueId id : facts.outputs) {
    dependent_[id] = dependent;
    parameter_[id] = parameter;
  }
  dependent_calls_.push_back(dependent);
  facts_.push_back(std::move(facts));
}

// Whether keeping the outputs is a waste whatever else is kept.
bool JointGraph::is_wasteful(const Call& call, const CallFacts& facts) const {
  if (gathers_weight(call)) return true;
  if (draws(call)) return false;
  const bool costly = call.loop || call.manual || is_of(call, {"matmul", "attention"});
  if (!costly && std::ranges::all_of(facts.inputs, [&](ValueId id) { return parameter_[id]; })) return true;
  if (!is_copy(call)) return false;
  int64_t read = 0, made = 0;
  for (ValueId id : facts.inputs) read += trace_.type(id).bytes();
  for (ValueId id : facts.outputs) made += trace_.type(id).bytes();
  return made >= read;
}

Partition JointGraph::partition() const {
  switch (policy_.kind) {
    case CheckpointPolicy::Kind::None: return without_copies(choose([](const Call&) { return true; }));
    case CheckpointPolicy::Kind::Full: return without_copies(choose([](const Call&) { return false; }));
    case CheckpointPolicy::Kind::Selective: return without_copies(choose([&](const Call& call) { return is_of(call, policy_.ops); }));
    case CheckpointPolicy::Kind::Budget: break;
  }
  return within_budget();
}

JointGraph::Choice JointGraph::choose(const std::function<bool(const Call&)>& wanted) const {
  Choice choice(facts_.size());
  for (size_t i = 0; i < facts_.size(); ++i) choice[i] = facts_[i].forced || (facts_[i].keepable && wanted(trace_.calls()[i]));
  return choice;
}

// Walks back from the gradients: what the backward pass needs, what of that it recomputes, what is kept for it.
Partition JointGraph::evaluate(const Choice& choice) const {
  Partition partition;
  partition.needed.assign(trace_.value_count(), false);
  partition.recomputed.assign(facts_.size(), false);
  for (const auto* ids : {&joint_.gradient_results, &joint_.gradient_rows})
    for (ValueId id : *ids) partition.needed[id] = true;
  for (size_t i = facts_.size(); i-- > 0;) {
    const CallFacts& facts = facts_[i];
    if (std::ranges::none_of(facts.outputs, [&](ValueId id) { return partition.needed[id]; })) continue;
    if (choice[i]) {
      for (ValueId id : facts.outputs)
        if (partition.needed[id]) partition.kept.push_back(id);
      continue;
    }
    partition.recomputed[i] = !dependent_calls_[i];
    if (partition.recomputed[i]) partition.cost += facts.cost;
    for (ValueId id : facts.inputs) partition.needed[id] = true;
  }
  for (ValueId id : carry_)
    if (partition.needed[id]) partition.kept.push_back(id);
  std::sort(partition.kept.begin(), partition.kept.end());
  for (ValueId id : partition.kept) partition.bytes += trace_.type(id).bytes();
  return partition;
}

// Whether the backward pass has the value anyhow, or makes it from what every iteration is given.
bool JointGraph::is_available(ValueId id, const Partition& partition) const {
  return parameter_[id] || std::binary_search(partition.kept.begin(), partition.kept.end(), id);
}

// The partition of `choice`, but copies of what is kept are recomputed. Each round drops at least one call from the choice.
Partition JointGraph::without_copies(Choice choice) const {
  while (true) {
    Partition partition = evaluate(choice);
    bool changed = false;
    for (size_t i = 0; i < facts_.size(); ++i) {
      if (!choice[i] || facts_[i].forced || !is_copy(trace_.calls()[i])) continue;
      const bool is_kept = std::ranges::any_of(facts_[i].outputs, [&](ValueId id) { return partition.needed[id]; });
      if (!is_kept || !std::ranges::all_of(facts_[i].inputs, [&](ValueId id) { return is_available(id, partition); })) continue;
      choice[i] = false;
      changed = true;
    }
    if (!changed) return partition;
  }
}

// Beginning with nothing kept, keeps the call that spares the most work for each byte, again and again, while there is room. To
// keep a call's outputs spares the chain behind it too, unless that is recomputed for something else.
Partition JointGraph::within_budget() const {
  Partition everything = without_copies(choose([](const Call&) { return true; }));
  Choice choice = choose([](const Call&) { return false; });
  Partition partition = evaluate(choice);
  const int64_t limit = std::max(partition.bytes, static_cast<int64_t>(policy_.budget * static_cast<double>(everything.bytes)));
  if (everything.bytes <= limit && policy_.budget > 0) return everything;
  while (policy_.budget > 0 && improve(choice, partition, limit)) {
  }
  return without_copies(std::move(choice));
}

bool JointGraph::improve(Choice& choice, Partition& partition, int64_t limit) const {
  std::optional<size_t> best;
  Partition best_partition;
  double best_rate = 0, best_saved = 0;
  for (size_t i = 0; i < facts_.size(); ++i) {
    if (!facts_[i].keepable || !partition.recomputed[i] || facts_[i].cost == 0) continue;
    choice[i] = true;
    Partition candidate = evaluate(choice);
    choice[i] = false;
    if (candidate.bytes > limit) continue;
    const double saved = partition.cost - candidate.cost;
    const auto added = static_cast<double>(candidate.bytes - partition.bytes);
    const double rate = added > 0 ? saved / added : std::numeric_limits<double>::infinity();
    if (best && (rate < best_rate || (rate == best_rate && saved <= best_saved))) continue;
    best = i;
    best_partition = std::move(candidate);
    best_rate = rate;
    best_saved = saved;
  }
  if (!best) return false;
  choice[*best] = true;
  partition = std::move(best_partition);
  return true;
}

}  // namespace flambeau::runtime
