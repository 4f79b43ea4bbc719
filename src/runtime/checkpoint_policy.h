// What the forward pass of a loop keeps for its backward pass (activation checkpointing), and what recomputing a value costs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/trace.h"

namespace flambeau::runtime {

struct CheckpointPolicy {
  enum class Kind {
    None,       // nothing is recomputed: all that the backward pass reads is kept
    Full,       // everything is recomputed from the carry that an iteration began with
    Selective,  // the outputs of `ops` are kept, the rest is recomputed
    Budget,     // what is most costly to recompute, in a share `budget` of the bytes that None keeps (never less than Full does)
  };
  Kind kind = Kind::None;
  std::vector<std::string> ops = {"matmul", "attention"};  // of Selective, as parse_kept_ops gives them
  double budget = 0.5;         // of Budget: from 0, which is Full, to 1, which is None
  bool offload = false;        // what is kept waits in host memory; the target must have one
  bool keep_scalars = true;    // values of rank 0 may be kept
  bool keep_gathered = false;  // whether weights that are gathered over a mesh stay gathered until the backward pass
};

// "mm,attention" as a list. InvalidArgument for a name that is neither a group (matmul, mm, bmm, attention) nor an op of the
// table ("silu" stands for all overloads of aten::silu).
std::vector<std::string> parse_kept_ops(std::string_view text);

// Whether `call` is of one of `ops`; for a loop or a manual computation, whether a call in its body is.
bool is_of(const Call& call, const std::vector<std::string>& ops);

// A copy, a conversion or a constant's broadcast: nothing is computed.
bool is_copy(const Call& call);
// The weight is stored split over a mesh, and is gathered to be used.
bool gathers_weight(const Call& call);

// What a call of `trace` costs, in floating point operations: those of matrix products and attention, and for each byte that any
// op reads and writes as many as it could have computed meanwhile. Nothing for copies.
double cost_of(const Trace& trace, const Call& call);

}  // namespace flambeau::runtime
