#include "plan/search/record.h"

#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace flambeau::plan {

using nlohmann::json;

SearchRecord::SearchRecord(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (std::filesystem::is_regular_file(path_)) read();
  file_.open(path_, std::ios::app);
  if (!file_) raise<IoError>("cannot write {}; choose another place with --search-record", path_.string());
  std::error_code error;
  if (const auto size = std::filesystem::file_size(path_, error); !error && size > 0) {
    std::ifstream tail(path_, std::ios::binary);
    tail.seekg(-1, std::ios::end);
    if (tail.get() != '\n') file_ << '\n';  // a line that was cut off must not swallow the next
  }
}

void SearchRecord::read() {
  const std::string text = read_file(path_);
  constexpr std::string_view kBegins = "{\"";  // as a line of ours does; a report, for example, does not
  if (text.substr(0, kBegins.size()) != kBegins.substr(0, text.size()))
    raise<InvalidArgument>("{}: expected the record of a search, got something else, which is left as it is; choose another place with "
                           "--search-record", path_.string());
  for (const std::string& line : split(text, '\n')) {
    const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    try {
      known_[row.at("key")] = {.choice = {}, .keys = {}, .total = row.at("total"), .step_s = row.at("step_s"),
                               .tokens_per_second_per_chip = row.at("tokens_per_second_per_chip"), .mfu = row.at("mfu"),
                               .fits = row.at("fits"), .compiled = true, .given = false, .failure = {}};
    } catch (const json::exception&) {
      // Cut off, or not a line of ours: it is compiled again.
    }
  }
}

const Candidate* SearchRecord::find(const std::string& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

void SearchRecord::add(const std::string& key, const Candidate& c) {
  if (!c.failure.empty()) return;
  known_[key] = c;
  if (path_.empty()) return;
  const json row = {{"key", key}, {"total", c.total}, {"step_s", c.step_s}, {"tokens_per_second_per_chip", c.tokens_per_second_per_chip},
                    {"mfu", c.mfu}, {"fits", c.fits}, {"configuration", describe(c.keys)}};
  file_ << row.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
  if (!file_.flush()) raise<IoError>("cannot write {}; choose another place with --search-record", path_.string());
}

}  // namespace flambeau::plan
