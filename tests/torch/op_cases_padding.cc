// Cases of padding by repetition, patches of planes and resampling, and their gradients.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const DTypes kFew = {at::kInt, at::kBFloat16, at::kFloat};
const DTypes kSingleAndHalf = {at::kBFloat16, at::kFloat};
const std::vector<Options::Wider> kStepwise = {{at::kHalf, 4e-3, 4e-3, "torch rounds each step"},
                                               {at::kBFloat16, 3e-2, 3e-2, "torch rounds each step"}};
const Options kGradients = {.dtypes = kSingleAndHalf, .tolerances = kStepwise};

std::vector<OpCase> padding_cases() {
  std::vector<OpCase> cases;
  auto add = [&](const std::string& dims, const Shape& input, const Shape& padding) {
    Shape out = input;
    for (size_t i = 0; i < padding.size() / 2; ++i) out[out.size() - 1 - i] += padding[2 * i] + padding[2 * i + 1];
    for (const std::string kind : {"reflection", "replication"}) {
      const std::string op = "aten::" + kind + "_pad" + dims;
      cases.push_back({op, {tensor(0, input), padding}, {.dtypes = kFew}});
      cases.push_back({op + "_backward", {tensor(0, out), tensor(1, input), padding}, kGradients});
    }
  };
  add("1d", {2, 3, 4}, {2, 1});
  add("1d", {3, 5}, {0, 3});
  add("1d", {2, 3, 5}, {-1, 2});
  add("1d", {0, 3, 5}, {1, 2});
  add("2d", {2, 3, 4, 5}, {2, 1, 0, 3});
  add("2d", {3, 4, 5}, {1, -2, 3, 1});
  add("3d", {1, 2, 3, 4, 5}, {1, 2, 0, 1, 2, 1});
  const Options refused = {.dtypes = kFloat};
  cases.push_back({"aten::reflection_pad1d", {x(2, 3, 4), ints(4, 0)}, refused});
  cases.push_back({"aten::reflection_pad2d", {x(2, 3, 4, 4), ints(1, 1)}, refused});
  cases.push_back({"aten::reflection_pad2d", {x(3, 4), ints(1, 1, 1, 1)}, refused});
  cases.push_back({"aten::replication_pad1d", {x(2, 3, 0), ints(1, 1)}, refused});
  cases.push_back({"aten::replication_pad1d", {x(2, 3, 4), ints(-2, -2)}, refused});
  cases.push_back({"aten::replication_pad1d", {x(2, 3, 4), ints(7, 9)}, refused});
  cases.push_back({"aten::replication_pad2d_backward", {x(2, 3, 6, 4), y(2, 3, 4, 4), ints(1, 1, 1, 1)}, refused});
  return cases;
}
const bool paddings = add_cases(padding_cases());

