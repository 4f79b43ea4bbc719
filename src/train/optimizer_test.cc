#include "train/optimizer.h"

#include <cmath>
#include <functional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/param_groups.h"
#include "train/same_optimizer.h"
#include "train/test_run.h"

namespace flambeau::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Values against torch.optim: tests/python/test_train_reference.py.

void step(Optimizer& optimizer, const std::vector<at::Tensor>& gradients, int64_t n = 1, double lr_factor = 1, bool apply = true) {
  optimizer.update(gradients, optimizer.inputs(lr_factor, n), at::full({}, apply, at::kBool));
}

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
      Optimizer optimizer({.state_dtype = dtype}, {{.algorithm = c.algorithm, .momentum = c.momentum}}, {{p, {0}}});
      std::vector<std::string> names;
      for (const Optimizer::State& s : optimizer.states()) names.push_back(s.name);
      EXPECT_EQ(names, c.names);
      step(optimizer, {at::full({2, 3}, 0.5)}, 1, 1, false);
      EXPECT_TRUE(at::equal(p, at::ones({2, 3}))) << "the update is withheld";
      for (const Optimizer::State& s : optimizer.states()) {
        EXPECT_EQ(s.tensors.at(0).scalar_type(), dtype);
        EXPECT_EQ(s.tensors.at(0).abs().max().item<float>(), 0);
      }
      step(optimizer, {at::full({2, 3}, 0.5)});
      EXPECT_FALSE(at::equal(p, at::ones({2, 3})));
      for (const Optimizer::State& s : optimizer.states()) EXPECT_GT(s.tensors.at(0).abs().max().item<float>(), 0);
    }
  }
}

TEST(Optimizer, CellsOfDifferentGroupsHaveNumbersOfTheirOwn) {
  const std::vector<Hyperparameters> groups{{.algorithm = Algorithm::SGD, .lr = 1, .weight_decay = 0},
                                            {.algorithm = Algorithm::SGD, .lr = 10, .weight_decay = 0}};
  const at::Tensor whole = at::zeros({3, 2}), rows = at::zeros({3, 2, 2}), fused = at::zeros({2, 2, 3});
  Optimizer optimizer({}, groups, {{whole, {1, 1, 1}}, {rows, {1, 0, 1}}, {fused, {1, 1, 0, 0, 1, 1}, {2, 1, 3}}});
  EXPECT_THAT(optimizer.inputs(1, 1).at(0).sizes(), ElementsAre(2 + 3 + 6, 4));
  step(optimizer, {at::ones({3, 2}), at::ones({3, 2, 2}), at::ones({2, 2, 3})}, 1, 0.5);
  EXPECT_TRUE(at::equal(whole, at::full({3, 2}, -5.0)));
  EXPECT_TRUE(at::equal(rows, at::tensor({-5.0F, -0.5F, -5.0F}).view({3, 1, 1}).expand({3, 2, 2})));
  EXPECT_TRUE(at::equal(fused, at::tensor({-5.0F, -5.0F, -0.5F, -0.5F, -5.0F, -5.0F}).view({2, 1, 3}).expand({2, 2, 3})));
}

// Tensors whose cells have several algorithms: each cell is as if it were alone.
TEST(Optimizer, AlgorithmsOfATensorsCellsAreApart) {
  const std::vector<Hyperparameters> groups{{.algorithm = Algorithm::AdamW, .lr = 0.1}, {.algorithm = Algorithm::Adam, .lr = 0.1},
                                            {.algorithm = Algorithm::SGD, .lr = 0.1, .momentum = 0.9}};
  at::manual_seed(2);
  const at::Tensor start = at::randn({3, 4}), together = start.clone();
  std::vector<at::Tensor> apart;
  for (int64_t i = 0; i < 3; ++i) apart.push_back(start[i].clone());
  Optimizer one({}, groups, {{together, {0, 1, 2}}});
  Optimizer three({}, groups, {{apart[0], {0}}, {apart[1], {1}}, {apart[2], {2}}});
  EXPECT_EQ(one.states().size(), 3U);
  EXPECT_FALSE(three.states().back().tensors[0].defined()) << "AdamW has no momentum_buffer";
  for (int64_t n = 1; n <= 4; ++n) {
    const at::Tensor g = at::randn({3, 4});
    step(one, {g}, n);
    step(three, g.unbind(0), n);
  }
  EXPECT_TRUE(at::allclose(together, at::stack(apart), 1e-6, 1e-7));
}

