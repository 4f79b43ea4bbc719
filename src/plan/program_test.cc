// The step of a configuration, recorded for devices that are not here.
#include "plan/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace flambeau::plan
