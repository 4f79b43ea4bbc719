// What a compiled program does on one device: what it takes, its loops, what it sends, multiplies and moves.
//
//   const Analysis analysis = analyze(parse_module(executable.optimized_hlo()));
//   for (const Collective& c : analysis.collectives) use(c.kind, c.bytes(), analysis.runs(c.loop));
//
// Shapes are one device's. A loop's trip count may be unknown (it depends on data); what it holds then counts as run once
// an iteration of what is around it, and exact() is false. Of a conditional all branches count.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiled/module.h"

namespace flambeau::compiled {

struct Parameter {
  std::string name, op_name;
  Shape shape;
  bool aliased = false;  // an output takes over its memory
};

struct Loop {
  std::string name, op_name;
  int parent = -1;  // the loop around it, an index into Analysis::loops; -1: none
  std::optional<int64_t> trips;
  size_t computation = 0, instruction = 0;  // where the while stands in the module

  double iterations() const { return static_cast<double>(trips.value_or(1)); }  // as they are counted
};

// The while of a loop.
inline const Instruction& site_of(const Module& module, const Loop& loop) {
  return module.computations[loop.computation].instructions[loop.instruction];
}

// The kind of a collective's opcode, "all-gather" of its start and its end ("all-gather-done") too; empty for what is none.
std::string_view collective_of(std::string_view opcode);

struct Collective {
  // all-gather, all-reduce, reduce-scatter, all-to-all, collective-permute, ... What a compiler builds of several operations
  // has the name of the whole: an all-reduce of which each device keeps its part is a reduce-scatter.
  std::string kind;
  std::string type;  // of the elements: bf16
  // Of all its arrays on one device. An all-gather's result is group_size times its operand, a reduce-scatter's the inverse.
  int64_t operand_bytes = 0, result_bytes = 0;
  int64_t group_size = 0;  // devices that talk to each other; of a permute: in a ring. 0: not said
  int64_t channel = 0;
  ReplicaGroups groups;
  SourceTargetPairs source_target_pairs;
  bool between_slices = false;  // a transfer of TPU's runtime: each device with those in its place of the other slices
  int loop = -1;  // the innermost around it, an index into Analysis::loops; -1: none
  // It begins before the operation `begin` of Analysis::operations and has ended before `end`: what lies between runs while
  // it is under way. Equal: nothing does.
  size_t begin = 0, end = 0;
  size_t operation = 0;  // its own, or the one that begins it
  std::string name, op_name;

  int64_t bytes() const { return operand_bytes > result_bytes ? operand_bytes : result_bytes; }
};

// What a device does as one piece: an instruction of a schedule that multiplies, moves bytes of its large memory, or takes
// part in a collective. What a fusion holds is a part of it.
struct Operation {
  std::string name, opcode, op_name;
  int loop = -1;
  double flops = 0;                          // of one run, as are the others
  double bytes_read = 0, bytes_written = 0;  // of HBM, in whole tiles; memory on the chip does not count

  double bytes() const { return bytes_read + bytes_written; }
};

struct Contraction {  // a dot or convolution, or a kernel that tells its FLOPs
  std::string name, op_name;
  double flops = 0;  // of one run
  int loop = -1;
};

struct Analysis {
  std::vector<Parameter> parameters;  // of the entry, by number
  Shape result;                       // usually a tuple
  std::vector<Loop> loops;            // outer before inner
  // An asynchronous one counts once however many pieces it is in: in fusions of a loop, those of a channel that do the same are one.
  std::vector<Collective> collectives;
  std::vector<Contraction> contractions;
  std::vector<Operation> operations;  // in the order in which they run; those of a loop stand where the loop runs

  std::vector<int> nest(int loop) const;  // outermost first
  double runs(int loop) const;            // of what stands in the loop, in one run of the program: the product of trips
  double flops() const;                   // of all contractions
  double hbm_bytes() const;               // that all operations read and write
  bool exact() const;                     // whether all trip counts are known
};

// What reports of a compiler call a value: "fusion.12", "while.9{2}" for an element of a tuple.
std::string value_name(std::string_view instruction, const std::vector<int64_t>& element);

// `device_count`: of the program, for collectives that do not say who takes part. InvalidArgument for dimensions that
// contradict shapes, and for programs beyond all measure (call chains over 200 deep, more than five million visits).
Analysis analyze(const Module& module, int64_t device_count = 0);

}  // namespace flambeau::compiled