TEST(Optimizer, WhatHasNoGroupIsLeftAlone) {
  const at::Tensor frozen = at::ones({2}), trained = at::ones({2});
  Optimizer optimizer({}, {Hyperparameters{}}, {{frozen, {}}, {trained, {0}}});
  step(optimizer, {at::Tensor(), at::ones({2})});
  EXPECT_TRUE(at::equal(frozen, at::ones({2})));
  EXPECT_FALSE(at::equal(trained, at::ones({2})));
  for (const Optimizer::State& s : optimizer.states()) EXPECT_FALSE(s.tensors[0].defined());
}

// With beta2 = 0.999 a mean of 1 moves by 7.5e-4 a step, a fifth of the distance to the next bfloat16: rounded to nearest it would
// stay where it is for ever.
TEST(Optimizer, StatesInBfloat16FollowThoseInFloat32InTheMean) {
  constexpr int64_t kElements = 2048, kSteps = 2000;
  for (const Algorithm algorithm : {Algorithm::AdamW, Algorithm::SGD}) {
    const std::vector<Hyperparameters> groups{{.algorithm = algorithm, .lr = 0, .beta1 = 0.999, .beta2 = 0.999, .momentum = 0.999}};
    const at::Tensor p = at::zeros({kElements}), exact = at::zeros({1});
    Optimizer rounded({.state_dtype = at::kBFloat16}, groups, {{p, {0}}}), wide({}, groups, {{exact, {0}}});
    for (size_t s = 0; s < wide.states().size(); ++s) {
      for (const Optimizer* o : {&rounded, &wide}) o->states()[s].tensors[0].fill_(1.0);
    }
    const double g = algorithm == Algorithm::SGD ? 2.5e-4 : 0.5;  // both are to fall by about the same
    for (int64_t n = 1; n <= kSteps; ++n) {
      step(rounded, {at::full({kElements}, g)}, n);
      step(wide, {at::full({1}, g)}, n);
    }
    for (size_t s = 0; s < wide.states().size(); ++s) {
      const at::Tensor values = rounded.states()[s].tensors[0].to(at::kFloat);
      const double want = wide.states()[s].tensors[0].item<double>(), deviation = values.std().item<double>();
      EXPECT_LT(want, 0.6) << "it has moved";
      EXPECT_GT(deviation, 0) << "elements have noise of their own";
      // Four deviations of a mean of kElements draws.
      EXPECT_NEAR(values.mean().item<double>(), want, 4 * deviation / std::sqrt(kElements)) << wide.states()[s].name;
    }
  }
}

TEST(Optimizer, NoiseDependsOnKeyIndexAndStep) {
  const auto states = [](std::vector<at::Tensor> tensors, std::vector<std::vector<uint64_t>> keys, int64_t n) {
    std::vector<OptimizerTarget> targets;
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < tensors.size(); ++i) {
      gradients.push_back(at::full(tensors[i].sizes(), 0.3));
      targets.push_back({tensors[i], {0}, {}, keys[i]});
    }
    Optimizer optimizer({.state_dtype = at::kBFloat16}, {Hyperparameters{}}, targets);
    step(optimizer, gradients, n);
    return optimizer.states()[1].tensors;
  };
  const at::Tensor one = states({at::zeros({4, 5})}, {{7}}, 1)[0];
  EXPECT_TRUE(at::equal(one, states({at::zeros({4, 5})}, {{7}}, 1)[0]));
  EXPECT_TRUE(at::equal(one.view({-1}), states({at::zeros({20})}, {{7}}, 1)[0])) << "by the index within the tensor";
  EXPECT_FALSE(at::equal(one, states({at::zeros({4, 5})}, {{8}}, 1)[0]));
  EXPECT_FALSE(at::equal(one, states({at::zeros({4, 5})}, {{7}}, 2)[0]));
  // Stacked as apart.
  const at::Tensor stacked = states({at::zeros({2, 4, 5})}, {{7, 8}}, 1)[0];
  const std::vector<at::Tensor> apart = states({at::zeros({4, 5}), at::zeros({4, 5})}, {{7}, {8}}, 1);
  EXPECT_TRUE(at::equal(stacked, at::stack(apart)));
}

// ---- groups -----------------------------------------------------------------------------------------------------------------

const std::vector<std::string> kNames{"tok_embeddings.weight", "layers.0.attention_norm.weight", "layers.0.attention.wo.weight",
                                      "layers.1.attention_norm.weight", "layers.1.attention.wo.weight", "norm.weight", "lm_head.weight"};

std::vector<ParamGroup> patterns(const std::vector<const char*>& texts) {
  std::vector<ParamGroup> groups;
  for (const char* pattern : texts) groups.push_back({.pattern = pattern});
  return groups;
}

