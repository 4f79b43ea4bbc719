// The joint graph of a loop's body and its gradient (partition.h), as the choice of what to keep sees it.
#pragma once

#include <functional>
#include <vector>

#include "runtime/partition.h"

namespace flambeau::runtime {

// A way to split: which calls of the forward pass have their outputs kept, and what follows.
struct Partition {
  std::vector<bool> needed;      // by value: the backward pass reads it
  std::vector<bool> recomputed;  // by call: the backward pass recomputes it
  std::vector<ValueId> kept;     // in order
  int64_t bytes = 0;             // of the kept values of one iteration
  double cost = 0;               // of what one iteration recomputes
};

class JointGraph {
 public:
  JointGraph(const JointLoop& joint, const CheckpointPolicy& policy);

  // By call: whether it depends on a cotangent, so that it belongs to the backward pass.
  bool is_dependent(size_t call) const { return dependent_calls_[call]; }
  Partition partition() const;

 private:
  using Choice = std::vector<bool>;  // by call: its outputs are kept where the backward pass needs them
  struct CallFacts {
    std::vector<ValueId> inputs, outputs;  // each once
    double cost = 0;
    bool keepable = false;  // of the forward pass, and worth keeping as far as the call alone tells
    bool forced = false;    // always kept where needed
  };

  void find_inputs();
  void add_call(const Call& call);
  bool is_wasteful(const Call& call, const CallFacts& facts) const;
  bool is_available(ValueId id, const Partition& partition) const;
  // All calls worth keeping for which `wanted` holds, and those that are kept under every policy.
  Choice choose(const std::function<bool(const Call&)>& wanted) const;
  Partition evaluate(const Choice& choice) const;
  Partition without_copies(Choice choice) const;
  Partition within_budget() const;
  bool improve(Choice& choice, Partition& partition, int64_t limit) const;

  const JointLoop& joint_;
  const Trace& trace_;
  const CheckpointPolicy& policy_;
  std::vector<CallFacts> facts_;
  std::vector<bool> dependent_, dependent_calls_;
  std::vector<bool> parameter_;  // by value: made of rows, the index and values from outside alone
  std::vector<ValueId> carry_;
};

}  // namespace flambeau::runtime
