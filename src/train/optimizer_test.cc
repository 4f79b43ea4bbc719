#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/param_groups.h"

namespace flambeau::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Values against torch.optim: tests/python/test_train_reference.py.

TEST(Optimizer, StatesAreThoseThatTheAlgorithmNeeds) {
  const struct {
    Algorithm algorithm;
    double momentum;
    std::vector<std::string> names;
  } cases[] = {
      {Algorithm::AdamW, 0, {"exp_avg", "exp_avg_sq"}},
      {Algorithm::Adam, 0, {"exp_avg", "exp_avg_sq"}},
      {Algorithm::SGD, 0.9, {"momentum_buffer"}},
      {Algorithm::SGD, 0, {}},
  };
  for (const auto& c : cases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor p = at::ones({2, 3});
      Optimizer optimizer({.algorithm = c.algorithm, .state_dtype = dtype}, {{.momentum = c.momentum}}, {{p, {0}}});
      std::vector<std::string> names;
      for (const Optimizer::State& s : optimizer.states()) names.push_back(s.name);
      EXPECT_EQ(names, c.names);
      const auto step = [&](bool apply) { optimizer.update({at::full({2, 3}, 0.5)}, optimizer.numbers(1, 1), at::full({}, apply, at::kBool)); };
      step(false);
      EXPECT_TRUE(at::equal(p, at::ones({2, 3}))) << "the update is withheld";
      for (const Optimizer::State& s : optimizer.states()) {
        EXPECT_EQ(s.tensors.at(0).scalar_type(), dtype);
        EXPECT_EQ(s.tensors.at(0).abs().max().item<float>(), 0);
      }
      step(true);
      EXPECT_FALSE(at::equal(p, at::ones({2, 3})));
      for (const Optimizer::State& s : optimizer.states()) EXPECT_GT(s.tensors.at(0).abs().max().item<float>(), 0);
    }
  }
}

TEST(Optimizer, RowsOfDifferentGroupsHaveNumbersOfTheirOwn) {
  const std::vector<Hyperparameters> groups{{.lr = 1, .weight_decay = 0}, {.lr = 10, .weight_decay = 0}};
  const at::Tensor whole = at::zeros({3, 2}), mixed = at::zeros({3, 2, 2});
  Optimizer optimizer({.algorithm = Algorithm::SGD}, groups, {{whole, {1, 1, 1}}, {mixed, {1, 0, 1}}});
  EXPECT_THAT(optimizer.numbers(1, 1).sizes(), ElementsAre(2 + 3, 4));
  optimizer.update({at::ones({3, 2}), at::ones({3, 2, 2})}, optimizer.numbers(0.5, 1), at::ones({}, at::kBool));
  EXPECT_TRUE(at::equal(whole, at::full({3, 2}, -5.0)));
  EXPECT_TRUE(at::equal(mixed, at::tensor({-5.0F, -0.5F, -5.0F}).view({3, 1, 1}).expand({3, 2, 2})));
}

// ---- groups -----------------------------------------------------------------------------------------------------------------

const std::vector<std::string> kNames{"tok_embeddings.weight", "layers.0.attention_norm.weight", "layers.0.attention.wo.weight",
                                      "layers.1.attention_norm.weight", "layers.1.attention.wo.weight", "norm.weight", "output.weight"};

std::vector<ParamGroup> groups_of(const std::vector<const char*>& patterns) {
  std::vector<ParamGroup> groups;
  for (const char* pattern : patterns) groups.push_back({.pattern = pattern});
  return groups;
}

TEST(ParamGroups, TheFirstPatternThatIsFoundCounts) {
  EXPECT_THAT(assign_groups(kNames, {}), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(assign_groups(kNames, groups_of({"norm", "^output"})), ElementsAre(2, 0, 2, 0, 2, 0, 1));
  EXPECT_THAT(assign_groups(kNames, groups_of({"^norm\\.", "norm", "layers\\.[1-9]"})), ElementsAre(3, 1, 3, 1, 2, 0, 3));
}

TEST(ParamGroups, GroupsWithoutParametersAreRefused) {
  const struct {
    std::vector<const char*> patterns;
    std::vector<const char*> parts;
  } cases[] = {
      {{"atention_nrom"}, {"\"atention_nrom\"", "got none", "did you mean layers.0.attention_norm.weight?"}},
      {{"^norm$"}, {"\"^norm$\"", "did you mean layers.0.attention_norm.weight?"}},
      {{"ouput\\.weight"}, {"did you mean output.weight?"}},
      {{"norm", "layers.*norm"}, {"\"layers.*norm\"", "\"norm\" takes them all", "put it first"}},
  };
  for (const auto& c : cases) {
    try {
      assign_groups(kNames, groups_of(c.patterns));
      ADD_FAILURE() << c.patterns[0];
    } catch (const InvalidArgument& e) {
      for (const char* part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    }
  }
}

TEST(ParamGroups, TakeTheirOwnValuesAndTheRestOfTheOptimizers) {
  Config::Optimizer options;
  options.param_groups = {{.pattern = "norm", .lr = 1, .beta2 = 0.5}};
  const std::vector<Hyperparameters> got = group_hyperparameters(options);
  ASSERT_EQ(got.size(), 2);
  EXPECT_EQ(got[0].lr, 1);
  EXPECT_EQ(got[0].beta2, 0.5);
  EXPECT_EQ(got[0].weight_decay, options.weight_decay);
  EXPECT_EQ(got[1].lr, options.lr);
}

}  // namespace
}  // namespace flambeau::train
