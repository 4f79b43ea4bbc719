// Cases for custom calls and for programs over a mesh of eight devices.
#include <numeric>

#include "hlo_cases.h"

namespace flambeau::tests {

using namespace hlo;

namespace {

Sharding replicated(size_t rank) { return {std::vector<Sharding::Dim>(rank), {}}; }
Sharding split_first(std::vector<std::string> axes, size_t rank) {
  Sharding s = replicated(rank);
  s.dims[0].axes = std::move(axes);
  return s;
}
Signature whole(size_t rank) { return {.sharding = replicated(rank)}; }

std::vector<double> count(size_t n) {
  std::vector<double> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

const std::vector<Dims> kAll = {{0, 1, 2, 3, 4, 5, 6, 7}};

// One collective on the shards of 0..7, and what the whole result is.
Case collective(std::string name, std::vector<double> want, std::function<Value(Builder&, Value)> body, Sharding out) {
  return {std::move(name),
          [=](Program& p) {
            p.graph.set_mesh({{{"a", 4}, {"b", 2}}});
            const Value x = p.in(DType::F32, {8}, count(8), whole(1));
            auto r =
                p.b.manual_computation(std::array{x}, std::array{split_first({"a", "b"}, 1)}, std::array{out}, {"b", "a"},
                                       [&](Builder& b, std::span<const Value> e) { return std::vector{body(b, e[0])}; });
            p.expect(r[0], want, 0, whole(1));
          },
          8};
}

}  // namespace

std::vector<Case> partition_cases() {
  std::vector<Case> cases;
  cases.push_back(
      {"custom_call", [](Program& p) {
         Builder::CustomCall call;
         call.target = "LayoutConstraint";  // XLA's own: every plugin has it
         call.results = {{DType::F32, {2}}};
         call.attributes = {
             {"number", int64_t{3}}, {"flag", true}, {"text", std::string("a\"b")}, {"list", Dims{1, 2}}, {"rate", 0.5}};
         p.expect(p.b.custom_call(std::array{p.in(DType::F32, {2}, {1, 2})}, call)[0], {1, 2});
       }});
  cases.push_back({"rows that wait in host memory",
                   [](Program& p) {
                     const Value x = p.in(DType::F32, {3}, count(3)), stack = p.b.broadcast(p.b.constant(DType::F32, 0.0), {4, 3});
                     const auto starts = [](Builder& b, Value i) { return std::array{i, b.constant(DType::S32, 0)}; };
                     auto out = p.b.for_loop(4, std::array{x, stack}, [&](Builder& b, std::span<const Value> c) {
                       const Value row = b.reshape(b.in_memory(c[1], "pinned_host"), {1, 3});
                       return std::vector{b.add(c[1], c[1]), b.dynamic_update_slice(c[2], row, starts(b, b.convert(c[0], DType::S32)))};
                     });
                     auto in = p.b.for_loop(4, std::array{out[0]}, [&](Builder& b, std::span<const Value> c) {
                       const Value row = b.dynamic_slice(out[1], starts(b, b.convert(c[0], DType::S32)), {1, 3});
                       return std::vector{b.add(c[1], b.in_memory(b.reshape(row, {3}), "device"))};
                     });
                     p.expect(in[0], {0, 31, 62});
                   },
                   1,
                   {{"xla-cpu", "annotate_device_placement"}}});
  cases.push_back({"sharded arguments",
                   [](Program& p) {
                     p.graph.set_mesh({{{"a", 4}, {"b", 2}}});
                     const Value x = p.in(DType::F32, {8, 2}, count(16), whole(2));
                     const Value s = p.b.sharding_constraint(x, {{{{"a"}, false}, {{}, true}}, {"b"}});
                     p.expect(p.b.reduce(s, {0}, Reduction::Sum), {56, 64}, 0, whole(1));
                   },
                   8});
  cases.push_back({"sharded loop with values from outside",
                   [](Program& p) {
                     p.graph.set_mesh({{{"a", 4}, {"b", 2}}});
                     const Value x = p.in(DType::F32, {8}, count(8), whole(1));
                     const Value s = p.b.sharding_constraint(x, split_first({"a", "b"}, 1));
                     auto r = p.b.for_loop(3, std::array{x}, [&](Builder& b, std::span<const Value> c) {
                       return std::vector{b.add(c[1], b.multiply(s, b.broadcast(b.reduce(s, {0}, Reduction::Max), {8})))};
                     });
                     p.expect(r[0], {0, 22, 44, 66, 88, 110, 132, 154}, 0, whole(1));
                   },
                   8});
  cases.push_back(collective(
      "all_reduce", {28}, [](Builder& b, Value x) { return b.all_reduce(x, Reduction::Sum, kAll, 1); }, replicated(1)));
  cases.push_back(collective(
      "all_reduce max of pairs", {1, 3, 5, 7},
      [](Builder& b, Value x) { return b.all_reduce(x, Reduction::Max, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 1); },
      split_first({"a"}, 1)));
  cases.push_back(
      collective("all_gather", count(8), [](Builder& b, Value x) { return b.all_gather(x, 0, kAll, 1); }, replicated(1)));
  cases.push_back(collective(
      "reduce_scatter", {0, 28, 56, 84, 112, 140, 168, 196},
      [](Builder& b, Value x) {
        const Value row = b.multiply(b.broadcast(x, {8}), b.iota({DType::F32, {8}}, 0));
        return b.reduce_scatter(row, Reduction::Sum, 0, kAll, 1);
      },
      split_first({"a", "b"}, 1)));
  cases.push_back(collective(
      "all_to_all", {0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7},
      [](Builder& b, Value x) { return b.all_to_all(b.broadcast(x, {2}), 0, 0, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 1); },
      split_first({"a", "b"}, 1)));
  cases.push_back(collective(
      "collective_permute", {7, 0, 1, 2, 3, 4, 5, 6},
      [](Builder& b, Value x) {
        std::vector<std::array<int64_t, 2>> ring;
        for (int64_t i = 0; i < 8; ++i) ring.push_back({i, (i + 1) % 8});
        return b.collective_permute(x, ring, 1);
      },
      split_first({"a", "b"}, 1)));
  cases.push_back(collective(
      "partition_id", count(8),
      [](Builder& b, Value x) {
        const Value id = b.broadcast(b.convert(b.partition_id(), DType::F32), {1});
        return b.add(id, b.subtract(x, x));
      },
      split_first({"a", "b"}, 1)));
  cases.push_back({"manual over one axis of two",
                   [](Program& p) {
                     p.graph.set_mesh({{{"a", 4}, {"b", 2}}});
                     const Value x = p.in(DType::F32, {8, 2}, count(16), whole(2));
                     auto r =
                         p.b.manual_computation(std::array{x}, std::array{split_first({"a"}, 2)}, std::array{replicated(2)},
                                                {"a"}, [&](Builder& b, std::span<const Value> e) {
                                                  const Value two = b.constant(DType::F32, 2.0, {2, 2});
                                                  return std::vector{b.all_reduce(b.multiply(e[0], two), Reduction::Sum,
                                                                                  {{0, 2, 4, 6}, {1, 3, 5, 7}}, 1)};
                                                });
                     p.expect(r[0], {48, 56, 64, 72}, 0, whole(2));
                   },
                   8});
  return cases;
}

}  // namespace flambeau::tests
