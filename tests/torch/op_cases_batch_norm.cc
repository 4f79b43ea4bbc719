// Cases of batch norm and its gradients.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const DTypes kSingleAndDouble = {at::kFloat, at::kDouble};
const DTypes kHalves = {at::kHalf, at::kBFloat16};
const Options kWhole = {.dtypes = kSingleAndDouble,
                        .tolerances = {{at::kFloat, 1e-5, 2e-5, "a mean of squares in another order"}}};
// Saved statistics are float32 here, in the input's type on the CPU unless the parameters are float32.
const std::vector<Options::Wider> kStepwise = {{at::kHalf, 4e-3, 4e-3, "torch rounds each step"},
                                               {at::kBFloat16, 3e-2, 3e-2, "torch rounds each step"},
                                               {at::kFloat, 1e-5, 2e-5, "a mean of squares in another order"}};
const Options kAlone = {
    .dtypes = kSingleAndDouble,
    .tolerances = {{at::kFloat, 1e-4, 1e-4, "torch adds x * a and b - mean * a, where a = 1 / sqrt(eps)"}}};
const Options kNarrow = {.dtypes = kHalves, .skip_outputs = {1, 2}, .tolerances = kStepwise};
const Options kMixed = {.dtypes = kHalves, .tolerances = kStepwise};  // float32 parameters and statistics

// Weight, bias, running mean and variance of three channels.
struct Parameters {
  Arg weight = y(3), bias = z(3), mean = x(3), variance = x(3).positive();
};
Parameters in_float() {
  return {y(3).of(at::kFloat), z(3).of(at::kFloat), x(3).of(at::kFloat), x(3).positive().of(at::kFloat)};
}

void forward_cases(std::vector<OpCase>& cases, const Shape& input, const Parameters& p, const Options& options) {
  TensorSpec in = tensor(0, input);
  for (bool training : {true, false})
    cases.push_back({"aten::_native_batch_norm_legit_functional",
                     {in, p.weight, p.bias, p.mean, p.variance, training, 0.3, 1e-5},
                     options});
  cases.push_back(
      {"aten::_native_batch_norm_legit_no_training", {in, p.weight, p.bias, p.mean, p.variance, 0.1, 1e-3}, options});
  cases.push_back({"aten::_native_batch_norm_legit.no_stats", {in, p.weight, p.bias, true, 0.1, 1e-5}, options});
  cases.push_back(
      {"aten::_batch_norm_with_update_functional", {in, p.weight, p.bias, p.mean, p.variance, 1.0, 1e-5}, options});
}

void backward_cases(std::vector<OpCase>& cases, const Shape& input, const Parameters& p, const Options& options) {
  at::ScalarType wide = at::kFloat;
  bool narrow = options.dtypes == kHalves;
  auto saved = [&] { return narrow ? tensor(1, Shape{3}).of(wide).range(0.5, 1.5) : tensor(1, Shape{3}).range(0.5, 1.5); };
  for (bool train : {true, false})
    for (const Arg& mask : {list(true, true, true), list(true, false, false), list(false, true, true)}) {
      if (narrow && !std::get<bool>(std::get<std::vector<Arg>>(mask.value)[1].value)) continue;
      cases.push_back(
          {"aten::native_batch_norm_backward",
           {tensor(0, input), tensor(1, input), p.weight, p.mean, p.variance, saved(), saved(), train, 1e-5, mask},
           options});
    }
  if (!std::holds_alternative<None>(p.weight.value))
    cases.push_back({"aten::batch_norm_backward",
                     {tensor(0, input), tensor(1, input), p.weight, p.mean, p.variance, saved(), saved(), true, 1e-5,
                      list(true, true, true), given(at::zeros({0}, at::kByte))},
                     options});
}

std::vector<OpCase> batch_norm_cases() {
  std::vector<OpCase> cases;
  for (const Shape& input : {Shape{4, 3}, Shape{2, 3, 5}, Shape{2, 3, 4, 2}, Shape{2, 3, 2, 2, 3}}) {
    forward_cases(cases, input, {}, kWhole);
    backward_cases(cases, input, {}, kWhole);
  }
  forward_cases(cases, {4, 3, 5}, {}, kNarrow);
  forward_cases(cases, {4, 3, 5}, in_float(), kMixed);
  backward_cases(cases, {4, 3, 5}, in_float(), kMixed);
  forward_cases(cases, {4, 3, 5}, {none, none}, kWhole);
  backward_cases(cases, {4, 3, 5}, {none, none}, kWhole);
  forward_cases(cases, {1, 3}, {}, kAlone);     // no variance of one element
  forward_cases(cases, {0, 3, 4}, {}, kWhole);  // nothing to average
  return cases;
}
const bool batch_norms = add_cases(batch_norm_cases());

}  // namespace

}  // namespace flambeau::op_test
