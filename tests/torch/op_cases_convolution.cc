// Cases of convolutions and their gradients.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

// Everything but the tensors: stride, padding, dilation, transposed, output padding, groups.
struct Geometry {
  Shape stride, padding, dilation;
  bool transposed = false;
  Shape output_padding = {0};
  int64_t groups = 1;

  std::vector<Arg> after(std::vector<Arg> tensors) const {
    for (const Arg& a : {Arg(stride), Arg(padding), Arg(dilation), Arg(transposed), Arg(output_padding), Arg(groups)})
      tensors.push_back(a);
    return tensors;
  }
};

// Shapes of one convolution.
struct Scene {
  Shape input, weight, output;
  Geometry geometry;
  int64_t features() const { return output[1]; }
};

const Scene kScenes[] = {
    {{2, 3, 7}, {4, 3, 3}, {2, 4, 5}, {{1}, {0}, {1}}},
    {{2, 3, 8}, {4, 3, 3}, {2, 4, 4}, {{2}, {1}, {1}}},  // the stride does not divide: a last column is not read
    {{2, 3, 5, 6}, {4, 3, 3, 2}, {2, 4, 5, 7}, {{1, 1}, {1, 1}, {1, 1}}},
    {{2, 3, 9, 8}, {4, 3, 3, 3}, {2, 4, 5, 2}, {{2, 3}, {1, 0}, {1, 2}}},
    {{2, 4, 6, 5}, {6, 2, 3, 3}, {2, 6, 4, 3}, {{1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 2}},
    {{2, 3, 6, 6},
     {6, 1, 3, 3},
     {2, 6, 3, 3},
     {{2, 2}, {1, 1}, {1, 1}, false, {0, 0}, 3}},                          // depthwise, two features a channel
    {{1, 3, 4, 4}, {2, 3, 1, 1}, {1, 2, 8, 8}, {{1, 1}, {2, 2}, {1, 1}}},  // padding beyond the kernel
    {{1, 2, 4, 5, 4}, {3, 2, 2, 3, 2}, {1, 3, 3, 3, 2}, {{1, 2, 2}, {0, 1, 0}, {1, 1, 1}}},
    {{2, 3, 5}, {3, 4, 3}, {2, 4, 7}, {{1}, {0}, {1}, true}},
    {{2, 3, 5, 4}, {3, 4, 3, 2}, {2, 4, 10, 8}, {{2, 2}, {1, 1}, {1, 2}, true, {1, 1}}},
    {{2, 4, 3, 3}, {4, 3, 3, 3}, {2, 6, 6, 6}, {{2, 2}, {1, 1}, {1, 1}, true, {1, 1}, 2}},
    {{1, 2, 3, 3}, {2, 2, 2, 2}, {1, 2, 6, 5}, {{1, 1}, {0, 0}, {2, 2}, true, {1, 0}}},  // output padding beyond the stride
    {{1, 2, 3, 3}, {2, 2, 2, 2}, {1, 2, 2, 2}, {{1, 1}, {1, 1}, {1, 1}, true, {0, 0}}},  // padding that cuts
    {{1, 2, 2, 3, 2}, {2, 3, 2, 2, 2}, {1, 3, 4, 6, 4}, {{2, 2, 2}, {0, 0, 0}, {1, 1, 1}, true, {0, 0, 0}}},
};

// Sums of products near 9 that cancel, in another order; float16 and bfloat16 are rounded once here, where the CPU adds the
// bias after a first rounding.
const Options kConvolutions = {.dtypes = kFloats,
                               .tolerances = {{at::kHalf, 1e-3, 2e-2, "a unit in the last place of the terms"},
                                              {at::kBFloat16, 1.6e-2, 1.3e-1, "as float16"},
                                              {at::kFloat, 1.3e-6, 3e-5, "sums in another order"}}};


OpCase forward_case(const std::string& op, const Scene& s, Arg bias, const Options& options) {
  return {op, s.geometry.after({tensor(0, s.input), tensor(1, s.weight), std::move(bias)}), options};
}

OpCase backward_case(const Scene& s, const Arg& mask, const Options& options) {
  std::vector<Arg> args{tensor(0, s.output), tensor(1, s.input), tensor(2, s.weight), ints(s.features())};
  args = s.geometry.after(std::move(args));
  args.push_back(mask);
  return {"aten::convolution_backward", args, options};
}

// The CPU gives gradients that the mask does not ask for.
std::vector<at::Tensor> masked_backward(const std::vector<c10::IValue>& a) {
  c10::Stack stack(a);
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "").callBoxed(&stack);
  auto mask = a[10].toBoolList();
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < 3; ++i) out.push_back(mask[i] ? stack[i].toTensor() : at::Tensor());
  return out;
}

