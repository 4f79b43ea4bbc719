// Which values of a recorded program take memory of their own, and what is read and written to make them.
//
// TPU's compiler makes one kernel of a matrix product or reduction and the cheap operations around it; what stands between
// operations of a kernel never lies in memory. Here a value is
//   Alias     another name for the memory of its operand: a reshape, an update in place, a constraint that moves nothing
//   Fused     recomputed by each kernel that reads it
//   Buffer    made once, by a kernel of its own: its result
//   Nothing   too small to count, or a constant
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/analytic/partition.h"

namespace flambeau::plan {

enum class Form : uint8_t { Nothing, Alias, Fused, Buffer };

// A stack of a loop's rows that is converted as a whole before the loops that read it: the compiler moves the conversion out.
struct Hoisted {
  hlo::Value stack;
  DType dtype = DType::F32;
  double bytes = 0;
  std::string site;
  std::vector<const hlo::Node*> loops;  // that read it, in order
};

struct Read {
  hlo::Value buffer;
  double bytes = 0;
};

class Fusion {
 public:
  Fusion(const hlo::Graph& graph, const Layouts& layouts);

  Form form(hlo::Value value) const { return forms_[value.id()]; }
  // The value whose memory holds `value`: itself where it has memory of its own. Of Fused values, themselves.
  hlo::Value storage(hlo::Value value) const;
  // What the kernel that makes the results of `node` reads of memory.
  std::vector<Read> reads(const hlo::Node& node) const;
  // The same, to make a value that is wanted: the value itself where it lies in memory.
  std::vector<Read> reads_of(hlo::Value value) const;
  const Share& share(const hlo::Node& node) const { return shares_.at(&node); }
  const std::vector<Hoisted>& hoisted() const { return hoisted_; }

 private:
  // The operand that an alias is another name for.
  hlo::Value original_of(hlo::Value alias) const;
  void visit(const hlo::Block& block, const hlo::Node* loop);
  void classify(const hlo::Node& node);
  void find_hoisted(const hlo::Node& node, const hlo::Node* loop);
  void need(hlo::Value value);
  void decide(const hlo::Block& block);
  void decide(const hlo::Node& node);
  bool takes_in(const hlo::Node& node, hlo::Value operand) const;
  void keep(hlo::Value value);
  void leave_out_product(const hlo::Node& reduce, std::vector<Read>& reads) const;
  bool needs_kernel_after(const hlo::Node& node, hlo::Value buffer) const;
  bool is_arithmetic(hlo::Value value) const;
  bool is_costly(hlo::Value value) const;
  template <class Is>
  bool any_inside(hlo::Value value, const Is& is) const;

  struct Reading {
    std::vector<Read> reads;
    std::unordered_map<uint32_t, double> fractions;  // of each value that has been asked for
  };
  void collect(hlo::Value value, double fraction, Reading& reading) const;
  double part_taken(const hlo::Node& node) const;

  const hlo::Graph& graph_;
  const Layouts& layouts_;
  std::vector<Form> forms_;
  std::vector<int> users_;          // nodes that read a value, or an alias of it
  std::vector<bool> wanted_whole_;  // by something that reads memory
  std::unordered_map<const hlo::Node*, Share> shares_;
  std::vector<Hoisted> hoisted_;
  std::unordered_map<uint32_t, size_t> hoisted_as_;  // converted rows
};

}  // namespace flambeau::plan