std::vector<OpCase> patch_cases() {
  std::vector<OpCase> cases;
  struct Scene {
    Shape plane, size, dilation, padding, stride;
    int64_t count;
  };
  for (const Scene& s :
       {Scene{{5, 6}, {2, 3}, {1, 1}, {0, 0}, {1, 1}, 16}, Scene{{5, 6}, {2, 3}, {2, 1}, {1, 0}, {1, 2}, 10},
        Scene{{6, 4}, {3, 2}, {1, 1}, {0, 0}, {3, 2}, 4}, Scene{{4, 4}, {2, 2}, {1, 1}, {1, 1}, {3, 3}, 4}}) {
    cases.push_back({"aten::im2col", {x(2, 3, s.plane[0], s.plane[1]), s.size, s.dilation, s.padding, s.stride},
                     {.dtypes = {at::kBool, at::kHalf, at::kBFloat16, at::kFloat, at::kComplexFloat}}});
    cases.push_back({"aten::col2im",
                     {x(2, 3 * s.size[0] * s.size[1], s.count), s.plane, s.size, s.dilation, s.padding, s.stride},
                     kGradients});
  }
  cases.push_back({"aten::im2col", {x(3, 5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back({"aten::im2col", {x(0, 3, 5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back({"aten::im2col", {x(3, 5), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back({"aten::im2col", {x(2, 3, 5, 6), ints(6, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back({"aten::im2col", {x(2, 3, 5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(0, 1)}, {.dtypes = kFloat}});
  cases.push_back(
      {"aten::im2col", {x(2, 3, 5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = {at::kInt, at::kByte}}});
  cases.push_back(
      {"aten::col2im", {x(18, 16), ints(5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back(
      {"aten::col2im", {x(2, 17, 16), ints(5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back(
      {"aten::col2im", {x(2, 18, 15), ints(5, 6), ints(2, 3), ints(1, 1), ints(0, 0), ints(1, 1)}, {.dtypes = kFloat}});
  cases.push_back({"aten::channel_shuffle", {x(2, 6, 3, 2), 3}, {.dtypes = kFew}});
  cases.push_back({"aten::channel_shuffle", {x(2, 6, 3), 2}, {.dtypes = kFloat}});
  cases.push_back({"aten::channel_shuffle", {x(2, 6, 3), 4}, {.dtypes = kFloat}});
  cases.push_back({"aten::channel_shuffle", {x(2, 6), 2}, {.dtypes = kFloat}});
  return cases;
}
const bool patches = add_cases(patch_cases());

// Every dimension resampled alike, by size alone or with a scale of its own.
std::vector<OpCase> upsample_cases() {
  std::vector<OpCase> cases;
  struct Scene {
    int64_t in, out;
    Arg scale;
  };
  for (const Scene& s : {Scene{4, 8, none}, Scene{5, 7, none}, Scene{7, 3, none}, Scene{5, 8, 1.7}, Scene{3, 1, none}})
    for (int64_t n : {1, 2, 3}) {
      Shape input{2, 2}, output{2, 2}, size(static_cast<size_t>(n), s.out);
      for (int64_t i = 0; i < n; ++i) input.push_back(s.in + i), output.push_back(s.out);
      const std::string dims = std::to_string(n) + "d";
      auto with_scales = [&](std::vector<Arg> args) {
        args.insert(args.end(), static_cast<size_t>(n), s.scale);
        return args;
      };
      for (const std::string& op : {"aten::upsample_nearest" + dims, "aten::_upsample_nearest_exact" + dims}) {
        cases.push_back({op,
                         with_scales({tensor(0, input), size}),
                         {.dtypes = n == 2 ? DTypes{at::kByte, at::kBFloat16, at::kFloat} : kFloat}});
        cases.push_back({op + "_backward", with_scales({tensor(0, output), size, input}),
                         n == 2 ? kGradients : Options{.dtypes = kFloat}});
      }
      const std::string linear = "aten::upsample_" +
                                 std::string(n == 1   ? "linear"
                                             : n == 2 ? "bilinear"
                                                      : "trilinear") +
                                 dims;
      for (bool align : {false, true}) {
        Options options = n == 2 ? kGradients : Options{.dtypes = kFloat};
        if (n == 2) options.dtypes.push_back(at::kDouble);
        cases.push_back({linear, with_scales({tensor(0, input), size, align}), options});
        cases.push_back({linear + "_backward", with_scales({tensor(0, output), size, input, align}), options});
      }
    }
  cases.push_back({"aten::upsample_nearest2d", {x(0, 2, 4, 4), ints(8, 8)}, {.dtypes = kFloat}});
  cases.push_back({"aten::upsample_nearest2d", {x(2, 4, 4), ints(8, 8)}, {.dtypes = kFloat}});
  cases.push_back({"aten::upsample_nearest2d", {x(2, 2, 4, 4), ints(8)}, {.dtypes = kFloat}});
  cases.push_back({"aten::upsample_nearest2d", {x(2, 2, 4, 4), ints(0, 8)}, {.dtypes = kFloat}});
  cases.push_back({"aten::upsample_nearest2d", {x(2, 2, 4, 4), ints(8, 8)}, {.dtypes = {at::kInt}}});
  cases.push_back({"aten::upsample_bilinear2d", {x(0, 2, 4, 4), ints(8, 8), false}, {.dtypes = kFloat}});
  cases.push_back(
      {"aten::upsample_bilinear2d_backward", {x(2, 2, 8, 7), ints(8, 8), ints(2, 2, 4, 4), false}, {.dtypes = kFloat}});
  return cases;
}
const bool upsamples = add_cases(upsample_cases());

}  // namespace

}  // namespace flambeau::op_test
