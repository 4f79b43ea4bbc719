// How each value of a recorded program lies on its mesh, found without a compiler.
//
// A recorded program says how its parameters, results, sharding constraints and manual computations lie. From there layouts
// spread along the dimensions that operations hand on, to results and back to operands, until nothing changes: what Shardy
// does, in small. Where two layouts meet that contradict each other, the first one stays, and the partitioner has to move
// data (partition.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/graph.h"

namespace flambeau::plan {

// Axes of a mesh: a bit for each, by its place in the mesh.
using AxisSet = uint32_t;
// For each dimension, the axes that split it. Which of them is the major one changes no size.
using Layout = std::vector<AxisSet>;

AxisSet axes_of(const Layout& layout);

// A dimension of a value, as an operation sees it.
struct Place {
  hlo::Value value;
  size_t dim = 0;
  int operand = -1;  // which one; -1: a result

  bool is_result() const { return operand < 0; }
};
// Places that one index runs through: if one of them is split, all can be split alike.
using Factor = std::vector<Place>;
// Of an operation without a body. What it leaves out has to be whole on each device.
std::vector<Factor> factors_of(const hlo::Node& node);

// The numbers of an attribute that every node of this operation has.
const hlo::Dims& dims_of(const hlo::Node& node, std::string_view attribute);

class Layouts {
 public:
  // `graph` must outlive it.
  explicit Layouts(const hlo::Graph& graph);

  const Layout& of(hlo::Value value) const { return layouts_[value.id()]; }
  Layout layout_of(const hlo::Sharding& sharding) const;
  int64_t parts(AxisSet axes) const;              // the product of their sizes
  std::string name(AxisSet axes) const;           // "shard x tensor"; "?" for none
  int64_t axis_count() const { return static_cast<int64_t>(sizes_.size()); }
  // The axes along which devices of a collective's groups differ.
  AxisSet axes_between(const hlo::Node& collective) const;

  // One device's part.
  hlo::Dims local_dims(hlo::Value value, const Layout& layout) const;
  hlo::Dims local_dims(hlo::Value value) const { return local_dims(value, of(value)); }
  double local_bytes(hlo::Value value, const Layout& layout) const;
  double local_bytes(hlo::Value value) const { return local_bytes(value, of(value)); }

 private:
  struct Rule {  // how layouts pass through a node
    std::vector<Factor> factors;
    bool both_ways = false;  // a loop's: results are operands
  };
  void prepare(const hlo::Block& block);
  bool pass(bool forward);
  bool spread(const Factor& factor, bool to_results, bool to_operands);
  void fix(hlo::Value value, const hlo::Sharding& sharding);
  void suggest(hlo::Value value, const hlo::Sharding& sharding);

  std::vector<std::string> names_;
  std::vector<int64_t> sizes_;
  std::vector<Layout> layouts_;
  std::vector<bool> fixed_;
  std::vector<std::pair<const hlo::Node*, Rule>> rules_;  // in the order of the program, a loop's body before the loop
};

}  // namespace flambeau::plan
