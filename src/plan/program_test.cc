// The step of a configuration, recorded ahead of time.
#include "plan/program.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/planner.h"
#include "train/trainer.h"

namespace flambeau::plan {
namespace {

// The one of all tests of this program: an engine keeps its target.
const targets::Target kTarget = targets::Target::ahead_of_time(targets::chip_of(targets::Generation::V5e), 8);

TEST(StepProgram, IsCompiledWithTheOptionsOfTheConfiguration) {
  train::Config config;
  const StepProgram usual = record_step(config, kTarget);
  EXPECT_FALSE(usual.program->options.overrides.contains("xla_asked_for"));
  EXPECT_FALSE(usual.program->options.preferences.empty());

  train::set_from_text(config, "compile.options", "xla_asked_for=3,xla_enable_hlo_sharding_v3=true");
  const StepProgram asked = record_step(config, kTarget);
  EXPECT_EQ(asked.program->text, usual.program->text);
  EXPECT_EQ(asked.program->options.overrides.at("xla_asked_for"), pjrt::CompileFlags::mapped_type(int64_t{3}));
  EXPECT_EQ(asked.program->options.overrides.at("xla_enable_hlo_sharding_v3"), pjrt::CompileFlags::mapped_type(true));
  EXPECT_EQ(asked.program->options.preferences, usual.program->options.preferences);
}

TEST(StepProgram, HasNoStatesOfWhatIsFrozen) {
  train::Config config;
  train::set_from_text(config, "model.freeze", "tok_embeddings,norm");
  const auto count = [&](MemoryKind kind) {
    return std::ranges::count(record_step(config, kTarget).arguments, kind, &Argument::kind);
  };
  const auto parameters = count(MemoryKind::Parameters), states = count(MemoryKind::OptimizerStates);
  config.model.freeze.clear();
  EXPECT_EQ(count(MemoryKind::OptimizerStates), 2 * count(MemoryKind::Parameters));
  EXPECT_EQ(parameters, count(MemoryKind::Parameters));
  const int64_t layers = train::make_configured_model(config)->sizes().layers;
  EXPECT_EQ(states, 2 * (parameters - 1 - (2 * layers + 1)));  // the embedding, two norms a layer, the last norm
}

TEST(Planner, SaysWhichKeysDoNothing) {
  train::Config config;
  const Planner planner(parse_pod("v5e:2x4", 1), {.analytic = true});
  EXPECT_TRUE(planner.record(config).report.warnings.empty());
  train::set_from_text(config, "optimizer.momentum", "0.9");
  train::set_from_text(config, "device", "cpu");
  train::set_from_text(config, "model.attention", "chunked");  // a plan is for TPUs, so this one counts
  EXPECT_THAT(planner.record(config).report.warnings, testing::ElementsAre(testing::StartsWith("optimizer.momentum has no effect")));
}

}  // namespace
}  // namespace flambeau::plan
