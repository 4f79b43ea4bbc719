// Cases of reductions and running sums.
#include "op_case.h"

namespace flambeau::op_test {

namespace {

const Options kOfFloats{.dtypes = kFloats};
const Options kOfFew{.dtypes = kFew};

const bool sums = add_cases({
    {"aten::sum", {x()}},
    {"aten::sum", {x(), at::kFloat}},
    {"aten::sum", {x(), at::kInt}},
    {"aten::sum", {x(), at::kBool}, {.dtypes = {at::kBool, at::kLong, at::kFloat}}},
    {"aten::sum", {x(100, 100)}, {.dtypes = {at::kBFloat16, at::kFloat, at::kLong}}},
    {"aten::sum.dim_IntList", {x(2, 3, 4), ints(1)}},
    {"aten::sum.dim_IntList", {x(2, 3, 4), ints(0, -1), true}, kOfFew},
    {"aten::sum.dim_IntList", {x(2, 3, 4), ints()}, kOfFew},
    {"aten::sum.dim_IntList", {x(2, 3, 4), none, true, at::kDouble}, kOfFew},
    {"aten::sum.dim_IntList", {x(0, 3), ints(0)}, kOfFew},
    {"aten::sum.dim_IntList", {scalar(), ints(-1)}, kOfFew},
    {"aten::sum.dim_IntList", {x(2, 3), ints(0, 0)}, kOfFew},
    {"aten::sum.dim_IntList", {x(2, 3), ints(2)}, kOfFew},
    {"aten::prod", {x()}},
    {"aten::prod", {x(), at::kDouble}, kOfFew},
    {"aten::prod.dim_int", {x(2, 3, 4), 1}},
    {"aten::prod.dim_int", {x(2, 0), 1, true}, kOfFew},
    {"aten::prod.dim_int", {x(2, 3), -1, true, at::kFloat}, kOfFew},
    {"aten::nansum", {x(2, 3)}},
    {"aten::nansum", {x(3, 4).special(), ints(1)}, kOfFloats},
    {"aten::count_nonzero", {x()}},
    {"aten::count_nonzero", {x(3, 4).special(), 1}, kOfFloats},
    {"aten::count_nonzero.dim_IntList", {x(2, 3, 4), ints(0, 2)}},
    {"aten::mean", {x()}},
    {"aten::mean", {x(), at::kFloat}},
    {"aten::mean", {x(), at::kInt}, kOfFew},
    {"aten::mean.dim", {x(2, 3, 4), ints(1)}},
    {"aten::mean.dim", {x(2, 3, 4), ints(0, -1), true}, kOfFloats},
    {"aten::mean.dim", {x(2, 3, 4), none, true, at::kDouble}, kOfFew},
    {"aten::mean.dim", {x(0, 3), ints(0)}, kOfFloats},
});

std::vector<OpCase> logical_cases() {
  std::vector<OpCase> cases;
  for (std::string name : {"any", "all"}) {
    cases.push_back({"aten::" + name, {x()}});
    cases.push_back({"aten::" + name, {x(3, 4).special()}, kOfFloats});
    cases.push_back({"aten::" + name + ".dim", {x(2, 3, 4).range(0, 2), 1}});
    cases.push_back({"aten::" + name + ".dim", {x(2, 0), -1, true}, kOfFew});
    cases.push_back({"aten::" + name + ".dim", {scalar(), 0}, kOfFew});
    cases.push_back({"aten::" + name + ".dims", {x(2, 3, 4).range(0, 2), ints(0, 2)}});
    cases.push_back({"aten::" + name + ".dims", {x(2, 3), none, true}, kOfFew});
    cases.push_back({"aten::" + name + ".dims", {x(2, 3), ints()}, kOfFew});
  }
  return cases;
}
const bool logical = add_cases(logical_cases());

std::vector<OpCase> moment_cases() {
  std::vector<OpCase> cases;
  for (std::string name : {"var", "std", "var_mean", "std_mean"}) {
    std::string op = "aten::" + name + ".correction";
    cases.push_back({op, {x(3, 4)}});
    cases.push_back({op, {x(2, 3, 4), ints(1)}, kOfFloats});
    cases.push_back({op, {x(2, 3, 4), ints(0, -1), 0, true}, kOfFloats});
    cases.push_back({op, {x(2, 3, 4), ints(2), 2, false}, kOfFloats});
    cases.push_back({op, {x(3, 4), ints(1), 0.5}, kOfFloats});
    cases.push_back({op, {x(3, 1), ints(1)}, kOfFloats});
    cases.push_back({op, {x(3, 0), ints(1)}, kOfFloats});
    cases.push_back({op, {scalar()}, kOfFloats});
  }
  return cases;
}
const bool moments = add_cases(moment_cases());

const bool norms = add_cases({
    {"aten::linalg_vector_norm", {x()}},
    {"aten::linalg_vector_norm", {x(3, 4), 1, ints(0)}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), 0, ints(1), true}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), 3, none}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), -1.5, ints(0, 1)}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), INFINITY, ints(1)}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), -INFINITY, none, true}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 0), INFINITY, ints(1)}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 0), 2, ints(1)}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), 2, ints(1), false, at::kDouble}, kOfFloats},
    {"aten::linalg_vector_norm", {x(3, 4), 2, ints(1), false, at::kFloat}, kOfFloats},
    {"aten::norm.Scalar", {x(3, 4)}},
    {"aten::norm.Scalar", {x(3, 4), 1}, kOfFloats},
    {"aten::norm.ScalarOpt_dim", {x(3, 4), none, ints(1)}},
    {"aten::norm.ScalarOpt_dim", {x(3, 4), 3, ints(0), true}, kOfFloats},
    {"aten::norm.ScalarOpt_dim", {x(3, 4), 2, ints()}, kOfFloats},
    {"aten::norm.ScalarOpt_dim_dtype", {x(3, 4), 2, ints(0), false, at::kDouble}, kOfFloats},
    {"aten::norm.ScalarOpt_dtype", {x(3, 4), 1, at::kDouble}, kOfFloats},
    {"aten::logsumexp", {x(2, 3, 4), ints(1)}},
    {"aten::logsumexp", {x(2, 3, 4), ints(0, 2), true}, kOfFloats},
    {"aten::logsumexp", {x(3, 4).special(), ints(1)}, kOfFloats},
    {"aten::logsumexp", {scalar(), ints(0)}, kOfFloats},
});

