// Over which axes collectives run, by every way of saying who takes part.
#include "compiled/axes.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "compiled/test_module.h"

namespace flambeau::compiled {
namespace {

using namespace testing;

const MeshAxes kMesh = {{"replicate", 2}, {"shard", 4}, {"one", 1}, {"tensor", 2}};

// The axes of a collective of sixteen devices with these fields.
std::string axes(const std::string& opcode, const std::string& more, const MeshAxes& mesh = kMesh) {
  const Analysis a = analyze(parse_module(module({computation(1,
                                                              {parameter(1, shape(kF32, {16})),
                                                               instruction(2, opcode, shape(kF32, {16}), {1}, more)},
                                                              2)},
                                                 1)),
                             16);
  return axes_name(axes_of(a.collectives.at(0), mesh), mesh);
}

std::string explicit_groups(const std::vector<std::vector<int64_t>>& groups) {
  std::string more;
  for (const auto& group : groups) more += ProtoWriter().bytes(49, ProtoWriter().bytes(1, packed(group)).str()).str();
  return more;
}

std::string iota(int64_t count, int64_t size, const std::vector<int64_t>& dims, const std::vector<int64_t>& order) {
  return ProtoWriter()
      .bytes(92, ProtoWriter().integer(1, count).integer(2, size).bytes(3, packed(dims)).bytes(4, packed(order)).str())
      .str();
}

// Axes of a mesh of its own, whose sizes these are.
std::string mesh_axes(const std::vector<int64_t>& sizes, const std::vector<std::string>& axes) {
  ProtoWriter mesh, message;
  for (const int64_t size : sizes) mesh.bytes(1, ProtoWriter().bytes(1, "a").integer(2, size).str());
  message.bytes(1, mesh.str());
  for (const std::string& axis : axes) message.bytes(2, axis);
  return ProtoWriter().bytes(93, message.str()).str();
}

std::string axis(int64_t index) { return ProtoWriter().integer(1, index).str(); }
std::string part(int64_t index, int64_t before, int64_t size) {
  return ProtoWriter().integer(1, index).bytes(2, ProtoWriter().integer(1, before).integer(2, size).str()).str();
}

std::string pairs(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  std::string more;
  for (const auto& [from, to] : pairs)
    more += ProtoWriter().bytes(52, ProtoWriter().integer(1, from).integer(2, to).str()).str();
  return more;
}

TEST(Axes, AreFoundInEveryForm) {
  std::vector<std::pair<int64_t, int64_t>> shard_ring;
  for (int64_t d = 0; d < 16; ++d) shard_ring.emplace_back(d, d / 8 * 8 + (d + 2) % 8);
  const struct {
    const char* what;
    std::string more, want;
  } kCases[] = {
      {"all", "", "replicate x shard x tensor"},
      {"neighbours", explicit_groups({{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {15, 14}}), "tensor"},
      {"halves", explicit_groups({{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}), "shard"},
      {"over both", explicit_groups({{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7, 9, 11, 13, 15}}), "replicate x shard"},
      {"one wrong member", explicit_groups({{0, 2, 4, 7}, {1, 3, 5, 6}, {8, 10, 12, 14}, {9, 11, 13, 15}}), "?"},
      {"one differs from the others", explicit_groups({{0, 1}, {2, 4}}), "?"},
      {"half of an axis", explicit_groups({{0, 2}, {4, 6}, {8, 10}, {12, 14}}), "?"},
      {"a member twice", explicit_groups({{0, 1, 1, 0}}), "?"},
      {"groups of different sizes", explicit_groups({{0, 1}, {2}}), "?"},
      {"a device beyond the mesh", explicit_groups({{0, 99}}), "?"},
      {"iota, the last dimension", iota(8, 2, {16}, {0}), "tensor"},
      {"iota, the first dimension", iota(8, 2, {2, 8}, {1, 0}), "replicate"},
      {"iota, the middle", iota(4, 4, {2, 4, 2}, {0, 2, 1}), "shard"},
      {"iota, the outer two in another order", iota(2, 8, {2, 4, 2}, {2, 1, 0}), "replicate x shard"},
      {"iota that is no permutation", iota(4, 4, {4, 4}, {0, 0}), "?"},
      {"iota of too few", iota(4, 4, {4, 3}, {0, 1}), "?"},
      {"iota of far too many", iota(int64_t{1} << 40, int64_t{1} << 40, {int64_t{1} << 40, int64_t{1} << 40}, {0, 1}), "?"},
      {"mesh axes", mesh_axes({2, 4, 2}, {axis(1)}), "shard"},
      {"mesh axes, two", mesh_axes({2, 4, 2}, {axis(0), axis(2)}), "replicate x tensor"},
      {"a flat mesh, a part of its axis", mesh_axes({16}, {part(0, 2, 4)}), "shard"},
      {"a flat mesh, two parts", mesh_axes({16}, {part(0, 8, 2), part(0, 1, 2)}), "replicate x tensor"},
      {"a part that is half an axis", mesh_axes({16}, {part(0, 2, 2)}), "?"},
  };
  for (const auto& c : kCases) EXPECT_EQ(axes("all-gather", c.more), c.want) << c.what;
  EXPECT_EQ(axes("collective-permute", pairs(shard_ring)), "shard");
  EXPECT_EQ(axes("collective-permute", pairs({{0, 1}, {2, 3}})), "tensor");
  EXPECT_EQ(axes("collective-permute", pairs({{0, 3}})), "shard x tensor");
  EXPECT_EQ(axes("collective-permute", pairs({{0, 16}})), "?");
  EXPECT_EQ(axes("all-reduce", "", {{"a", 8}}), "?");  // another number of devices
}

TEST(Axes, RefusePartsThatDoNotDivide) {
  for (const auto& more : {mesh_axes({16}, {part(0, 3, 4)}), mesh_axes({16}, {part(0, 2, 4), part(0, 4, 2)})})
    EXPECT_THROW(axes("all-gather", more), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::compiled
