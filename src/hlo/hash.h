// Hashes and equality of structure, shared by structural_hash and by the merging of equal nodes.
#pragma once

#include <unordered_map>

#include "base/hash.h"
#include "hlo/graph.h"

namespace flambeau::hlo {

void add_type(Hasher& hasher, const Type& type);
void add_attributes(Hasher& hasher, const Node& node);

// Hashes blocks with values numbered in the order in which they appear, so that equal structures hash alike.
class StructureHasher {
 public:
  explicit StructureHasher(Hasher& hasher) : hasher_(hasher) {}
  void add(const Block& block);

 private:
  void define(const std::vector<Value>& values);
  void use(const std::vector<Value>& values);
  Hasher& hasher_;
  std::unordered_map<uint32_t, uint32_t> numbers_;  // by value
};

// Whether two regions compute the same from their parameters.
bool equal_regions(const Block& a, const Block& b);

}  // namespace flambeau::hlo
