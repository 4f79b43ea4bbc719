#include "runtime/partition.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/joint_graph.h"

namespace flambeau::runtime {
namespace {

class Splitter {
 public:
  Splitter(const JointLoop& joint, const CheckpointPolicy& policy)
      : joint_(joint), trace_(*joint.body), graph_(joint, policy), partition_(graph_.partition()) {
    if (!policy.offload) return;
    // Scalars, which are not worth the way, stay behind.
    const auto is_scalar = [&](ValueId id) { return trace_.type(id).rank() == 0; };
    std::ranges::sort(partition_.kept, {}, [&](ValueId id) { return std::pair(is_scalar(id), id); });
    on_host_ = partition_.kept.size() - static_cast<size_t>(std::ranges::count_if(partition_.kept, is_scalar));
  }

  SplitLoop split() {
    SplitLoop result;
    result.kept_on_host = on_host_;
    std::unordered_map<ValueId, ValueId> ids;
    result.forward = start(ids, /*cotangents=*/false);
    copy(*result.forward, ids, forward_needs(), [&](size_t) { return true; });
    for (ValueId id : joint_.results) result.results.push_back(ids.at(id));
    for (ValueId id : joint_.outputs) result.outputs.push_back(ids.at(id));
    for (ValueId id : partition_.kept) result.kept.push_back(ids.at(id));

    ids.clear();
    result.backward = start(ids, /*cotangents=*/true);
    copy(*result.backward, ids, partition_.needed, [&](size_t i) { return graph_.is_dependent(i) || partition_.recomputed[i]; });
    for (ValueId id : joint_.gradient_results) result.gradient_results.push_back(ids.at(id));
    for (ValueId id : joint_.gradient_rows) result.gradient_rows.push_back(ids.at(id));
    return result;
  }

 private:
  std::vector<bool> forward_needs() const {
    std::vector<ValueId> wanted = joint_.results;
    for (const auto* more : {&joint_.outputs, &partition_.kept}) wanted.insert(wanted.end(), more->begin(), more->end());
    return needed_values(trace_, wanted);
  }

  // A body with its inputs: for the forward pass the index, the carry and the rows; for the backward pass the index, the
  // carry's cotangents, the kept values, the rows and the outputs' cotangents.
  std::unique_ptr<Trace> start(std::unordered_map<ValueId, ValueId>& ids, bool cotangents) const {
    auto trace = std::make_unique<Trace>(TraceKind::Capture, trace_.outer());
    trace->share_random(trace_);
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < trace_.externals().size(); ++i)
      if (!trace_.externals()[i].outer) inputs.push_back(trace_.external_value(i));
    auto add = [&](ValueId id) { ids[id] = trace->add_input(trace_.type(id)); };
    add(inputs[0]);
    const size_t rows = 1 + joint_.carry, behind = rows + joint_.stacked, of_outputs = inputs.size() - joint_.output_cotangents;
    if (cotangents) {
      for (size_t i = behind; i < of_outputs; ++i) add(inputs[i]);
      for (ValueId id : partition_.kept) add(id);
    } else {
      for (size_t i = 1; i < rows; ++i) add(inputs[i]);
    }
    for (size_t i = rows; i < behind; ++i) add(inputs[i]);
    if (cotangents)
      for (size_t i = of_outputs; i < inputs.size(); ++i) add(inputs[i]);
    return trace;
  }

  template <class Wanted>
  void copy(Trace& target, std::unordered_map<ValueId, ValueId>& ids, const std::vector<bool>& needed, Wanted&& wanted) const {
    for (size_t i = 0; i < trace_.externals().size(); ++i) {
      ValueId id = trace_.external_value(i);
      if (trace_.externals()[i].outer && needed[id]) ids[id] = target.value_of_outer(*trace_.externals()[i].outer);
    }
    for (size_t i = 0; i < trace_.calls().size(); ++i) {
      const Call& call = trace_.calls()[i];
      if (!makes_any(call, needed) || !wanted(i)) continue;
      // A value that is kept stays the kept one, also where the call that made it is recomputed for another output.
      std::vector<std::pair<ValueId, ValueId>> given;
      for (const auto& output : call.outputs)
        if (output && ids.contains(*output)) given.emplace_back(*output, ids[*output]);
      target.append_copy(call, ids);
      for (auto [id, value] : given) ids[id] = value;
    }
  }

  const JointLoop& joint_;
  const Trace& trace_;
  const JointGraph graph_;
  Partition partition_;
  size_t on_host_ = 0;
};

}  // namespace

SplitLoop split(const JointLoop& joint, const CheckpointPolicy& policy) { return Splitter(joint, policy).split(); }

}  // namespace flambeau::runtime
