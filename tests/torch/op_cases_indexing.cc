// Cases of indexing, scattering, sorting and random ops.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const Options kOfFloats = {.dtypes = kFloats};
const Options kSome = {.dtypes = kFew};
const Options kOfNumbers = {.dtypes = kNumbers};

TensorSpec at_places(std::initializer_list<int64_t> places, Shape dims = {}) {
  at::Tensor t = at::tensor(std::vector<int64_t>(places), at::kLong);
  return given(dims.empty() ? t : t.reshape(dims));
}

TensorSpec mask(std::initializer_list<int64_t> bits) {
  return given(at::tensor(std::vector<int64_t>(bits), at::kLong).to(at::kBool));
}

// ---- reading
// --------------------------------------------------------------------------------------------------------------------

const bool reading = add_cases({
    {"aten::index_select", {x(4, 5), 1, index(5, {3})}},
    {"aten::index_select", {x(4, 5, 2), -3, index(4, {7}).of(at::kInt)}, kSome},
    {"aten::index_select", {x(4, 5), 0, at_places({1, 4})}, kSome},
    {"aten::index_select", {x(4, 5), 0, at_places({1, -1})}, kSome},
    {"aten::index_select", {x(4), 0, index(4, {})}, kSome},
    {"aten::index_select", {scalar(), 0, at_places({0})}, kSome},
    {"aten::index_select", {x(4, 5), 0, index(4, {2, 2})}, kSome},
    {"aten::index_select", {x(4, 5), 2, index(4, {2})}, kSome},
    {"aten::index_select", {x(4, 5), 0, index(4, {0})}, kSome},
    {"aten::embedding", {x(7, 4), index(7, {2, 3})}, kOfFloats},
    {"aten::embedding", {x(7, 4), index(7, {5}).of(at::kInt), 2, true}, kOfFloats},
    {"aten::embedding", {x(7, 4), index(7, {})}, kOfFloats},
    {"aten::embedding", {x(7, 4), at_places({0, 7})}, kOfFloats},
    {"aten::embedding_dense_backward", {x(2, 3, 4), index(5, {2, 3}), 5, -1, false}, kOfFloats},
    {"aten::embedding_dense_backward", {x(6, 4), at_places({0, 2, 2, 1, 2, 4}), 5, 2, false}, kOfFloats},
    {"aten::embedding_dense_backward",
     {x(6, 4), at_places({0, 2, 2, 1, 2, 4}), 5, -1, true},
     {.dtypes = {at::kFloat, at::kDouble}}},
    {"aten::gather", {x(3, 5), 1, index(5, {3, 2})}},
    {"aten::gather", {x(3, 5), 0, index(3, {7, 4})}},
    {"aten::gather", {x(2, 3, 5), -2, index(3, {1, 4, 5})}, kSome},
    {"aten::gather", {x(3, 5), 1, index(5, {4, 2})}, kSome},
    {"aten::gather", {x(3, 5), 1, at_places({0, 5}, {1, 2})}, kSome},
    {"aten::gather", {x(3, 5), 1, index(5, {3})}, kSome},
    {"aten::gather", {x(3, 5), 1, index(5, {3, 2}).of(at::kFloat)}, kSome},
    {"aten::gather", {x(3, 5), 1, index(5, {0, 2})}, kSome},
    {"aten::gather", {scalar(), 0, at_places({0, 0, 0})}, kSome},
    {"aten::take", {x(3, 5), index(15, {2, 4})}},
    {"aten::take", {x(3, 5), at_places({-1, -15, 3})}, kSome},
    {"aten::take", {x(3, 5), at_places({15})}, kSome},
});

