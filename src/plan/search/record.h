// What a search has compiled, in a file: one JSON object a line, so that an interrupted search goes on where it was.
//
// Only answers are kept. What failed, for want of time or memory, is tried again by the next search. Internal to src/plan.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "plan/search/search.h"

namespace flambeau::plan {

class SearchRecord {
 public:
  // Opens the file for as long as it lives; an empty path: remembers for as long. IoError when it cannot be written,
  // InvalidArgument when it holds something else. A last line that was cut off, since its writer was killed, counts as not there.
  explicit SearchRecord(std::filesystem::path path);

  // The answer to a program with that key, without what was asked; null where there is none.
  const Candidate* find(const std::string& key) const;
  // IoError when it cannot be written.
  void add(const std::string& key, const Candidate& candidate);

 private:
  void read();

  std::filesystem::path path_;
  std::ofstream file_;
  std::map<std::string, Candidate> known_;
};

}  // namespace flambeau::plan
