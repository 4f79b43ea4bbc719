// What a search tries, remembers, ranks and says. That it finds something is for tests/python/test_plan.py, with TPU's compiler.
#include "plan/search/search.h"

#include <algorithm>
#include <cstdlib>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "pjrt/test_util.h"
#include "pjrt/topology_compiler.h"
#include "plan/report/format.h"
#include "plan/search/record.h"

namespace flambeau::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Candidate candidate(double rate, bool fits, bool compiled, std::string failure = {}) {
  Candidate c;
  c.choice = {.mesh = {.tensor = 2, .replicate = 1, .shard = 8}, .rows = 1, .checkpoint = "full"};
  c.keys = {{"parallelism.tensor_parallel_degree", "2"}};
  c.total = int64_t{12} << 30;
  c.step_s = 1 / rate;
  c.tokens_per_second_per_chip = rate;
  c.fits = fits;
  c.compiled = compiled;
  c.failure = std::move(failure);
  return c;
}

// ---- the space ------------------------------------------------------------------------------------------------------------------

TEST(SearchSpace, IsMadeOfMeshesThatDivideDevicesAndBatch) {
  const struct {
    int64_t devices, slices, rows_per_step;
    size_t meshes;
  } kCases[] = {
      {1, 1, 1, 1},
      {16, 1, 16, 5 + 4 + 3 + 2 + 1},  // tensor 1, 2, 4, 8, 16, and what is left in two
      {16, 2, 16, 4 + 3 + 2 + 1},      // two copies at least
      {16, 1, 4, 3 + 2 + 1},           // 4 ranks at most: tensor 4, 8, 16
      {12, 1, 12, 6 + 4 + 3 + 2 + 2 + 1},
      {64, 1, 64, 7 + 6 + 5 + 4 + 3},  // tensor 16 at most
      {4, 1, 3, 1},                    // one rank alone
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(fmt::format("{} {} {}", c.devices, c.slices, c.rows_per_step));
    const std::vector<Choice> all = choices({}, c.devices, c.slices, c.rows_per_step);
    std::vector<Mesh> meshes;
    for (const Choice& choice : all) {
      const Mesh& m = choice.mesh;
      if (std::ranges::find(meshes, m) == meshes.end()) meshes.push_back(m);
      EXPECT_EQ(m.tensor * m.replicate * m.shard, c.devices);
      EXPECT_EQ(m.replicate % c.slices, 0);
      EXPECT_EQ(c.rows_per_step % (m.replicate * m.shard * choice.rows), 0);
      EXPECT_EQ(std::ranges::count(all, choice), 1);
    }
    EXPECT_EQ(meshes.size(), c.meshes);
  }
}

TEST(SearchSpace, IsSaidInKeysThatMeanIt) {
  train::Config config;
  train::set_from_text(config, "training.max_context_length", "128");
  for (const bool in_sequences : {false, true}) {
    if (in_sequences) train::set_from_text(config, "training.sequences_per_microbatch", "3");
    for (const Choice& choice : choices(config, 8, 1, 24)) {
      const train::Config changed = with_keys(config, keys_of(config, choice, 24));
      train::check_config(changed);
      const train::Batching batching = train::batching(changed, choice.mesh.replicate * choice.mesh.shard);
      EXPECT_EQ(batching.sequences_per_step(), 24);
      StepProgram step;
      step.degrees = {.replicate = choice.mesh.replicate, .shard = choice.mesh.shard, .tensor = choice.mesh.tensor};
      step.batching = batching;
      EXPECT_EQ(choice_of(changed, step), choice) << describe(keys_of(config, choice, 24));
    }
  }
}

// ---- the record -----------------------------------------------------------------------------------------------------------------

class SearchRecordTest : public testing::Test {
 protected:
  pjrt::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path / "record.jsonl";
};