std::vector<OpCase> numpy_cases() {
  std::vector<OpCase> cases;
  struct Reading {
    Shape self;
    std::vector<Arg> indices;
    Shape result;
  };
  const Reading readings[] = {
      {{4, 5}, {at_places({0, 3, 3})}, {3, 5}},
      {{4, 5}, {none, at_places({-1, 0, 2, -5})}, {4, 4}},
      {{4, 5}, {at_places({0, 3}), at_places({4, -5})}, {2}},
      {{4, 5, 6}, {at_places({0, 3}), none, at_places({4, 2})}, {2, 5}},
      {{4, 5, 6}, {none, at_places({1, 3}, {2, 1}), at_places({4, 2, 0})}, {4, 2, 3}},
      {{2, 4, 5, 3}, {none, at_places({1, 3}), at_places({4, 2})}, {2, 2, 3}},
      {{2, 4, 5, 3}, {at_places({1, 0}), none, at_places({4, 2}), none}, {2, 4, 3}},
      {{4, 5}, {given(at::scalar_tensor(2, at::kLong))}, {5}},
      {{4, 5}, {at_places({0, 4})}, {2, 5}},         // out of range
      {{4, 5}, {at_places({0, -5})}, {2, 5}},        // out of range
      {{4}, {at_places({0}), at_places({0})}, {1}},  // too many
      {{4, 5}, {at_places({0, 1}), at_places({0, 1, 2})}, {2}},
  };
  for (const Reading& r : readings) {
    Arg self = tensor(0, r.self), indices = tensors(r.indices);
    cases.push_back({"aten::index.Tensor", {self, indices}});
    cases.push_back({"aten::_unsafe_index.Tensor", {self, indices}, kSome});
    cases.push_back({"aten::index_put", {self, indices, tensor(1, r.result), true}, kOfNumbers});
    cases.push_back({"aten::index_put", {self, indices, tensor(1, Shape{}), true}, kOfNumbers});
  }
  // Each place once: the order of writes does not matter.
  const Reading writings[] = {
      {{4, 5}, {at_places({0, 3})}, {2, 5}},
      {{4, 5}, {none, at_places({-1, 0, 2})}, {4, 3}},
      {{4, 5, 6}, {at_places({0, 3}), none, at_places({4, 2})}, {2, 5}},
      {{4, 5}, {mask({1, 0, 1, 1})}, {}},
      {{4, 5}, {none, mask({1, 0, 1, 1, 0})}, {1}},
  };
  for (const Reading& w : writings) {
    Arg self = tensor(0, w.self), indices = tensors(w.indices);
    cases.push_back({"aten::index_put", {self, indices, tensor(1, w.result), false}});
    cases.push_back({"aten::_unsafe_index_put", {self, indices, tensor(1, Shape{}), false}, kSome});
    cases.push_back({"aten::_index_put_impl", {self, indices, tensor(1, w.result), false, true}, kSome});
  }
  cases.push_back({"aten::index_put", {x(4, 5), tensors({at_places({0, 3})}), y(3, 5), false}, kSome});
  cases.push_back({"aten::index_put", {x(4, 5), tensors({at_places({0, 3})}), y(2, 5).of(at::kShort), false}, kSome});
  return cases;
}
const bool numpy = add_cases(numpy_cases());

// ---- writing
// --------------------------------------------------------------------------------------------------------------------

// Distinct along dim 1, at most 8 and more than 8 of a row: the two ways of writing.
TensorSpec distinct_places() { return at_places({2, 0, 4, 1, 3, 0}, {3, 2}); }
TensorSpec many_distinct_places() { return given(at::stack({at::randperm(12), at::randperm(12)}).slice(1, 0, 10)); }

const Options kSums = {
    .dtypes = kNumbers,
    .tolerances = {{at::kHalf, 1e-2, 1e-2, "sums are rounded once"}, {at::kBFloat16, 3e-2, 6e-2, "sums are rounded once"}}};

