// Cases of pooling, adaptive pooling and unpooling, and their gradients.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const Options kOfFloats = {.dtypes = kFloats};
const DTypes kSingleAndDouble = {at::kFloat, at::kDouble};
const DTypes kOrdered = {at::kByte, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
// The CPU adds up float16 and bfloat16 gradients in their own type.
const std::vector<Options::Wider> kStepwise = {{at::kHalf, 4e-3, 4e-3, "torch rounds each step"},
                                               {at::kBFloat16, 3e-2, 3e-2, "torch rounds each step"}};

// Kernel, stride, padding, dilation, ceil_mode over an input.
struct Scene {
  Shape input, size, stride, padding, dilation;
  bool ceil_mode = false;
};

const Scene kPlanes[] = {
    {{2, 3, 6, 5}, {2, 2}, {}, {0, 0}, {1, 1}},
    {{2, 3, 7, 8}, {3, 2}, {2, 1}, {1, 1}, {1, 1}},
    {{3, 7, 8}, {3}, {2}, {1}, {1}},                        // no batch; one number for both dimensions
    {{2, 3, 8, 9}, {3, 2}, {2, 3}, {1, 0}, {1, 2}, true},   // windows that reach beyond the padding
    {{1, 2, 5, 5}, {2, 2}, {3, 3}, {1, 1}, {1, 1}, true},   // elements that no window holds
    {{1, 2, 10, 9}, {9, 9}, {1, 1}, {4, 4}, {1, 1}},        // each element in many windows
    {{1, 1, 4, 4}, {4, 4}, {4, 4}, {0, 0}, {1, 1}},
    {{1, 2, 4, 4}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},         // fewer windows than an element could lie in
    {{1, 2, 2, 2}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {{1, 2, 4, 4}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {{0, 3, 6, 5}, {2, 2}, {}, {0, 0}, {1, 1}},
};
const Scene kVolumes[] = {
    {{2, 3, 4, 5, 6}, {2, 2, 2}, {}, {0, 0, 0}, {1, 1, 1}},
    {{1, 2, 5, 4, 6}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}, true},
    {{2, 5, 6, 5}, {2}, {1}, {1}, {2}},
};

// Few different numbers, so that windows have ties.
TensorSpec tied(const Shape& dims) {
  return given(
      [dims](at::ScalarType t) { return at::arange(c10::multiply_integers(dims)).mul(7).remainder(5).reshape(dims).to(t); });
}

std::vector<Arg> arguments(Arg first, const Scene& s, bool with_dilation) {
  std::vector<Arg> args{std::move(first), s.size, s.stride, s.padding};
  if (with_dilation) args.push_back(s.dilation);
  args.push_back(s.ceil_mode);
  return args;
}

at::Tensor distinct(const Shape& dims) {
  int64_t n = c10::multiply_integers(dims);
  return at::arange(n, at::kDouble).mul(37).remainder(static_cast<double>(n % 37 ? n : n + 1)).sub(20).reshape(dims);
}

// The gradient's shape and the indices are the forward pass's.
std::vector<OpCase> max_cases(const std::string& op, const Scene& s, bool all_dtypes, auto forward) {
  std::vector<OpCase> cases;
  cases.push_back({op, arguments(tensor(0, s.input), s, true), {.dtypes = all_dtypes ? kOrdered : kFloat}});
  cases.push_back({op, arguments(tied(s.input), s, true), {.dtypes = {at::kInt}}});
  cases.push_back({op, arguments(tensor(0, s.input).special(), s, true), {.dtypes = kFloat}});
  at::Tensor indices = std::get<1>(forward(distinct(s.input), s.size, s.stride, s.padding, s.dilation, s.ceil_mode));
  std::vector<Arg> args = arguments(given([s](at::ScalarType t) { return distinct(s.input).to(t); }), s, true);
  args.insert(args.begin(), tensor(1, indices.sizes().vec()));
  args.push_back(given(indices));
  if (s.stride.empty()) args[3] = s.size;
  cases.push_back({op + "_backward", args, {.dtypes = all_dtypes ? kFloats : kFloat, .tolerances = kStepwise}});
  return cases;
}

std::vector<OpCase> max_pool_cases() {
  std::vector<OpCase> cases;
  auto add = [&](const std::vector<OpCase>& more) { cases.insert(cases.end(), more.begin(), more.end()); };
  for (const Scene& s : kPlanes)
    add(max_cases("aten::max_pool2d_with_indices", s, &s < kPlanes + 2,
                  [](auto... a) { return at::max_pool2d_with_indices(a...); }));
  for (const Scene& s : kVolumes)
    add(max_cases("aten::max_pool3d_with_indices", s, &s == kVolumes,
                  [](auto... a) { return at::max_pool3d_with_indices(a...); }));
  for (const Scene& s :
       {Scene{{2, 3}, {2, 2}, {}, {0, 0}, {1, 1}}, Scene{{2, 3, 4, 4}, {2, 2, 2}, {}, {0, 0}, {1, 1}},
        Scene{{2, 3, 4, 4}, {0, 2}, {1}, {0, 0}, {1, 1}}, Scene{{2, 3, 4, 4}, {2, 2}, {0, 1}, {0, 0}, {1, 1}},
        Scene{{2, 3, 4, 4}, {2, 2}, {}, {2, 0}, {1, 1}}, Scene{{2, 3, 4, 4}, {2, 2}, {}, {-1, 0}, {1, 1}},
        Scene{{2, 3, 4, 4}, {2, 2}, {}, {0, 0}, {0, 1}}, Scene{{2, 3, 4, 4}, {5, 5}, {}, {0, 0}, {1, 1}},
        Scene{{2, 0, 4, 4}, {2, 2}, {}, {0, 0}, {1, 1}}})
    cases.push_back({"aten::max_pool2d_with_indices", arguments(tensor(0, s.input), s, true), {.dtypes = kFloat}});
  cases.push_back({"aten::max_pool2d_with_indices",
                   arguments(x(1, 1, 4, 4), kPlanes[0], true),
                   {.dtypes = {at::kBool, at::kComplexFloat}}});
  return cases;
}
const bool max_pools = add_cases(max_pool_cases());

std::vector<OpCase> average_cases(const std::string& op, const Scene& s, bool all_dtypes, auto forward) {
  const DTypes dtypes = all_dtypes ? DTypes{at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble} : kFloat;
  std::vector<OpCase> cases;
  for (bool include_pad : {true, false})
    for (std::optional<int64_t> divisor : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
      if (divisor && !include_pad) continue;
      auto with = [&](std::vector<Arg> args) {
        args.push_back(include_pad);
        args.push_back(divisor ? Arg(*divisor) : Arg(none));
        return args;
      };
      cases.push_back({op, with(arguments(tensor(0, s.input), s, false)), {.dtypes = dtypes}});
      Shape out = forward(at::zeros(s.input), s.size, s.stride, s.padding, s.ceil_mode, include_pad, divisor).sizes().vec();
      std::vector<Arg> args = with(arguments(tensor(1, s.input), s, false));
      args.insert(args.begin(), tensor(0, out));
      if (s.stride.empty()) args[3] = s.size;
      cases.push_back({op + "_backward", args, {.dtypes = all_dtypes ? kFloats : kFloat, .tolerances = kStepwise}});
    }
  return cases;
}

std::vector<OpCase> avg_pool_cases() {
  std::vector<OpCase> cases;
  auto add = [&](const std::vector<OpCase>& more) { cases.insert(cases.end(), more.begin(), more.end()); };
  for (const Scene& s : kPlanes)
    add(average_cases("aten::avg_pool2d", s, &s < kPlanes + 2, [](auto... a) { return at::avg_pool2d(a...); }));
  for (const Scene& s : kVolumes)
    add(average_cases("aten::avg_pool3d", s, &s == kVolumes, [](auto... a) { return at::avg_pool3d(a...); }));
  cases.push_back({"aten::avg_pool2d", {x(2, 3, 4, 4).special(), ints(2, 2)}, {.dtypes = kSingleAndDouble}});
  cases.push_back({"aten::avg_pool2d", {x(2, 3, 4, 4), ints(2, 2), ints(), ints(0), false, true, 0}, {.dtypes = kFloat}});
  cases.push_back({"aten::avg_pool2d", {x(2, 3, 4, 4), ints(2, 2), ints(), ints(2)}, {.dtypes = kFloat}});
  cases.push_back({"aten::avg_pool2d", {x(2, 3, 4, 4), ints(5, 5)}, {.dtypes = kFloat}});
  cases.push_back({"aten::avg_pool2d", {x(2, 3, 4, 4), ints(2, 2)}, {.dtypes = {at::kBool, at::kInt}}});
  return cases;
}
const bool avg_pools = add_cases(avg_pool_cases());

// ---- adaptive -----------------------------------------------------------------------------------------------------------

std::vector<OpCase> adaptive_cases(const std::string& dims, const std::vector<std::pair<Shape, Shape>>& scenes,
                                   auto max_forward) {
  std::vector<OpCase> cases;
  const std::string average = "aten::_adaptive_avg_pool" + dims, maximum = "aten::adaptive_max_pool" + dims;
  for (const auto& [input, size] : scenes) {
    Shape out = input;
    std::copy(size.begin(), size.end(), out.end() - static_cast<std::ptrdiff_t>(size.size()));
    cases.push_back({average, {tensor(0, input), size}, kOfFloats});
    cases.push_back(
        {average + "_backward", {tensor(0, out), tensor(1, input)}, {.dtypes = kFloats, .tolerances = kStepwise}});
    cases.push_back({maximum, {tensor(0, input), size}, kOfFloats});
    cases.push_back({maximum, {tied(input), size}, {.dtypes = kFloat}});
    cases.push_back({maximum, {tensor(0, input).special(), size}, {.dtypes = kSingleAndDouble}});
    at::Tensor indices = std::get<1>(max_forward(distinct(input), size));
    cases.push_back(
        {maximum + "_backward",
         {tensor(0, out), given([input = input](at::ScalarType t) { return distinct(input).to(t); }), given(indices)},
         {.dtypes = kFloats, .tolerances = kStepwise}});
  }
  return cases;
}
const bool adaptive_planes = add_cases(
    adaptive_cases("2d", {{{2, 3, 6, 8}, {3, 2}}, {{2, 3, 7, 5}, {3, 4}}, {{3, 5, 4}, {1, 1}}, {{2, 2, 3, 4}, {5, 4}}},
                   [](auto x, auto size) { return at::adaptive_max_pool2d(x, size); }));
const bool adaptive_volumes = add_cases(adaptive_cases("3d", {{{2, 3, 4, 6, 5}, {2, 4, 3}}, {{2, 4, 4, 4}, {2, 2, 4}}},
                                                       [](auto x, auto size) { return at::adaptive_max_pool3d(x, size); }));
const bool adaptive_refusals = add_cases({
    {"aten::_adaptive_avg_pool2d", {x(2, 3, 4, 4), ints(2)}, {.dtypes = kFloat}},
    {"aten::_adaptive_avg_pool2d", {x(3, 4), ints(2, 2)}, {.dtypes = kFloat}},
    {"aten::_adaptive_avg_pool2d", {x(2, 3, 0, 4), ints(2, 2)}, {.dtypes = kFloat}},
    {"aten::_adaptive_avg_pool2d", {x(0, 3, 4, 4), ints(2, 2)}, {.dtypes = kFloat}},
    {"aten::_adaptive_avg_pool2d", {x(2, 3, 4, 4), ints(2, 2)}, {.dtypes = {at::kLong}}},
    {"aten::adaptive_max_pool2d", {x(2, 3, 4, 4), ints(2)}, {.dtypes = kFloat}},
    {"aten::adaptive_max_pool2d", {x(0, 3, 4, 4), ints(2, 2)}, {.dtypes = kFloat}},
});

// ---- unpooling ----------------------------------------------------------------------------------------------------------

TensorSpec shuffled(int64_t planes, int64_t plane, Shape dims) {
  std::vector<at::Tensor> rows;
  for (int64_t p = 0; p < planes; ++p)
    rows.push_back(
        at::arange(plane).mul(5).add(p).remainder(plane).slice(0, 0, dims[2] * dims[3] * (dims.size() > 4 ? dims[4] : 1)));
  return given(at::stack(rows).reshape(dims));
}
const bool unpools = add_cases({
    {"aten::max_unpool2d", {x(2, 3, 2, 2), shuffled(6, 16, {2, 3, 2, 2}), ints(4, 4)}, {.dtypes = kNumbers}},
    {"aten::max_unpool2d", {x(2, 3, 2, 2), given(at::full({2, 3, 2, 2}, 16, at::kLong)), ints(4, 4)}, {.dtypes = kFloat}},
    {"aten::max_unpool2d", {x(2, 3, 2, 2), shuffled(6, 16, {2, 3, 2, 2}), ints(4)}, {.dtypes = kFloat}},
    {"aten::max_unpool2d", {x(2, 3, 2, 3), shuffled(6, 16, {2, 3, 2, 2}), ints(4, 4)}, {.dtypes = kFloat}},
    {"aten::max_unpool3d",
     {x(1, 2, 2, 2, 2), shuffled(2, 64, {1, 2, 2, 2, 2}), ints(4, 4, 4), ints(2, 2, 2), ints(0, 0, 0)},
     kOfFloats},
    {"aten::max_unpool3d",
     {x(1, 2, 2, 2, 2), shuffled(2, 64, {1, 2, 2, 2, 2}), ints(4, 4, 4), ints(0, 2, 2), ints(0, 0, 0)},
     {.dtypes = kFloat}},
});

}  // namespace

}  // namespace flambeau::op_test
