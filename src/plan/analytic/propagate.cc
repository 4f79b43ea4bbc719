#include "plan/analytic/propagate.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "hlo/sharding.h"

namespace flambeau::plan {

using hlo::Block;
using hlo::Node;
using hlo::Op;
using hlo::Value;

AxisSet axes_of(const Layout& layout) {
  AxisSet axes = 0;
  for (const AxisSet a : layout) axes |= a;
  return axes;
}

Layouts::Layouts(const hlo::Graph& graph) : layouts_(graph.value_count()), fixed_(graph.value_count()) {
  for (size_t id = 0; id < layouts_.size(); ++id) layouts_[id].resize(graph.type(static_cast<uint32_t>(id)).dims.size());
  if (!graph.mesh()) return;
  for (const hlo::MeshAxis& axis : graph.mesh()->axes) {
    names_.push_back(axis.name);
    sizes_.push_back(axis.size);
  }
  FLAMBEAU_CHECK(sizes_.size() <= 32, "a mesh has fewer axes than an AxisSet has bits");
  for (size_t i = 0; i < graph.parameters().size(); ++i)
    if (const auto& sharding = graph.parameter_signature(i).sharding) fix(graph.parameters()[i], *sharding);
  prepare(graph.body());
  for (size_t i = 0; i < graph.results().size(); ++i)
    if (const auto& sharding = graph.result_signature(i).sharding) suggest(graph.results()[i], *sharding);
  // Each round hands a layout through the whole program; loops hand it on from one iteration to the next.
  constexpr int kMostRounds = 32;
  for (int round = 0; round < kMostRounds; ++round) {
    const bool forward = pass(true), backward = pass(false);
    if (!forward && !backward) break;
  }
}

Layout Layouts::layout_of(const hlo::Sharding& sharding) const {
  Layout layout(sharding.dims.size());
  for (size_t d = 0; d < layout.size(); ++d)
    for (const std::string& axis : sharding.dims[d].axes)
      layout[d] |= AxisSet{1} << (std::ranges::find(names_, axis) - names_.begin());
  return layout;
}

void Layouts::fix(Value value, const hlo::Sharding& sharding) {
  if (sharding.dims.size() != static_cast<size_t>(value.rank())) return;
  layouts_[value.id()] = layout_of(sharding);
  fixed_[value.id()] = true;
}

void Layouts::suggest(Value value, const hlo::Sharding& sharding) {
  if (fixed_[value.id()] || axes_of(of(value)) != 0 || sharding.dims.size() != static_cast<size_t>(value.rank())) return;
  layouts_[value.id()] = layout_of(sharding);
}

void Layouts::prepare(const Block& block) {
  for (const auto& node : block.nodes) {
    Rule rule;
    if (node->op == Op::ManualComputation) {
      const auto& in = std::get<std::vector<hlo::Sharding>>(*node->find("in_shardings"));
      const auto& out = std::get<std::vector<hlo::Sharding>>(*node->find("out_shardings"));
      for (size_t i = 0; i < node->operands.size(); ++i) suggest(node->operands[i], in[i]);
      for (size_t i = 0; i < node->results.size(); ++i) fix(node->results[i], out[i]);
      continue;  // the values of its body are parts already
    }
    for (const auto& region : node->regions)
      if (node->op == Op::While || node->op == Op::If || node->op == Op::Case) prepare(*region);
    if (node->op == Op::While) {
      rule.both_ways = true;
      for (size_t i = 0; i < node->results.size(); ++i)
        for (int64_t dim = 0; dim < node->results[i].rank(); ++dim) {
          const auto d = static_cast<size_t>(dim);
          rule.factors.push_back({{node->operands[i], d, 0},
                                  {node->regions[0]->parameters[i], d},
                                  {node->regions[1]->parameters[i], d},
                                  {node->regions[1]->results[i], d, 0},
                                  {node->results[i], d}});
        }
    } else if (node->op == Op::If || node->op == Op::Case) {
      for (size_t i = 0; i < node->results.size(); ++i)
        for (int64_t dim = 0; dim < node->results[i].rank(); ++dim) {
          Factor factor{{node->results[i], static_cast<size_t>(dim)}};
          for (const auto& region : node->regions) factor.push_back({region->results[i], static_cast<size_t>(dim), 0});
          rule.factors.push_back(std::move(factor));
        }
    } else {
      if (node->op == Op::ShardingConstraint) fix(node->results[0], std::get<hlo::Sharding>(*node->find("sharding")));
      rule.factors = factors_of(*node);
    }
    rules_.emplace_back(node.get(), std::move(rule));
  }
}

bool Layouts::pass(bool forward) {
  bool changed = false;
  const auto apply = [&](const Rule& rule) {
    for (const Factor& factor : rule.factors) changed |= spread(factor, forward || rule.both_ways, !forward || rule.both_ways);
  };
  if (forward) {
    for (const auto& [node, rule] : rules_) apply(rule);
  } else {
    for (auto at = rules_.rbegin(); at != rules_.rend(); ++at) apply(at->second);
  }
  return changed;
}

bool Layouts::spread(const Factor& factor, bool to_results, bool to_operands) {
  AxisSet axes = 0;
  for (const Place& place : factor) {
    const AxisSet here = of(place.value)[place.dim];
    if ((axes & here) == axes) axes = here;  // splits as `axes` does, or further
  }
  if (axes == 0) return false;
  bool changed = false;
  for (const Place& place : factor) {
    if (fixed_[place.value.id()] || !(place.is_result() ? to_results : to_operands)) continue;
    Layout& layout = layouts_[place.value.id()];
    AxisSet elsewhere = 0;
    for (size_t d = 0; d < layout.size(); ++d)
      if (d != place.dim) elsewhere |= layout[d];
    const AxisSet next = axes & ~elsewhere;
    if (next == layout[place.dim] || (layout[place.dim] & next) != layout[place.dim]) continue;
    if (place.value.dims()[place.dim] % parts(next) != 0) continue;
    layout[place.dim] = next;
    changed = true;
  }
  return changed;
}

int64_t Layouts::parts(AxisSet axes) const {
  int64_t parts = 1;
  for (size_t i = 0; i < sizes_.size(); ++i)
    if (axes >> i & 1) parts *= sizes_[i];
  return parts;
}

std::string Layouts::name(AxisSet axes) const {
  std::string name;
  for (size_t i = 0; i < names_.size(); ++i)
    if (axes >> i & 1) name += (name.empty() ? "" : " x ") + names_[i];
  return name.empty() ? "?" : name;
}

AxisSet Layouts::axes_between(const Node& collective) const {
  const auto* attribute = collective.find(collective.op == Op::CollectivePermute ? "source_target_pairs" : "replica_groups");
  const auto* table = attribute ? std::get_if<hlo::Literal>(attribute) : nullptr;
  if (!table || table->type.dims.size() != 2 || table->is_splat()) return 0;
  const auto columns = static_cast<size_t>(table->type.dims[1]);
  const auto* ids = reinterpret_cast<const int64_t*>(table->bytes.data());
  AxisSet axes = 0;
  for (size_t i = 0; i < static_cast<size_t>(table->type.elements()); ++i) {
    int64_t inner = 1;
    for (size_t axis = sizes_.size(); axis-- > 0; inner *= sizes_[axis])
      if (ids[i] / inner % sizes_[axis] != ids[i / columns * columns] / inner % sizes_[axis]) axes |= AxisSet{1} << axis;
  }
  return axes;
}

hlo::Dims Layouts::local_dims(Value value, const Layout& layout) const {
  hlo::Dims dims = value.dims();
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t n = parts(layout[d]);
    dims[d] = (dims[d] + n - 1) / n;
  }
  return dims;
}

double Layouts::local_bytes(Value value, const Layout& layout) const {
  auto bytes = static_cast<double>(byte_size(value.dtype()));
  for (const int64_t d : local_dims(value, layout)) bytes *= static_cast<double>(d);
  return bytes;
}

}  // namespace flambeau::plan
