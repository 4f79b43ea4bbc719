#include "hlo/hash.h"

#include <algorithm>

namespace flambeau::hlo {
namespace {

void add_sharding(Hasher& hasher, const Sharding& sharding) {
  hasher.add(sharding.dims.size());
  for (const Sharding::Dim& dim : sharding.dims) {
    hasher.add(dim.open).add(dim.axes.size());
    for (const std::string& axis : dim.axes) hasher.add(std::string_view(axis));
  }
  hasher.add(sharding.replicated.size());
  for (const std::string& axis : sharding.replicated) hasher.add(std::string_view(axis));
}

struct AddValue {
  Hasher& hasher;
  void operator()(bool v) { hasher.add(v); }
  void operator()(int64_t v) { hasher.add(v); }
  void operator()(double v) { hasher.add(v); }
  void operator()(DType v) { hasher.add(v); }
  void operator()(const std::string& v) { hasher.add(std::string_view(v)); }
  void operator()(const Dims& v) { hasher.add(std::span(v)); }
  void operator()(const std::vector<bool>& v) {
    hasher.add(v.size());
    for (bool b : v) hasher.add(b);
  }
  void operator()(const RawAttribute& v) { hasher.add(std::string_view(v.text)); }
  void operator()(const Literal& v) {
    add_type(hasher, v.type);
    hasher.add(std::string_view(v.bytes));
  }
  void operator()(const Sharding& v) { add_sharding(hasher, v); }
  void operator()(const std::vector<Sharding>& v) {
    hasher.add(v.size());
    for (const Sharding& s : v) add_sharding(hasher, s);
  }
  void operator()(const std::vector<std::string>& v) {
    hasher.add(v.size());
    for (const std::string& s : v) hasher.add(std::string_view(s));
  }
};

void add_signature(Hasher& hasher, const Signature& signature) {
  hasher.add(signature.sharding.has_value());
  if (signature.sharding) add_sharding(hasher, *signature.sharding);
  hasher.add(signature.aliasing_output.value_or(-1)).add(signature.donor);
}

class RegionComparison {
 public:
  bool equal(const Block& a, const Block& b) {
    if (a.nodes.size() != b.nodes.size() || !pair(a.parameters, b.parameters)) return false;
    for (size_t i = 0; i < a.nodes.size(); ++i)
      if (!equal(*a.nodes[i], *b.nodes[i])) return false;
    return same(a.results, b.results);
  }

 private:
  bool equal(const Node& a, const Node& b) {
    if (a.op != b.op || a.attributes != b.attributes || a.regions.size() != b.regions.size() ||
        !same(a.operands, b.operands))
      return false;
    for (size_t i = 0; i < a.regions.size(); ++i)
      if (!equal(*a.regions[i], *b.regions[i])) return false;
    return pair(a.results, b.results);
  }
  bool pair(const std::vector<Value>& a, const std::vector<Value>& b) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i].type() != b[i].type()) return false;
      pairs_[a[i].id()] = b[i].id();
    }
    return a.size() == b.size();
  }
  bool same(const std::vector<Value>& a, const std::vector<Value>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](Value x, Value y) {
      const auto at = pairs_.find(x.id());
      return at == pairs_.end() ? x == y : at->second == y.id();  // not found: a value from outside both
    });
  }
  std::unordered_map<uint32_t, uint32_t> pairs_;
};

}  // namespace

void add_type(Hasher& hasher, const Type& type) { hasher.add(type.dtype).add(std::span(type.dims)); }

void add_attributes(Hasher& hasher, const Node& node) {
  hasher.add(node.attributes.size());
  for (const Attribute& attribute : node.attributes) {
    hasher.add(attribute.name).add(attribute.value.index());
    std::visit(AddValue{hasher}, attribute.value);
  }
}

void StructureHasher::define(const std::vector<Value>& values) {
  hasher_.add(values.size());
  for (Value v : values) {
    numbers_.emplace(v.id(), static_cast<uint32_t>(numbers_.size()));
    add_type(hasher_, v.type());
  }
}

void StructureHasher::use(const std::vector<Value>& values) {
  hasher_.add(values.size());
  for (Value v : values) {
    const auto at = numbers_.find(v.id());
    hasher_.add(at == numbers_.end() ? UINT32_MAX : at->second);
  }
}

void StructureHasher::add(const Block& block) {
  define(block.parameters);
  hasher_.add(block.nodes.size());
  for (const auto& node : block.nodes) {
    hasher_.add(node->op);
    use(node->operands);
    add_attributes(hasher_, *node);
    hasher_.add(node->regions.size());
    for (const auto& region : node->regions) add(*region);
    define(node->results);
  }
  use(block.results);
}

bool equal_regions(const Block& a, const Block& b) { return RegionComparison().equal(a, b); }

uint64_t structural_hash(const Graph& graph) {
  Hasher hasher;
  StructureHasher(hasher).add(graph.body());
  for (size_t i = 0; i < graph.parameters().size(); ++i) add_signature(hasher, graph.parameter_signature(i));
  for (size_t i = 0; i < graph.results().size(); ++i) add_signature(hasher, graph.result_signature(i));
  hasher.add(graph.mesh().has_value());
  if (graph.mesh()) {
    hasher.add(graph.mesh()->axes.size());
    for (const MeshAxis& axis : graph.mesh()->axes) hasher.add(std::string_view(axis.name)).add(axis.size);
  }
  return hasher.value();
}

}  // namespace flambeau::hlo
