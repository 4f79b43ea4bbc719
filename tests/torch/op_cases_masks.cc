// Cases of masks and histograms. What gives as many elements as the data says is in data_dependent_test.cc.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const Options kOfFloats = {.dtypes = kFloats};
const Options kSome = {.dtypes = kFew};

TensorSpec mask(std::vector<int64_t> bits, Shape dims = {}) {
  at::Tensor t = at::tensor(bits, at::kLong).to(at::kBool);
  return given(dims.empty() ? t : t.reshape(dims));
}
TensorSpec no_mask(Shape dims) { return given(at::zeros(dims, at::kBool)); }
TensorSpec byte_mask(std::vector<int64_t> bits) { return given(at::tensor(bits, at::kLong).to(at::kByte)); }
TensorSpec three_of_six() { return mask({1, 0, 0, 1, 1, 0}, {2, 3}); }

const bool masks = add_cases({
    {"aten::nonzero_static", {x(3, 5), 9}},
    {"aten::nonzero_static", {x(3, 5), 20, -7}, kSome},
    {"aten::nonzero_static", {x(2, 3, 2).special(), 4}, kOfFloats},
    {"aten::nonzero_static", {x(7), 0}, kSome},
    {"aten::nonzero_static", {scalar(), 2}, kSome},
    {"aten::nonzero_static", {x(0, 3), 2, 5}, kSome},
    {"aten::nonzero_static", {x(3), -1}, kSome},
    {"aten::masked_scatter", {x(2, 3), three_of_six(), y(3)}},
    {"aten::masked_scatter", {x(2, 3), three_of_six(), y(5, 2)}, kSome},
    {"aten::masked_scatter", {x(2, 3), mask({1, 0, 1}), y(4)}, kSome},
    {"aten::masked_scatter", {x(3), mask({1, 0, 0, 1, 1, 0}, {2, 3}), y(3)}, kSome},
    {"aten::masked_scatter", {x(2, 3), three_of_six(), y(2)}, kSome},
    {"aten::masked_scatter", {x(2, 3), no_mask({2, 3}), y(0)}, kSome},
    {"aten::masked_scatter", {x(2, 3), three_of_six(), y(3).of(at::kShort)}, kSome},
    {"aten::masked_scatter", {x(2, 3), x(2, 3).of(at::kInt), y(6)}, kSome},
    {"aten::masked_scatter_backward", {x(2, 3), three_of_six(), ints(4)}, kOfFloats},
    {"aten::masked_scatter_backward", {x(2, 3), three_of_six(), ints(3)}, kOfFloats},
    {"aten::masked_scatter_backward", {x(2, 3), mask({1, 0, 1}), ints(2, 3)}, kOfFloats},
});

// self[.., mask, ..] = values.
std::vector<OpCase> put_cases() {
  std::vector<OpCase> cases;
  struct Put {
    Shape self;
    std::vector<Arg> indices;
    Shape values;
  };
  const Put puts[] = {
      {{4, 5}, {mask({1, 0, 1, 1})}, {3, 5}},
      {{4, 5}, {mask({1, 0, 1, 1})}, {1, 5}},
      {{4, 5}, {mask({1, 0, 1, 1})}, {3, 1}},
      {{4, 5}, {mask({1, 0, 1, 1})}, {5}},
      {{4, 5}, {none, mask({0, 0, 1, 1, 0})}, {4, 2}},
      {{4, 5}, {none, mask({0, 0, 1, 1, 0})}, {2}},
      {{2, 3, 2}, {three_of_six()}, {3, 2}},
      {{2, 2, 3}, {none, three_of_six()}, {2, 3}},
      {{2, 3}, {three_of_six()}, {3}},
      {{2, 3}, {three_of_six()}, {}},
      {{2, 3}, {no_mask({2, 3})}, {0}},
      {{4, 5}, {byte_mask({1, 0, 1, 1})}, {3, 5}},
      {{4, 5}, {mask({1, 0, 1, 1})}, {2, 5}},        // another number of true elements
      {{4, 5}, {mask({1, 0, 1, 1})}, {2, 3, 5}},     // too many dimensions
      {{4, 5}, {mask({1, 0, 1, 1, 0})}, {3, 5}},     // another shape
      {{4}, {mask({1, 0, 1, 1}, {4, 1})}, {3}},      // too many indices
  };
  for (const Put& p : puts)
    for (bool accumulate : {false, true}) {
      Options options = p.values.size() == 2 && p.values[0] == 3 && p.values[1] == 5 ? Options{} : kSome;
      if (accumulate) std::erase(options.dtypes, at::kBool);
      cases.push_back({"aten::index_put", {tensor(0, p.self), tensors(p.indices), tensor(1, p.values), accumulate}, options});
      cases.push_back({"aten::_index_put_impl", {tensor(0, p.self), tensors(p.indices), tensor(1, p.values), accumulate, true}, {.dtypes = kFloat}});
    }
  return cases;
}
const bool puts = add_cases(put_cases());

const bool histograms = add_cases({
    {"aten::histc", {x(40)}, kOfFloats},
    {"aten::histc", {x(40)}, {.dtypes = {at::kLong}}},
    {"aten::histc", {x(40), 7, -1, 2}, kOfFloats},
    {"aten::histc", {x(40), 10, -3.5, 3.5}, kOfFloats},
    {"aten::histc", {x(4, 10), 5, 0, 0}, kOfFloats},
    {"aten::histc", {given([](at::ScalarType t) { return at::tensor({0.0, 1.0, 2.0, 3.0, 4.0, 4.0}, at::kDouble).to(t); }), 4, 0, 4}, kOfFloats},
    {"aten::histc", {given([](at::ScalarType t) { return at::full({3}, 2, t); }), 3}, kOfFloats},
    {"aten::histc", {x(20).special(), 4, -2, 2}, kOfFloats},
    {"aten::histc", {x(20).special(), 4}, kOfFloats},
    {"aten::histc", {x(0), 3}, kOfFloats},
    {"aten::histc", {x(5), 0}, kOfFloats},
    {"aten::histc", {x(5), 3, 2, 1}, kOfFloats},
});

}  // namespace

}  // namespace flambeau::op_test
