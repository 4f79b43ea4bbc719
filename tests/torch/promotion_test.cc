// Type promotion against PyTorch's own tables, exhaustively.
#include <gtest/gtest.h>

#include <ATen/native/TypeProperties.h>
#include <c10/core/ScalarType.h>

#include "ops/promotion.h"

namespace flambeau {

namespace {

constexpr std::pair<at::ScalarType, DType> kTypes[] = {
    {at::kBool, DType::Pred},   {at::kByte, DType::U8},    {at::kChar, DType::S8},   {at::kShort, DType::S16},
    {at::kInt, DType::S32},     {at::kLong, DType::S64},   {at::kUInt16, DType::U16}, {at::kUInt32, DType::U32},
    {at::kUInt64, DType::U64},  {at::kHalf, DType::F16},   {at::kBFloat16, DType::BF16}, {at::kFloat, DType::F32},
    {at::kDouble, DType::F64},  {at::kComplexFloat, DType::C64}, {at::kComplexDouble, DType::C128},
    {at::kFloat8_e4m3fn, DType::F8E4M3FN}, {at::kFloat8_e5m2, DType::F8E5M2},
};

std::optional<DType> ours(at::ScalarType t) {
  for (auto [torch, dtype] : kTypes)
    if (torch == t) return dtype;
  return std::nullopt;
}

template <class F>
auto or_nothing(F f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string text(std::optional<DType> t) { return t ? std::string(torch_name(*t)) : "refused"; }

TEST(Promotion, OfTwoTypes) {
  for (auto [a, x] : kTypes)
    for (auto [b, y] : kTypes) {
      auto expected = or_nothing([&, a = a, b = b] { return ours(c10::promoteTypes(a, b)).value(); });
      auto got = or_nothing([&, x = x, y = y] { return ops::promote_types(x, y); });
      EXPECT_EQ(text(got), text(expected)) << torch_name(x) << " and " << torch_name(y);
    }
}

TEST(Promotion, CanCast) {
  for (auto [a, x] : kTypes)
    for (auto [b, y] : kTypes) EXPECT_EQ(ops::can_cast(x, y), c10::canCast(a, b)) << torch_name(x) << " to " << torch_name(y);
}

// Operands of every class: with dimensions, 0-dim, a wrapped number of every category.
struct Sample {
  at::Tensor tensor;
  ops::Operand operand;
};

std::vector<Sample> samples(hlo::Graph& graph) {
  std::vector<Sample> all;
  for (auto [t, dtype] : kTypes) {
    for (bool dims : {true, false}) {
      auto shape = dims ? std::vector<int64_t>{2} : std::vector<int64_t>{};
      all.push_back({at::empty(shape, t), {graph.add_parameter({dtype, shape}), false}});
    }
    if (t != at::kBool && t != at::kLong && t != at::kDouble && t != at::kComplexDouble) continue;
    at::Tensor number = at::empty({}, t);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    all.push_back({number, {graph.add_parameter({dtype, {}}), true}});
  }
  return all;
}

TEST(Promotion, OfOperands) {
  hlo::Graph graph;
  auto all = samples(graph);
  auto describe = [](const Sample& s) {
    return fmt::format("{}{}", torch_name(s.operand.value.dtype()), s.operand.wrapped ? " number" : s.tensor.dim() ? "" : " scalar");
  };
  for (const Sample& a : all)
    for (const Sample& b : all) {
      auto expected = or_nothing([&] { return ours(at::result_type(a.tensor, b.tensor)).value(); });
      auto got = or_nothing([&] { return ops::result_type({a.operand, b.operand}); });
      EXPECT_EQ(text(got), text(expected)) << describe(a) << " and " << describe(b);
    }
}

TEST(Promotion, OfThreeOperands) {
  hlo::Graph graph;
  auto all = samples(graph);
  for (const Sample& a : all)
    for (const Sample& b : all)
      for (const Sample& c : all) {
        auto expected = or_nothing([&] {
          at::native::ResultTypeState state;
          for (const Sample* s : {&a, &b, &c}) state = at::native::update_result_type_state(s->tensor, state);
          return ours(at::native::result_type(state)).value();
        });
        auto got = or_nothing([&] { return ops::result_type({a.operand, b.operand, c.operand}); });
        ASSERT_EQ(text(got), text(expected)) << a.operand.value.type().to_string() << b.operand.value.type().to_string()
                                             << c.operand.value.type().to_string();
      }
}

}  // namespace

}  // namespace flambeau
