// Regions while they are built, and which values they may use.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hlo/builder.h"

namespace flambeau::hlo {

// Whether an operation's regions may use nothing but their parameters: XLA compiles the bodies of reductions, sorts and
// manual computations on their own, while bodies of loops and branches may use values from outside.
bool has_closed_regions(Op op);

// Regions that become part of a node with release(); given up, with all their values, when an error comes first.
class Builder::Regions {
 public:
  explicit Regions(Builder& builder) : builder_(builder) {}
  ~Regions();
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  // Runs `body` on new parameters; what it emits becomes the region. For an operation with closed regions, constants
  // from outside (and what is computed from constants alone) are copied inside, anything else from outside raises.
  const Block& add(Op op, std::span<const Type> parameters, const Body& body);
  // The region must yield these types.
  void expect(Op op, std::string_view what, const Block& region, std::span<const Type> types) const;
  std::vector<std::unique_ptr<Block>> release() { return std::move(blocks_); }

 private:
  void close(Op op, Block& region);
  Builder& builder_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

std::vector<Type> types_of(std::span<const Value> values);
std::string type_list(std::span<const Type> types);  // (tensor<f32>, tensor<i1>)

}  // namespace flambeau::hlo
