// What a compiled program does on one device: what it takes, its loops, what it sends, what it multiplies.
//
//   const Analysis analysis = analyze(parse_module(executable.optimized_hlo()));
//   for (const Collective& c : analysis.collectives) use(c.kind, c.bytes(), analysis.runs(c.loop));
//
// Shapes are one device's. A loop's trip count may be unknown (it depends on data); what it holds then counts as run once
// a turn of what is around it, and exact() is false. Of a conditional all branches count.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hlo/compiled/module.h"

namespace flambeau::hlo::compiled {

struct Parameter {
  std::string name, op_name;
  Shape shape;
  bool aliased = false;  // an output takes over its memory
};

struct Loop {
  std::string name, op_name;
  int parent = -1;  // the loop around it, an index into Analysis::loops; -1: none
  std::optional<int64_t> trips;
};

struct Collective {
  // all-gather, all-reduce, reduce-scatter, all-to-all, collective-permute, ... What a compiler builds of several operations
  // has the name of the whole: an all-reduce of which each device keeps its part is a reduce-scatter.
  std::string kind;
  std::string type;  // of the elements: bf16
  // Of all its arrays on one device. An all-gather's result is group_size times its operand, a reduce-scatter's the inverse.
  int64_t operand_bytes = 0, result_bytes = 0;
  int64_t group_size = 0;  // devices that talk to each other; of a permute: in a ring. 0: not said
  int64_t channel = 0;
  int loop = -1;  // the innermost around it, an index into Analysis::loops; -1: none
  std::string name, op_name;

  int64_t bytes() const { return operand_bytes > result_bytes ? operand_bytes : result_bytes; }
};

struct Contraction {  // a dot or convolution
  std::string name, op_name;
  double flops = 0;  // of one run
  int loop = -1;
};

struct Analysis {
  std::vector<Parameter> parameters;  // of the entry, by number
  Shape result;                       // usually a tuple
  std::vector<Loop> loops;            // outer before inner
  // An asynchronous one counts once however many pieces it is in: those of a channel in a loop are one.
  std::vector<Collective> collectives;
  std::vector<Contraction> contractions;

  std::vector<int> nest(int loop) const;  // outermost first
  double runs(int loop) const;            // of what stands in the loop, in one run of the program: the product of trips
  double flops() const;                   // of all contractions
  bool exact() const;                     // whether all trip counts are known
};

// `device_count`: of the program, for collectives that do not say who takes part. InvalidArgument for dimensions that
// contradict shapes, and for programs beyond all measure (call chains over 200 deep, more than five million visits).
Analysis analyze(const Module& module, int64_t device_count = 0);

}  // namespace flambeau::hlo::compiled