std::vector<OpCase> scatter_cases() {
  std::vector<OpCase> cases;
  cases.push_back({"aten::scatter.src", {x(3, 5), 1, distinct_places(), y(3, 2)}});
  cases.push_back({"aten::scatter.src", {x(4, 5), 1, distinct_places(), y(3, 4)}});
  cases.push_back({"aten::scatter.src", {x(2, 12), 1, many_distinct_places(), y(2, 10)}});
  cases.push_back({"aten::scatter.src", {x(2, 12), -1, many_distinct_places(), y(3, 11)}, kSome});
  cases.push_back({"aten::scatter.src", {x(3, 5), 1, distinct_places(), y(3, 1)}, kSome});
  cases.push_back({"aten::scatter.src", {x(3, 4), 1, distinct_places(), y(3, 2)}, kSome});
  cases.push_back({"aten::scatter.src", {x(3, 5), 1, distinct_places(), y(3, 2).of(at::kShort)}, kSome});
  cases.push_back({"aten::scatter.src", {x(3, 5), 1, index(5, {0, 2}), y(3, 2)}, kSome});
  cases.push_back({"aten::scatter.src", {scalar(), 0, at_places({0}), y(1)}, kSome});
  cases.push_back({"aten::scatter.value", {x(3, 5), 1, index(5, {3, 2}), 2}});
  cases.push_back({"aten::scatter.value", {x(3, 5), 0, index(3, {2, 4}), -1.5}, kOfFloats});
  cases.push_back({"aten::scatter.value", {x(2, 12), 1, index(12, {2, 10}), 3}, kSome});
  for (const char* reduce : {"add", "multiply"}) {
    cases.push_back({"aten::scatter.reduce", {x(3, 5), 1, index(5, {3, 4}), y(3, 4), reduce}, kSums});
    cases.push_back(
        {"aten::scatter.reduce", {x(2, 12), 1, index(12, {2, 10}), y(2, 10), reduce}, {.dtypes = {at::kInt, at::kFloat}}});
    cases.push_back({"aten::scatter.value_reduce", {x(3, 5), 1, index(5, {3, 4}), 2, reduce}, kSums});
  }
  cases.push_back({"aten::scatter.reduce", {x(3, 5), 1, index(5, {3, 4}), y(3, 4), "max"}, kSome});
  cases.push_back({"aten::scatter_add", {x(3, 5), 1, index(5, {3, 4}), y(3, 4)}, kSums});
  cases.push_back({"aten::scatter_add", {x(3, 5), 1, index(5, {2, 20}), y(2, 20)}, kSums});
  cases.push_back({"aten::scatter_add", {x(3, 5), 0, index(3, {9, 4}), y(9, 5)}, kSums});
  cases.push_back({"aten::scatter_add", {x(3, 5), 1, at_places({5}, {1, 1}), y(3, 4)}, kSums});
  for (const char* reduce : {"sum", "prod", "mean", "amax", "amin"})
    for (bool include_self : {true, false}) {
      cases.push_back({"aten::scatter_reduce.two", {x(3, 5), 1, index(5, {3, 4}), y(3, 4), reduce, include_self}, kSums});
      cases.push_back({"aten::scatter_reduce.two", {x(3, 5), 1, index(5, {2, 12}), y(2, 12), reduce, include_self}, kSums});
      Options options = kSums;
      options.dtypes = {at::kInt, at::kFloat, at::kDouble};
      cases.push_back({"aten::index_reduce", {x(4, 5), 0, index(4, {6}), y(6, 5), reduce, include_self}, options});
    }
  cases.push_back({"aten::scatter_reduce.two", {x(3, 5), 1, index(5, {3, 4}), y(3, 4), "median"}, kSome});
  return cases;
}
const bool scatters = add_cases(scatter_cases());

