// What each value of a compiled step is to the model. Internal to src/plan.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "compiled/dependence.h"
#include "plan/memory/memory.h"

namespace flambeau::plan {

class BufferKinds {
 public:
  explicit BufferKinds(const CompiledStep& step);

  // Of a value that is no argument, by the name that the compiler's reports have for it.
  MemoryKind kind(const std::string& value) const;
  // The model's own name for it where there is one.
  std::string name(const std::string& value) const;

 private:
  struct Place {
    const compiled::Instruction* instruction = nullptr;
    LoopRole role = LoopRole::Other;  // of the loop whose body it stands in
  };

  void index_instructions();
  void index_collectives();
  void index_reduced(const compiled::Computation& computation);
  const Place* place_of(const std::string& value) const;
  const compiled::Dependence* dependence_of(const std::string& value) const;
  bool is_gradient(const std::string& value, const Place& place) const;
  bool is_batch(const std::string& value, const Place& place) const;
  bool has_parameters_shape(const compiled::Shape& shape, bool or_one_layers) const;

  const CompiledStep& step_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<std::string, compiled::Dependence> dependence_;
  std::unordered_map<std::string, bool> collectives_;  // instructions that take part in one: whether it reduces
  std::unordered_set<std::string> unreduced_;          // what collectives sum to gradients
  std::vector<std::vector<int64_t>> shapes_;           // of the parameters, one device's, in a normal form
  std::vector<std::vector<int64_t>> layer_shapes_;     // without their first dimension
};

}  // namespace flambeau::plan