TEST_F(SearchRecordTest, RemembersAnswersButNoFailures) {
  {
    SearchRecord record(path_);
    record.add("a", candidate(5, true, true));
    record.add("b", candidate(6, false, true));
    record.add("late", candidate(1, false, true, "[plan] expected an answer within 1 s, got none"));
    EXPECT_NE(record.find("a"), nullptr);
  }
  const SearchRecord record(path_);
  ASSERT_NE(record.find("a"), nullptr);
  EXPECT_EQ(record.find("a")->tokens_per_second_per_chip, 5);
  EXPECT_EQ(record.find("a")->total, int64_t{12} << 30);
  EXPECT_TRUE(record.find("a")->fits && record.find("a")->compiled);
  ASSERT_NE(record.find("b"), nullptr);
  EXPECT_FALSE(record.find("b")->fits);
  EXPECT_EQ(record.find("late"), nullptr);
  EXPECT_EQ(record.find("c"), nullptr);
}

TEST_F(SearchRecordTest, GoesOnBehindALineThatWasCutOff) {
  {
    SearchRecord record(path_);
    record.add("a", candidate(5, true, true));
    record.add("b", candidate(6, true, true));
  }
  const std::string whole = read_file(path_);
  const size_t first = whole.find('\n') + 1;
  for (size_t kept = first; kept < whole.size(); ++kept) {
    write_file_atomically(path_, whole.substr(0, kept));
    {
      SearchRecord record(path_);
      EXPECT_NE(record.find("a"), nullptr);
      EXPECT_EQ(record.find("b") != nullptr, kept + 1 == whole.size()) << "only the line's end is missing: it is whole";
      record.add("c", candidate(7, true, true));
    }
    const SearchRecord again(path_);
    for (const char* key : {"a", "c"}) EXPECT_NE(again.find(key), nullptr) << key << ", " << kept << " bytes";
  }
}

TEST_F(SearchRecordTest, IsOpenedAtOnceAndOverwritesNothing) {
  EXPECT_THROW(SearchRecord("/no/such/folder/record.jsonl"), IoError);
  for (const std::string other : {"[model]\nname = \"llama3\"\n", "{\n \"found\": true\n}\n", "\n"}) {
    write_file_atomically(path_, other);
    EXPECT_THROW(SearchRecord{path_}, InvalidArgument) << other;
    EXPECT_EQ(read_file(path_), other);
  }
  write_file_atomically(path_, "{\"key\": 3}\n{}\n[]\n{\"key\": \"a\", \"total\": \"many\"}\n\xff{\n");
  const SearchRecord record(path_);
  EXPECT_EQ(record.find("a"), nullptr);
}

// ---- without a compiler that answers --------------------------------------------------------------------------------------------

// A planner whose compiler never answers. Its devices are those of all tests of this program: an engine keeps its target.
class DeafCompiler : public testing::Test {
 protected:
  void SetUp() override { setenv("FLAMBEAU_TOPOLOGY_COMPILER", "/bin/false", 1); }
  void TearDown() override { unsetenv("FLAMBEAU_TOPOLOGY_COMPILER"); }

  static train::Config config() {
    train::Config config;
    for (const auto& [key, value] : Keys{{"model.scan", "true"}, {"model.n_layers", "2"}, {"training.max_context_length", "256"},
                                         {"training.sequences_per_microbatch", "1"}})
      train::set_from_text(config, key, value);
    return config;
  }

  Planner planner_{parse_pod("v5e:2x4"), {.plugin = pjrt::find_plugin("cpu")}};
};

TEST_F(DeafCompiler, LetsNothingBeFound) {
  const SearchResult result = search(planner_, config(), {.compilations = 2, .record = {}}, {});
  EXPECT_EQ(result.best(), nullptr);
  EXPECT_FALSE(result.answered());
  EXPECT_THAT(result.first_failure(), Not(testing::IsEmpty()));
  EXPECT_GT(result.considered, 20);
  EXPECT_EQ(std::ranges::count(result.candidates, true, &Candidate::compiled), 4);  // two, and two more since nothing fits
  EXPECT_EQ(std::ranges::count(result.candidates, true, &Candidate::given), 1);
  for (const Candidate& c : result.candidates) EXPECT_EQ(c.compiled, !c.failure.empty());
  const std::string text = to_text(result);
  EXPECT_THAT(text, AllOf(HasSubstr("4 of them compiled"), HasSubstr("failed*"), Not(HasSubstr("analytic"))));
  EXPECT_FALSE(nlohmann::json::parse(to_json(result))["found"].get<bool>());
}