TEST(ParamGroups, TheFirstPatternThatIsFoundCounts) {
  EXPECT_THAT(assign_groups(kNames, {}), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(assign_groups(kNames, patterns({"norm", "^lm_head"})), ElementsAre(2, 0, 2, 0, 2, 0, 1));
  EXPECT_THAT(assign_groups(kNames, patterns({"^norm\\.", "norm", "layers\\.[1-9]"})), ElementsAre(3, 1, 3, 1, 2, 0, 3));
}

TEST(ParamGroups, GroupsWithoutParametersAreRefused) {
  const struct {
    std::vector<const char*> patterns;
    std::vector<const char*> parts;
  } cases[] = {
      {{"atention_nrom"}, {"\"atention_nrom\"", "got none", "did you mean layers.0.attention_norm.weight?"}},
      {{"^norm$"}, {"\"^norm$\"", "did you mean layers.0.attention_norm.weight?"}},
      {{"lm_haed\\.weight"}, {"did you mean lm_head.weight?"}},
      {{"norm", "layers.*norm"}, {"\"layers.*norm\"", "\"norm\" takes them all", "put it first"}},
  };
  for (const auto& c : cases) {
    try {
      assign_groups(kNames, patterns(c.patterns));
      ADD_FAILURE() << c.patterns[0];
    } catch (const InvalidArgument& e) {
      for (const char* part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    }
  }
}

TEST(ParamGroups, TakeTheirOwnValuesAndTheRestOfTheOptimizers) {
  Config::Optimizer options;
  options.param_groups = {{.pattern = "norm", .name = "SGD", .lr = 1, .beta2 = 0.5}};
  const std::vector<Hyperparameters> got = group_hyperparameters(options);
  ASSERT_EQ(got.size(), 2);
  EXPECT_EQ(got[0].algorithm, Algorithm::SGD);
  EXPECT_EQ(got[1].algorithm, Algorithm::AdamW);
  EXPECT_EQ(got[0].lr, 1);
  EXPECT_EQ(got[0].beta2, 0.5);
  EXPECT_EQ(got[0].weight_decay, options.weight_decay);
  EXPECT_EQ(got[1].lr, options.lr);
}

// A group may have a part of what is one tensor in memory.
TEST(ParamGroups, TakePartsOfFusedTensors) {
  for (const bool stacked : {false, true}) {
    const auto model = models::make_model("llama3", "debug", kTiny);
    if (stacked) model->run_layers_as_loop(device::CheckpointPolicy{});
    model->parameters().initialize(5, at::kCPU);
    Config config;
    config.optimizer.name = "SGD";
    config.optimizer.lr = 1;
    config.optimizer.weight_decay = 0;
    config.optimizer.param_groups = {{.pattern = "layers\\.1\\.attention\\.wq"}, {.pattern = "w3"}};
    config.optimizer.param_groups[0].weight_decay = 0.5;
    config.optimizer.param_groups[1].weight_decay = 0.25;
    Optimizer optimizer = make_optimizer(config, *model);
    const nn::Parameters& parameters = model->parameters();
    const std::vector<at::Tensor> before = parameters.rows_of(parameters.tensors());
    std::vector<at::Tensor> old, gradients;
    for (const at::Tensor& t : before) old.push_back(t.clone());
    for (const at::Tensor& t : parameters.tensors()) gradients.push_back(at::zeros_like(t).detach());
    step(optimizer, gradients);
    const std::vector<at::Tensor> after = parameters.rows_of(parameters.tensors());
    for (size_t i = 0; i < after.size(); ++i) {
      const std::string& name = parameters.all()[i].name;
      const double keeps = name == "layers.1.attention.wq.weight" ? 0.5 : name.ends_with("w3.weight") ? 0.75 : 1;
      EXPECT_TRUE(at::equal(after[i], old[i] * keeps)) << name << stacked;
    }
  }
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& t : tensors) bytes += t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  return bytes;
}

// wq and wk lie in one tensor, and with layers as a loop all layers' do: momentum of one is momentum of all.
TEST(ParamGroups, StateBytesAreThoseInMemory) {
  for (const bool stacked : {false, true}) {
    for (const char* pattern : {"wq", "layers\\.1\\.", "norm"}) {
      for (const char* dtype : {"float32", "bfloat16"}) {
        Config config;
        config.optimizer.name = "SGD";
        config.optimizer.state_dtype = dtype;
        config.optimizer.param_groups = {{.pattern = pattern, .momentum = 0.9}};
        config.model.freeze = "w2";
        const auto model = models::make_model("llama3", "debug", kTiny);
        freeze_parameters(config, *model);
        if (stacked) model->run_layers_as_loop(device::CheckpointPolicy{});
        model->parameters().allocate(at::kCPU);
        const Optimizer optimizer = make_optimizer(config, *model);
        int64_t bytes = bytes_of(model->parameters().tensors());
        for (const Optimizer::State& s : optimizer.states()) bytes += bytes_of(s.tensors);
        EXPECT_EQ(state_bytes(config, *model), bytes) << pattern << stacked;
      }
    }
  }
}

TEST(Freeze, TakesPatternsOfNames) {
  const struct {
    const char *patterns, *groups;
    std::vector<const char*> parts;  // of the refusal; none: there is none
  } cases[] = {
      {"", "", {}},
      {"norm, ^lm_head", "", {}},
      {"norm,attention_norm", "", {}},
      {"atention_nrom", "", {"c.toml: model.freeze", "\"atention_nrom\"", "did you mean layers.0.attention_norm.weight?"}},
      {".", "", {"model.freeze", "leave a parameter"}},
      {"wq", "", {"model.freeze", "{wq,wk,wv}", "one tensor"}},
      {"norm", "norm", {"optimizer.param_groups", "\"norm\"", "that is trained", "got none"}},
  };
  for (const auto& c : cases) {
    Config config;
    config.path = "c.toml";
    config.model.freeze = c.patterns;
    if (*c.groups != '\0') config.optimizer.param_groups = {{.pattern = c.groups}};
    const auto model = models::make_model("llama3", "debug", kTiny);
    try {
      freeze_parameters(config, *model);
      groups_of(config, *model);
      EXPECT_TRUE(c.parts.empty()) << c.patterns;
      for (const nn::Parameter& p : model->parameters()) {
        const bool frozen = *c.patterns != '\0' && (p.name.find("norm") != std::string::npos || (p.name == "lm_head.weight" && std::string_view(c.patterns).ends_with("head")));
        EXPECT_EQ(model->parameters().traits(p).trainable, !frozen) << p.name << " " << c.patterns;
      }
    } catch (const InvalidArgument& e) {
      EXPECT_FALSE(c.parts.empty()) << e.what();
      for (const char* part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    }
  }
}

TEST(ParamGroups, AResumedOptimizerIsTheSame) {
  const auto model = models::make_model("llama3", "debug", kTiny);
  const auto described = [&](const Config::Optimizer& options) {
    Config config;
    config.optimizer = options;
    return describe_states(config, *model);
  };
  const auto with = [](const std::function<void(Config::Optimizer&)>& change) {
    Config::Optimizer options;
    options.param_groups = {{.pattern = "norm", .weight_decay = 0}};
    change(options);
    return options;
  };
  const struct {
    Config::Optimizer before, now;
    std::vector<const char*> parts;  // of the refusal; none: it goes on
  } cases[] = {
      {with([](auto&) {}), with([](auto&) {}), {}},
      {with([](auto&) {}), with([](auto& o) { o.lr = 1, o.beta1 = 0.5, o.param_groups[0].weight_decay = 1; }), {}},
      {with([](auto&) {}), with([](auto& o) { o.name = "Adam"; }), {"AdamW", "got Adam", "set its name to \"AdamW\"", "initial_load_path"}},
      {with([](auto&) {}), with([](auto& o) { o.param_groups[0].name = "SGD"; }), {"group \"norm\"", "AdamW", "got SGD"}},
      {with([](auto&) {}), with([](auto& o) { o.state_dtype = "bfloat16"; }), {"optimizer.state_dtype", "float32", "got bfloat16"}},
      {with([](auto&) {}), with([](auto& o) { o.param_groups.clear(); }), {"groups of parameters", "2 of them, got 1"}},
      {with([](auto&) {}), with([](auto& o) { o.param_groups[0].pattern = "ffn_norm"; }), {"group \"norm\"", "others"}},
      {with([](auto& o) { o.name = "SGD", o.momentum = 0.9; }), with([](auto& o) { o.name = "SGD"; }), {"with momentum", "momentum as it was"}},
  };
  for (const auto& c : cases) {
    Config config;
    config.optimizer = c.now;
    try {
      checkpoint::State saved;
      saved.optimizer_kind = described(c.before);
      check_same_optimizer(saved, config, *model, "step-5");
      EXPECT_TRUE(c.parts.empty()) << c.parts[0];
    } catch (const InvalidArgument& e) {
      EXPECT_FALSE(c.parts.empty()) << e.what();
      for (const char* part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    }
  }
}

}  // namespace
}  // namespace flambeau::train