std::vector<OpCase> convolution_cases() {
  std::vector<OpCase> cases;
  for (size_t i = 0; i < std::size(kScenes); ++i) {
    Scene s = kScenes[i];
    Options options = kConvolutions;
    if (i != 2 && i != 4 && i != 9) options.dtypes = kFloat;
    cases.push_back(forward_case("aten::convolution", s, tensor(2, Shape{s.features()}), options));
    cases.push_back(backward_case(s, list(true, true, true), options));
    if (i % 4 == 0)
      cases.push_back(
          forward_case("aten::convolution", s, none, {.dtypes = kFloat, .tolerances = kConvolutions.tolerances}));
    s.input[0] = s.output[0] = 0;
    cases.push_back(forward_case("aten::convolution", s, tensor(2, Shape{s.features()}), {.dtypes = kFloat}));
    cases.push_back(backward_case(s, list(true, true, true), {.dtypes = kFloat}));
  }
  for (const Arg& mask : {list(true, false, false), list(false, true, false), list(false, false, true)})
    for (size_t i : {2, 9})
      cases.push_back(backward_case(kScenes[i], mask, {.dtypes = kFloat, .reference = masked_backward}));
  cases.push_back({"aten::convolution", Geometry{{1, 1}, {1, 1}, {1, 1}}.after({x(2, 3, 5, 5), y(4, 3, 3, 3), z(4)}),
                   {.dtypes = kIntegers}});
  cases.push_back(
      {"aten::convolution", Geometry{{1}, {1}, {1}}.after({x(2, 3, 5, 5), y(4, 3, 3, 3), none}), {.dtypes = kFloat}});
  return cases;
}
const bool convolutions = add_cases(convolution_cases());

std::vector<OpCase> refused_cases() {
  std::vector<OpCase> cases;
  auto refused = [&](Shape input, Shape weight, Arg bias, const Geometry& g) {
    cases.push_back({"aten::convolution",
                     g.after({tensor(0, std::move(input)), tensor(1, std::move(weight)), std::move(bias)}),
                     {.dtypes = kFloat}});
  };
  const Geometry plain{{1, 1}, {0, 0}, {1, 1}, false, {0, 0}}, transposed{{1, 1}, {0, 0}, {1, 1}, true, {0, 0}};
  auto changed = [](Geometry g, auto change) {
    change(g);
    return g;
  };
  refused({1, 2, 4, 4}, {2, 3, 3, 3}, none, plain);                 // channels
  refused({1, 2, 4, 4}, {3, 2, 3, 3}, none, transposed);
  refused({1, 2, 4, 4}, {2, 2, 6, 6}, none, plain);                 // a kernel that is too large
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, z(3), plain);                 // bias
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, z(3), transposed);
  refused({2, 4, 4}, {2, 2, 3, 3}, none, plain);                    // ranks
  refused({1, 2, 4, 4}, {2, 2}, none, plain);
  refused({1, 2, 4, 4}, {3, 1, 3, 3}, none, changed(plain, [](Geometry& g) { g.groups = 2; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(plain, [](Geometry& g) { g.groups = 4; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(plain, [](Geometry& g) { g.groups = 0; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(plain, [](Geometry& g) { g.padding = {-1, 0}; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(plain, [](Geometry& g) { g.stride = {0, 1}; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(plain, [](Geometry& g) { g.dilation = {0, 1}; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(plain, [](Geometry& g) { g.stride = {1, 1, 1}; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(transposed, [](Geometry& g) { g.output_padding = {1, 0}; }));
  refused({1, 2, 4, 4}, {2, 2, 3, 3}, none, changed(transposed, [](Geometry& g) { g.padding = {3, 3}; }));
  cases.push_back(
      {"aten::convolution", plain.after({x(1, 2, 4, 4), y(2, 2, 3, 3).of(at::kDouble), none}), {.dtypes = kFloat}});
  cases.push_back(
      {"aten::convolution", plain.after({x(1, 2, 4, 4), y(2, 2, 3, 3), none}), {.dtypes = {at::kBool, at::kComplexFloat}}});
  std::vector<Arg> wrong = plain.after({x(1, 4, 3, 2), y(1, 3, 4, 4), z(4, 3, 3, 3), ints(4)});
  wrong.push_back(list(true, true, true));
  cases.push_back({"aten::convolution_backward", wrong, {.dtypes = kFloat}});
  return cases;
}
const bool refusals = add_cases(refused_cases());

// What aten::_convolution ends in on a device of a plugin; the CPU calls its own kernels there.
std::vector<at::Tensor> ending_in_convolution(const std::vector<c10::IValue>& a) {
  return {at::convolution(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toIntVector(), a[4].toIntVector(),
                          a[5].toIntVector(), a[6].toBool(), a[7].toIntVector(), a[8].toInt())};
}
std::vector<at::Tensor> ending_in_backward(const std::vector<c10::IValue>& a) {
  auto mask = a[9].toBoolList();
  auto [dx, dw, db] = at::convolution_backward(
      a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), at::IntArrayRef{a[0].toTensor().size(1)}, a[3].toIntVector(),
      a[4].toIntVector(), a[5].toIntVector(), a[6].toBool(), a[7].toIntVector(), a[8].toInt(), {mask[0], mask[1], mask[2]});
  return {dx, dw, db};
}

std::vector<OpCase> overrideable_cases() {
  std::vector<OpCase> cases;
  Options forward = kConvolutions, backward = kConvolutions;
  forward.dtypes = backward.dtypes = kFloat;
  forward.reference = ending_in_convolution;
  backward.reference = ending_in_backward;
  for (size_t i : {2, 9}) {
    const Scene& s = kScenes[i];
    cases.push_back(forward_case("aten::convolution_overrideable", s, tensor(2, Shape{s.features()}), forward));
    std::vector<Arg> args = s.geometry.after({tensor(0, s.output), tensor(1, s.input), tensor(2, s.weight)});
    args.push_back(list(true, true, true));
    cases.push_back({"aten::convolution_backward_overrideable", args, backward});
  }
  return cases;
}
const bool overrideable = add_cases(overrideable_cases());

}  // namespace

}  // namespace flambeau::op_test