TEST_F(DeafCompiler, RaisesWhatARecorderRaises) {
  const std::vector<Draft> drafts(3, planner_.record(config()));
  int told = 0;
  const auto raise_io = [&](size_t, const Outcome& outcome) {
    ++told;
    EXPECT_NE(outcome.failure, "");
    raise<IoError>("cannot write the record");
  };
  EXPECT_EQ(pjrt::message_of<IoError>([&] { compile_all(planner_, drafts, {}, raise_io); }), "cannot write the record");
  EXPECT_GE(told, 1);
}

TEST_F(DeafCompiler, IsNotAskedAfterAllWasGivenUp) {
  int asked = 0;
  const Progress impatient{.goes_on = [&] { return ++asked < 5; }, .report = {}};
  EXPECT_THROW(search(planner_, config(), {}, impatient), pjrt::Cancelled);
}

// ---- ranks and words ------------------------------------------------------------------------------------------------------------

TEST(SearchResult, RanksWhatWasCompiledAndFitsFirst) {
  SearchResult result{.candidates = {candidate(9, false, true), candidate(8, true, false), candidate(5, true, true),
                                     candidate(7, false, false), candidate(6, true, true), candidate(0.1, false, true, "crashed")},
                      .considered = 6, .hopeless = 1, .compiler = true};
  rank(result.candidates);
  std::vector<double> rates;
  for (const Candidate& c : result.candidates) rates.push_back(c.tokens_per_second_per_chip);
  EXPECT_THAT(rates, testing::ElementsAre(6, 5, 8, 9, 7, 0.1));
  ASSERT_NE(result.best(), nullptr);
  EXPECT_EQ(result.best()->tokens_per_second_per_chip, 6);
  const std::string text = to_text(result, 3);
  EXPECT_THAT(text, AllOf(HasSubstr("6 legal configurations, 4 of them compiled, the best 3 below"),
                          HasSubstr("of 1 other, parameters and optimizer states alone do not fit"), Not(HasSubstr("copies")), Not(HasSubstr("crashed"))));

  // What was not compiled is not found, unless nothing could be.
  result.candidates = {candidate(8, true, false)};
  EXPECT_EQ(result.best(), nullptr);
  result.compiler = false;
  EXPECT_NE(result.best(), nullptr);
  EXPECT_THAT(to_text(result), HasSubstr("by the analytic mode alone"));
}

TEST(SearchResult, IsNoWiderThanATerminal) {
  SearchResult result{.candidates = {}, .considered = 1234, .hopeless = 567, .compiler = true};
  for (const bool fits : {true, false}) {
    Candidate c = candidate(123456, fits, true);
    c.choice = {.mesh = {.tensor = 16, .replicate = 3, .shard = 256}, .rows = 16, .checkpoint = "budget", .budget = 0.15, .block_q = 1024,
                .block_kv = 1024};
    c.step_s = 36.789;
    c.mfu = 0.654;
    c.given = true;
    result.candidates.push_back(c);
  }
  result.candidates.push_back(candidate(1, false, true, std::string(300, 'x')));
  result.candidates.back().failure += " and more";
  const std::string text = to_text(result);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) EXPECT_LE(width_of(text.substr(at, end - at)), 100);
  EXPECT_THAT(text, AllOf(HasSubstr("budget 0.15"), HasSubstr("1024 x 1024"), HasSubstr("123,456"), HasSubstr("65.4%"),
                          HasSubstr("too large*"), HasSubstr("and more"), Not(HasSubstr("..."))));
}

}  // namespace
}  // namespace flambeau::plan