const bool rows = add_cases({
    {"aten::index_add", {x(4, 5), 0, index(4, {6}), y(6, 5)}, kSums},
    {"aten::index_add", {x(4, 5), 1, index(5, {3}), y(4, 3), 2}, kSums},
    {"aten::index_add", {scalar(), 0, at_places({0}), scalar(1)}, kSums},
    {"aten::index_add", {x(4, 5), 0, index(4, {6}), y(5, 5)}, kSome},
    {"aten::index_add", {x(4, 5), 0, at_places({4}), y(1, 5)}, kSome},
    {"aten::index_copy", {x(4, 5), 0, at_places({3, 0}), y(2, 5)}},
    {"aten::index_copy", {x(4, 5), -1, at_places({3, 0, 1}), y(4, 3)}, kSome},
    {"aten::index_copy", {x(4, 5), 0, at_places({3, 0}), y(3, 5)}, kSome},
    {"aten::index_fill.int_Scalar", {x(4, 5), 1, index(5, {3}), 2}},
    {"aten::index_fill.int_Scalar", {x(4, 5), 0, at_places({-1, 1}), 1}, kSome},
    {"aten::index_fill.int_Tensor", {x(4, 5), 1, index(5, {3}), scalar(1)}},
    {"aten::index_fill.int_Tensor", {x(4, 5), 1, index(5, {3}), y(1)}, kSome},
    {"aten::put", {x(3, 5), at_places({-1, 0, 7}), y(3), false}},
    {"aten::put", {x(3, 5), at_places({-1, 0, 14, 7}, {2, 2}), y(4), true}, kOfNumbers},
    {"aten::put", {x(3, 5), at_places({1}), y(2), false}, kSome},
});

// ---- sorting
// --------------------------------------------------------------------------------------------------------------------

std::vector<OpCase> sorting_cases() {
  std::vector<OpCase> cases;
  for (bool descending : {false, true}) {
    cases.push_back({"aten::sort.stable", {x(3, 20), true, -1, descending}});
    cases.push_back({"aten::sort.stable", {x(6, 5).special(), true, 0, descending}, kOfFloats});
    cases.push_back({"aten::sort", {x(3, 20).distinct(), 1, descending}, kOfNumbers});
    cases.push_back({"aten::topk", {x(3, 20).distinct(), 4, -1, descending, true}, kOfNumbers});
    cases.push_back({"aten::topk", {x(20, 2).distinct(), 15, 0, descending, true}, kOfNumbers});
    cases.push_back({"aten::topk", {x(4).distinct(), 4, 0, descending, true}, kOfNumbers});
    // Which of several equal ones is chosen is not specified, their values are.
    cases.push_back({"aten::topk", {x(4, 12).special(), 3, 1, descending, true}, {.dtypes = kFloats, .skip_outputs = {1}}});
    cases.push_back({"aten::topk", {x(4, 12), 8, 1, descending, true}, {.dtypes = kNumbers, .skip_outputs = {1}}});
  }
  cases.push_back({"aten::sort.stable", {scalar(), true, 0, false}, kSome});
  cases.push_back({"aten::sort.stable", {x(3, 4), true, 2, false}, kSome});
  cases.push_back({"aten::topk", {x(3, 4), 5, 1}, kSome});
  cases.push_back({"aten::topk", {x(3, 4), 0, 1}, kSome});
  cases.push_back({"aten::topk", {scalar(), 1}, kOfNumbers});
  cases.push_back({"aten::kthvalue", {x(3, 20).distinct(), 4, 1, false}, kOfNumbers});
  cases.push_back({"aten::kthvalue", {x(7, 3).distinct(), 7, 0, true}, kOfNumbers});
  cases.push_back({"aten::kthvalue", {x(3, 4), 5}, kSome});
  cases.push_back({"aten::median", {x(3, 4).distinct()}, kOfNumbers});
  cases.push_back({"aten::median", {x(3, 5).special()}, kOfFloats});
  cases.push_back({"aten::median.dim", {x(3, 20).distinct(), 1, false}, kOfNumbers});
  cases.push_back({"aten::median.dim", {x(7, 3).distinct(), 0, true}, kOfNumbers});
  cases.push_back({"aten::median.dim", {given(at::tensor({1.0, NAN, 0.0, NAN, 3.0})), 0, false}, {.dtypes = kFloat}});
  return cases;
}
const bool sorting = add_cases(sorting_cases());

// ---- random ops: what they draw is in random_test.cc
// ------------------------------------------------------------------------------

const Options kDrawn = {.dtypes = kFloats, .meta_only = true};
const Options kDrawnAll = {.dtypes = kAll, .meta_only = true};

