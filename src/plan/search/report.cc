// What a search found, as text and as JSON.
#include <algorithm>
#include <iterator>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/report/format.h"
#include "plan/search/search.h"

namespace flambeau::plan {
namespace {

using nlohmann::json;
using Kind = Column::Kind;

constexpr size_t kWidth = 100;

std::string note_of(const Candidate& c) {
  std::string note = !c.failure.empty() ? "failed" : !c.fits ? "too large" : c.compiled ? "" : "analytic";
  return c.given ? note + "*" : note;
}

std::string table_of(std::span<const Candidate> candidates) {
  const bool has_copies = std::ranges::any_of(candidates, [](const Candidate& c) { return c.choice.mesh.replicate > 1; });
  const bool has_blocks = std::ranges::any_of(candidates, [](const Candidate& c) { return !blocks_text(c.choice).empty(); });
  std::vector<Column> columns;
  if (has_copies) columns.push_back({"copies", Kind::Number});
  columns.insert(columns.end(), {{"shard", Kind::Number}, {"tensor", Kind::Number}, {"rows", Kind::Number}, {"checkpoint"}});
  if (has_blocks) columns.push_back({"blocks"});
  columns.insert(columns.end(), {{"GiB", Kind::Number}, {"step s", Kind::Number}, {"tok/s/chip", Kind::Number}, {"MFU", Kind::Number}, {""}});
  TextTable table(std::move(columns));
  for (const Candidate& c : candidates) {
    const Mesh& mesh = c.choice.mesh;
    std::vector<std::string> cells;
    if (has_copies) cells.push_back(std::to_string(mesh.replicate));
    cells.insert(cells.end(), {std::to_string(mesh.shard), std::to_string(mesh.tensor), std::to_string(c.choice.rows), checkpoint_text(c.choice)});
    if (has_blocks) cells.push_back(blocks_text(c.choice));
    if (c.failure.empty()) {
      cells.insert(cells.end(), {fixed(static_cast<double>(c.total) / 0x1p30, 2), fixed(c.step_s, c.step_s < 10 ? 3 : 2),
                                 format_count(c.tokens_per_second_per_chip), format_percent(c.mfu)});
    } else {
      cells.insert(cells.end(), 4, "");
    }
    cells.push_back(note_of(c));
    table.add(std::move(cells));
  }
  std::string text;
  for (const std::string& line : table.lines(kWidth)) text += line + '\n';
  return text;
}

}  // namespace

std::string to_text(const SearchResult& result, size_t rows) {
  std::vector<Candidate> shown;
  const bool some = std::ranges::any_of(result.candidates, &Candidate::compiled);
  std::ranges::copy_if(result.candidates, std::back_inserter(shown), [&](const Candidate& c) { return c.compiled || !some; });
  const size_t all = shown.size();
  shown.resize(std::min(rows, all));
  std::string text = count_of(result.considered, "legal configuration", "legal configurations");
  text += some ? fmt::format(", {} of them compiled", all) : ", by the analytic mode alone";
  if (all > shown.size()) text += fmt::format(", the best {} below", shown.size());
  text += "; times are estimates\n";
  if (result.hopeless > 0)
    text += fmt::format("of {}, parameters and optimizer states alone do not fit\n", count_of(result.hopeless, "other", "others"));
  text += table_of(shown);
  if (std::ranges::any_of(shown, &Candidate::given)) text += "* the configuration as given\n";
  for (const Candidate& c : shown)
    if (!c.failure.empty())
      for (const std::string& line : wrap(clean(fmt::format("failed, {}: {}", describe(c.keys), c.failure)), kWidth)) text += line + '\n';
  return text;
}

std::string to_json(const SearchResult& result) {
  json candidates = json::array();
  for (const Candidate& c : result.candidates) {
    json keys = json::object();
    for (const auto& [key, value] : c.keys) keys[key] = value;
    candidates.push_back({{"keys", keys}, {"total", c.total}, {"step_s", c.step_s},
                          {"tokens_per_second_per_chip", c.tokens_per_second_per_chip}, {"mfu", c.mfu}, {"fits", c.fits},
                          {"compiled", c.compiled}, {"given", c.given}, {"failure", c.failure}});
  }
  return json{{"considered", result.considered}, {"hopeless", result.hopeless}, {"found", result.best() != nullptr},
              {"candidates", candidates}}
             .dump(1, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace flambeau::plan