const bool running = add_cases({
    {"aten::cumsum", {x(5, 3), 0}},
    {"aten::cumsum", {x(2, 7), -1, at::kFloat}, kOfFew},
    {"aten::cumsum", {x(2, 300), 1}, {.dtypes = {at::kBFloat16, at::kFloat, at::kLong}}},
    {"aten::cumsum", {x(2, 0), 1}, kOfFew},
    {"aten::cumsum", {scalar(), 0}, kOfFew},
    {"aten::cumsum", {x(2, 3), 2}, kOfFew},
    {"aten::cumprod", {x(5, 3), 0}},
    {"aten::cumprod", {x(2, 8), 1}, kOfFew},
});

std::vector<OpCase> extremum_cases() {
  std::vector<OpCase> cases;
  for (std::string name : {"max", "min"}) {
    cases.push_back({"aten::a" + name, {x(2, 3, 4), ints(1)}});
    cases.push_back({"aten::a" + name, {x(2, 3, 4), ints(0, 2), true}, kOfFew});
    cases.push_back({"aten::a" + name, {x(2, 3)}, kOfFew});
    cases.push_back({"aten::a" + name, {x(3, 4).special(), ints(1)}, kOfFloats});
    cases.push_back({"aten::a" + name, {x(3, 0), ints(1)}, kOfFew});
    cases.push_back({"aten::a" + name, {x(3, 0), ints(0)}, kOfFew});
    cases.push_back({"aten::a" + name, {x(3, 0)}, kOfFew});
    cases.push_back({"aten::" + name, {x()}});
    cases.push_back({"aten::" + name, {x(3, 4).special()}, kOfFloats});
    cases.push_back({"aten::" + name + ".dim", {x(2, 6, 4), 1}});
    cases.push_back({"aten::" + name + ".dim", {x(5, 6).special(), -1, true}, kOfFloats});
    cases.push_back({"aten::" + name + ".dim", {scalar(), 0}, kOfFew});
    cases.push_back({"aten::" + name + ".dim", {x(3, 0), 1}, kOfFew});
    cases.push_back({"aten::" + name + ".dim", {x(3, 0), 0}, kOfFew});
    cases.push_back({"aten::arg" + name, {x()}});
    cases.push_back({"aten::arg" + name, {x(2, 6, 4), 1}});
    cases.push_back({"aten::arg" + name, {x(2, 6, 4), none, true}, kOfFew});
    cases.push_back({"aten::arg" + name, {x(5, 6).special(), -1, true}, kOfFloats});
    cases.push_back({"aten::arg" + name, {x(3, 0), 1}, kOfFew});
    cases.push_back({"aten::arg" + name, {scalar(), 0}, kOfFew});
  }
  cases.push_back({"aten::aminmax", {x()}});
  cases.push_back({"aten::aminmax", {x(3, 4), 1, true}});
  cases.push_back({"aten::aminmax", {x(3, 4).special(), 1}, kOfFloats});
  return cases;
}
const bool extrema = add_cases(extremum_cases());

}  // namespace

}  // namespace flambeau::op_test
