// What the values of a compiled program are computed from.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "compiled/module.h"

namespace flambeau::compiled {

struct Dependence {
  static constexpr int64_t kNone = -1, kSeveral = -2;

  uint32_t bits = 0;          // of all parameters of the program that it depends on, together
  int64_t parameter = kNone;  // the number of the only one
};

// Of all values of the entry, of loops' bodies and of called computations, by value_name; of loops, after all iterations. `bits`
// are those of the entry's parameters, by number. What a fusion makes depends on all its operands. InvalidArgument for
// programs beyond all measure.
std::unordered_map<std::string, Dependence> dependence(const Module& module, const std::vector<uint32_t>& bits);

}  // namespace flambeau::compiled
