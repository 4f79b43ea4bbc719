#include "train/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/test_files.h"

namespace flambeau::train {
namespace {

using testing::HasSubstr;

class ResumeTest : public FileTest {
 protected:
  // Begins a run as `flambeau train` with --checkpoint.load_step `asked` does; -1: without it.
  Beginning begin(int64_t asked = -1) {
    Config config;
    config.dump_folder = folder_.string();
    config.checkpoint.enable = true;
    if (asked >= 0) set_from_text(config, "checkpoint.load_step", std::to_string(asked));
    Beginning beginning = choose_beginning(config);
    if (beginning.step) beginning.folder->abandon_after(*beginning.step);
    return beginning;
  }
  static void save(const Beginning& run, int64_t step) {
    checkpoint::State state;
    state.step = step;
    state.data_cursor = "{}";
    state.went_back_to = run.went_back_to;
    run.folder->save(state, 0);
  }
};

TEST_F(ResumeTest, ACommandLineSendsARunBackOnce) {
  {
    const Beginning first = begin();
    EXPECT_EQ(first.step, std::nullopt);
    for (const int64_t step : {2, 4}) save(first, step);
  }
  EXPECT_EQ(begin().step, 4);
  EXPECT_EQ(begin(2).step, 2) << "back";
  EXPECT_EQ(begin(2).step, 2) << "killed before it saved anything";
  save(begin(2), 4);
  save(begin(2), 6);
  EXPECT_EQ(begin(2).step, 6) << "not once more";
  save(begin(6), 8);  // the newest, as long as the run has gone no further
  EXPECT_EQ(begin(6).step, 8);
  save(begin(6), 10);
  EXPECT_EQ(begin(6).step, 10);
  EXPECT_EQ(begin(8).step, 8) << "another step is another wish";
  try {
    begin(7);
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), HasSubstr("one of the saved steps [2, 4, 6, 8], got 7"));
  }
}

}  // namespace
}  // namespace flambeau::train
