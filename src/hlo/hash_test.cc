#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "hlo/builder.h"

namespace flambeau::hlo {
namespace {

uint64_t hash_of(const std::function<void(Graph&, Builder&)>& make) {
  Graph g;
  Builder b(g);
  make(g, b);
  return structural_hash(g);
}

TEST(StructuralHash, EveryPartCounts) {
  const Type f{DType::F32, {2, 3}};
  const std::map<std::string, std::function<void(Graph&, Builder&)>> graphs = {
      {"add",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.add(x, y)});
       }},
      {"operands swapped",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.add(y, x)});
       }},
      {"another operation",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.multiply(x, y)});
       }},
      {"another type",
       [=](Graph& g, Builder& b) {
         const Type t{DType::BF16, {2, 3}};
         const Value x = g.add_parameter(t), y = g.add_parameter(t);
         g.set_results({b.add(x, y)});
       }},
      {"other dimensions",
       [=](Graph& g, Builder& b) {
         const Type t{DType::F32, {3, 2}};
         const Value x = g.add_parameter(t), y = g.add_parameter(t);
         g.set_results({b.add(x, y)});
       }},
      {"two results",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         const Value s = b.add(x, y);
         g.set_results({s, s});
       }},
      {"aliased",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f, {.aliasing_output = 0}), y = g.add_parameter(f);
         g.set_results({b.add(x, y)});
       }},
      {"donated",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f, {.donor = true}), y = g.add_parameter(f);
         g.set_results({b.add(x, y)});
       }},
      {"a mesh",
       [=](Graph& g, Builder& b) {
         g.set_mesh({{{"a", 2}}});
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.add(x, y)});
       }},
      {"a larger mesh",
       [=](Graph& g, Builder& b) {
         g.set_mesh({{{"a", 4}}});
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.add(x, y)});
       }},
      {"a sharded result",
       [=](Graph& g, Builder& b) {
         g.set_mesh({{{"a", 2}}});
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.add(x, y)}, {{.sharding = Sharding{.dims = {{.axes = {"a"}}, {}}}}});
       }},
      {"an open sharding",
       [=](Graph& g, Builder& b) {
         g.set_mesh({{{"a", 2}}});
         const Value x = g.add_parameter(f), y = g.add_parameter(f);
         g.set_results({b.add(x, y)}, {{.sharding = Sharding{.dims = {{.axes = {"a"}, .open = true}, {}}}}});
       }},
      {"constant 1", [](Graph& g, Builder& b) { g.set_results({b.constant(DType::F32, 1.0)}); }},
      {"constant 2", [](Graph& g, Builder& b) { g.set_results({b.constant(DType::F32, 2.0)}); }},
      {"constant 1 of i32", [](Graph& g, Builder& b) { g.set_results({b.constant(DType::S32, 1065353216)}); }},
      {"reverse rows", [=](Graph& g, Builder& b) { g.set_results({b.reverse(g.add_parameter(f), {0})}); }},
      {"reverse columns", [=](Graph& g, Builder& b) { g.set_results({b.reverse(g.add_parameter(f), {1})}); }},
      {"sum",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), i = g.add_parameter({DType::F32, {}});
         g.set_results(b.reduce(std::array{x}, std::array{i}, {0},
                                [](Builder& in, std::span<const Value> p) { return std::vector{in.add(p[0], p[1])}; }));
       }},
      {"body of another operation",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), i = g.add_parameter({DType::F32, {}});
         g.set_results(b.reduce(std::array{x}, std::array{i}, {0},
                                [](Builder& in, std::span<const Value> p) { return std::vector{in.multiply(p[0], p[1])}; }));
       }},
      {"body of other operands",
       [=](Graph& g, Builder& b) {
         const Value x = g.add_parameter(f), i = g.add_parameter({DType::F32, {}});
         g.set_results(b.reduce(std::array{x}, std::array{i}, {0},
                                [](Builder& in, std::span<const Value> p) { return std::vector{in.add(p[1], p[0])}; }));
       }},
  };
  std::map<uint64_t, std::string> seen;
  for (const auto& [name, make] : graphs) {
    const uint64_t hash = hash_of(make);
    EXPECT_EQ(hash_of(make), hash) << name;
    const auto [at, fresh] = seen.emplace(hash, name);
    EXPECT_TRUE(fresh) << name << " hashes as " << at->second;
  }
}

// Caches on disk are keyed by it: a change of this number makes every cached program stale.
TEST(StructuralHash, IsTheSameInEveryProcess) {
  constexpr uint64_t kKnown = 1190342960271586979u;
  EXPECT_EQ(hash_of([](Graph& g, Builder& b) { g.set_results({b.exp(g.add_parameter({DType::F32, {2}}))}); }), kKnown);
}

TEST(StructuralHash, SitesAndForgottenValuesDoNotCount) {
  auto plain = [](Graph& g, Builder& b) { g.set_results({b.exp(g.add_parameter({DType::F32, {2}}))}); };
  EXPECT_EQ(hash_of([](Graph& g, Builder& b) {
              b.set_site("aten::exp (train.py:1)");
              const Value x = g.add_parameter({DType::F32, {2}});
              b.log(x);  // removed below: value numbers differ, the structure does not
              g.set_results({b.exp(x)});
              simplify(g);
            }),
            hash_of(plain));
}

}  // namespace
}  // namespace flambeau::hlo
