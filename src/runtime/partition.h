// Splitting the joint graph of a loop's body and its gradient into a forward and a backward loop.
//
// The joint trace is the body recorded together with torch's gradient of it. Its inputs are the index, the carry and the rows of
// the stacked values, then the cotangents that only the gradient sees: of the carry, then of the outputs. Everything that does not
// depend on a cotangent belongs to the forward pass. What the backward pass needs of it is either kept, stacked over the iterations, or
// recomputed from what is kept: that choice is the checkpoint policy. The carry that an iteration began with is kept where it is needed.
// Random ops that are recomputed draw the same numbers, since their positions depend on the iteration alone.
//
// Under every policy some values are recomputed because keeping them would be a waste: copies and conversions of what is kept
// anyway or is no larger, constants, and what is made of the rows, the index and constants alone by cheap ops (a weight in the
// dtype of the activations). A weight gathered over a mesh is gathered again unless the policy says otherwise.
#pragma once

#include <memory>
#include <vector>

#include "runtime/checkpoint_policy.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

struct JointLoop {
  std::unique_ptr<Trace> body;
  size_t carry = 0, stacked = 0;           // how many inputs of each there are, behind the index
  std::vector<ValueId> results;            // the carry's next values
  std::vector<ValueId> outputs;            // what the forward loop stacks for whoever runs it
  size_t output_cotangents = 0;            // so many of the last inputs: rows of what the backward loop is given
  std::vector<ValueId> gradient_results;   // next values of the backward loop's carry, which are the inputs behind the rows
  std::vector<ValueId> gradient_rows;      // what the backward loop stacks
};

struct SplitLoop {
  std::unique_ptr<Trace> forward, backward;
  std::vector<ValueId> results, kept, outputs;           // in `forward`; the kept values, then the outputs, are its rows
  size_t kept_on_host = 0;                               // so many of the first kept ones wait in host memory
  // In `backward`, whose rows of stacked values are `kept`, then the joint's, then cotangents of the outputs.
  std::vector<ValueId> gradient_results, gradient_rows;
};

SplitLoop split(const JointLoop& joint, const CheckpointPolicy& policy);

}  // namespace flambeau::runtime
