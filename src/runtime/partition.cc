#include "runtime/partition.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "base/error.h"

namespace flambeau::runtime {
namespace {

template <class F>
void for_each_value(const Call& call, F&& f) {
  for (const Recorded& argument : call.arguments) {
    if (auto* v = std::get_if<ValueView>(&argument)) f(v->value);
    if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&argument))
      for (const auto& v : *list)
        if (v) f(v->value);
  }
}

class Splitter {
 public:
  Splitter(const JointLoop& joint, const KeepPolicy& keep) : joint_(joint), trace_(*joint.body), keep_(keep) {
    for (const Call& call : trace_.calls())
      if (call.loop)
        raise<NotImplemented>("[scan] a loop inside the body of a scan has no gradient yet; write the inner loop out, or take the "
                              "gradient outside of it");
    find_dependence();
    find_kept();
  }

  SplitLoop split() {
    SplitLoop result;
    std::unordered_map<ValueId, ValueId> ids;
    result.forward = start(ids, /*cotangents=*/false);
    copy(*result.forward, ids, forward_needs(), [&](size_t) { return true; });
    for (ValueId id : joint_.results) result.results.push_back(ids.at(id));
    for (ValueId id : kept_) result.kept.push_back(ids.at(id));

    ids.clear();
    result.backward = start(ids, /*cotangents=*/true);
    copy(*result.backward, ids, needed_, [&](size_t i) { return dependent_calls_[i] || remade_[i]; });
    for (ValueId id : joint_.gradient_results) result.gradient_results.push_back(ids.at(id));
    for (ValueId id : joint_.gradient_rows) result.gradient_rows.push_back(ids.at(id));
    return result;
  }

 private:
  bool is_carry(size_t input) const { return input >= 1 && input < 1 + joint_.carry; }
  bool is_cotangent(size_t input) const { return input >= 1 + joint_.carry + joint_.stacked; }

  // Which values depend on a cotangent. Inputs are the externals that are no values of the trace around, in order.
  void find_dependence() {
    dependent_.assign(trace_.value_count(), false);
    size_t input = 0;
    for (size_t i = 0; i < trace_.externals().size(); ++i)
      if (!trace_.externals()[i].outer) {
        if (is_cotangent(input)) dependent_[trace_.external_value(i)] = true;
        if (is_carry(input)) carry_.insert(trace_.external_value(i));
        ++input;
      }
    for (const Call& call : trace_.calls()) {
      bool any = false;
      for_each_value(call, [&](ValueId id) { any |= dependent_[id]; });
      dependent_calls_.push_back(any);
      for (const auto& output : call.outputs)
        if (output) dependent_[*output] = any;
    }
  }

  // Walks back from the gradients: what the backward pass needs, what of that it makes again, what is kept for it.
  void find_kept() {
    needed_.assign(trace_.value_count(), false);
    remade_.assign(trace_.calls().size(), false);
    for (const auto* ids : {&joint_.gradient_results, &joint_.gradient_rows})
      for (ValueId id : *ids) needed_[id] = true;
    for (size_t i = trace_.calls().size(); i-- > 0;) {
      const Call& call = trace_.calls()[i];
      bool any = false, has_tensors = false;
      for (const auto& output : call.outputs) any |= output && needed_[*output];
      if (!any) continue;
      for_each_value(call, [&](ValueId) { has_tensors = true; });
      if (!dependent_calls_[i] && has_tensors && keep_(call)) {
        for (const auto& output : call.outputs)
          if (output && needed_[*output]) kept_.push_back(*output);
        continue;
      }
      remade_[i] = !dependent_calls_[i];
      for_each_value(call, [&](ValueId id) { needed_[id] = true; });
    }
    for (ValueId id : carry_)
      if (needed_[id]) kept_.push_back(id);
    std::sort(kept_.begin(), kept_.end());
  }

  std::vector<bool> forward_needs() const {
    std::vector<bool> needed(trace_.value_count(), false);
    for (const auto* ids : {&joint_.results, &kept_})
      for (ValueId id : *ids) needed[id] = true;
    for (auto call = trace_.calls().rbegin(); call != trace_.calls().rend(); ++call) {
      bool any = false;
      for (const auto& output : call->outputs) any |= output && needed[*output];
      if (any) for_each_value(*call, [&](ValueId id) { needed[id] = true; });
    }
    return needed;
  }

  // A body with its inputs: for the forward pass the index, the carry and the rows; for the backward pass the index, the
  // cotangents, the kept values and the rows.
  std::unique_ptr<Trace> start(std::unordered_map<ValueId, ValueId>& ids, bool cotangents) const {
    auto trace = std::make_unique<Trace>(TraceKind::Capture, trace_.outer());
    trace->share_random(trace_);
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < trace_.externals().size(); ++i)
      if (!trace_.externals()[i].outer) inputs.push_back(trace_.external_value(i));
    auto add = [&](ValueId id) { ids[id] = trace->add_input(trace_.type(id)); };
    add(inputs[0]);
    size_t rows = 1 + joint_.carry, behind = rows + joint_.stacked;
    if (cotangents) {
      for (size_t i = behind; i < inputs.size(); ++i) add(inputs[i]);
      for (ValueId id : kept_) add(id);
    } else {
      for (size_t i = 1; i < rows; ++i) add(inputs[i]);
    }
    for (size_t i = rows; i < behind; ++i) add(inputs[i]);
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
      bool any = false;
      for (const auto& output : call.outputs) any |= output && needed[*output];
      if (!any || !wanted(i)) continue;
      // A value that is kept stays the kept one, also where the call that made it is made again for another output.
      std::vector<std::pair<ValueId, ValueId>> given;
      for (const auto& output : call.outputs)
        if (output && ids.contains(*output)) given.emplace_back(*output, ids[*output]);
      target.append_copy(call, ids);
      for (auto [id, value] : given) ids[id] = value;
    }
  }

  const JointLoop& joint_;
  const Trace& trace_;
  const KeepPolicy& keep_;
  std::vector<bool> dependent_, dependent_calls_, needed_, remade_;
  std::unordered_set<ValueId> carry_;
  std::vector<ValueId> kept_;
};

}  // namespace

KeepPolicy keep_nothing() {
  return [](const Call&) { return false; };
}

KeepPolicy keep_everything() {
  return [](const Call&) { return true; };
}

KeepPolicy keep_costly() {
  return [](const Call& call) {
    constexpr std::array<std::string_view, 6> kCostly = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm",
                                                         "aten::_scaled_dot_product_fused_attention_overrideable"};
    return std::find(kCostly.begin(), kCostly.end(), call.row->name) != kCostly.end();
  };
}

SplitLoop split(const JointLoop& joint, const KeepPolicy& keep) { return Splitter(joint, keep).split(); }

}  // namespace flambeau::runtime
