#include "train/summary.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flambeau::train {
namespace {

using testing::HasSubstr;

TEST(Summary, SaysWhatAStepIs) {
  Config config;
  config.optimizer.param_groups = {{.pattern = "norm", .weight_decay = 0}};
  const auto model = models::make_model("llama3", "debug", {.vocab_size = 320});
  const SummaryFacts facts{.degrees = {.shard = 4, .tensor = 2}, .batching = {.context = 1024, .sequences = 8, .accumulation = 3},
                           .parameters_per_device = 610720, .attention = "chunked instead of flash: no JAX", .argument_bytes = int64_t{3} << 29, .temporary_bytes = int64_t{1} << 30};
  const std::string table = format_table(summary_rows(config, *model, facts), false);
  for (const char* line : {"mesh             8 devices: shard 4 x tensor 2", "610,720 a device (llama3 debug)",
                           "tokens a step    24,576 = 3 microbatches x 8 rows of 1,024, 2 rows a data-parallel rank",
                           "memory a device  2.50 GiB: 1.50 GiB of state and batch, 1.00 GiB of temporaries, as compiled",
                           "FLOPs a token    4.77e+07 (causal 3.827e+07)", "AdamW, parameters norm: ", "attention        chunked instead of flash: no JAX"}) {
    EXPECT_THAT(table, HasSubstr(line));
  }
  const SummaryFacts one{.degrees = {}, .batching = {.context = 8, .sequences = 1, .accumulation = 1}};
  EXPECT_THAT(format_table(summary_rows(config, *model, one), false),
              testing::AllOf(HasSubstr("1 device\n"), HasSubstr("8 = 1 microbatch x 1 row of 8\n"), HasSubstr("not known")));
}

TEST(Summary, LinesFit) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word ";
  const std::string unbroken(250, 'x');
  const std::string table = format_table({{"a", words}, {"name", unbroken}, {"none", ""}}, false);
  std::istringstream lines(table);
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100);
    EXPECT_GE(line.size(), 6);
    all += line.substr(6);
  }
  EXPECT_EQ(std::ranges::count(all, 'x'), 250);
  EXPECT_EQ(std::ranges::count(all, 'w'), 60);
  EXPECT_THAT(format_table({{"a", "b"}}, true), HasSubstr("\033[1ma\033[0m  b"));
}

}  // namespace
}  // namespace flambeau::train