const bool draws = add_cases({
    {"aten::uniform", {x(), -1.0, 2.0}, kDrawn},
    {"aten::uniform", {x(3), 2.0, 1.0}, kDrawn},
    {"aten::uniform", {x(3)}, {.dtypes = {at::kComplexFloat, at::kLong}, .meta_only = true}},
    {"aten::normal_functional", {x(), 1.0, 2.0}, kDrawn},
    {"aten::normal_functional", {x(3), 0.0, -1.0}, kDrawn},
    {"aten::normal_functional", {x(3)}, {.dtypes = {at::kComplexFloat, at::kLong}, .meta_only = true}},
    {"aten::normal.Tensor_Tensor", {x(3, 5), y(5).positive()}, kDrawn},
    {"aten::normal.Tensor_Tensor", {x(3, 5), given(at::tensor({1.0, 1.0, -1.0, 1.0, 1.0}))}, kDrawn},
    {"aten::normal.Tensor_float", {x(3, 5), 2.0}, kDrawn},
    {"aten::normal.float_Tensor", {1.0, x(3, 5).positive()}, kDrawn},
    {"aten::log_normal", {x(3, 5), 1.0, 2.0}, kDrawn},
    {"aten::log_normal", {x(3, 5), 1.0, 0.0}, kDrawn},
    {"aten::cauchy", {x(3, 5), 1.0, 2.0}, kDrawn},
    {"aten::exponential", {x(3, 5), 2.0}, kDrawn},
    {"aten::exponential", {x(3, 5), -2.0}, kDrawn},
    {"aten::geometric", {x(3, 5), 0.3}, {.dtypes = kNumbers, .meta_only = true}},
    {"aten::geometric", {x(3, 5), 1.0}, kDrawn},
    {"aten::bernoulli", {x(3, 5).range(0, 1)}, kDrawn},
    {"aten::bernoulli", {x(3, 5).range(1, 2)}, kDrawn},
    {"aten::bernoulli.p", {x(), 0.3}, kDrawnAll},
    {"aten::bernoulli.p", {x(3), 1.3}, kDrawn},
    {"aten::bernoulli.Tensor", {x(3, 5), y(3, 5).of(at::kFloat).range(0, 1)}, kDrawnAll},
    {"aten::native_dropout", {x(3, 5), 0.5, true}, kDrawn},
    {"aten::native_dropout", {x(3, 5), 0.5, false}, kOfFloats},
    {"aten::native_dropout", {x(3, 5), 0.0, true}, kOfFloats},
    {"aten::native_dropout", {x(3, 5), 1.0, true}, kOfFloats},
    {"aten::native_dropout", {x(3, 5), 1.5, true}, kDrawn},
    {"aten::native_dropout_backward", {x(3, 5), y(3, 5).of(at::kBool), 2.0}, kOfFloats},
    {"aten::random", {x()}, kDrawnAll},
    {"aten::random.to", {x(3, 5), 100}, {.dtypes = kNumbers, .meta_only = true}},
    {"aten::random.from", {x(3, 5), -5, 5}, {.dtypes = {at::kInt, at::kLong, at::kFloat, at::kByte}, .meta_only = true}},
    {"aten::random.from", {x(3, 5), 5, 5}, kDrawnAll},
    {"aten::random.from", {x(3, 5), 3, none}, {.dtypes = {at::kInt, at::kLong, at::kFloat}, .meta_only = true}},
    {"aten::randperm", {10}, {.dtypes = kFloat, .meta_only = true}},
    {"aten::randperm", {10, at::kInt}, {.dtypes = kFloat, .meta_only = true}},
    {"aten::randperm", {-1}, {.dtypes = kFloat, .meta_only = true}},
    {"aten::randperm.generator", {10, at::kLong}, {.dtypes = kFloat, .meta_only = true}},
    {"aten::multinomial", {x(3, 5).positive(), 2, false}, kDrawn},
    {"aten::multinomial", {x(5).positive(), 20, true}, kDrawn},
    {"aten::multinomial", {x(5).positive(), 6, false}, kDrawn},
    {"aten::multinomial", {x(5), 2, true}, kDrawn},
    {"aten::multinomial", {given(at::zeros({5})), 1, true}, kDrawn},
});

}  // namespace

}  // namespace flambeau::op_test
