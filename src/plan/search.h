// The fastest way to train a model on a pod, as far as estimates tell: meshes, activation-checkpoint policies, microbatches and blocks of
// attention. The analytic mode ranks all of them; the promising ones are compiled, several at a time.
//
// A step keeps the configuration's number of sequences whatever the mesh, so that steps mean the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "plan/alternatives.h"

namespace flambeau::plan {

struct SearchOptions {
  int64_t compilations = 16;     // of the most promising candidates
  std::filesystem::path record;  // what was compiled is kept here, a line each, and not compiled again; empty: nowhere
};

struct Candidate {
  Keys keys;            // on top of the configuration
  int64_t total = 0;    // HBM a device
  double step_s = 0;    // estimated
  double tokens_per_second_per_chip = 0;
  double mfu = 0;
  bool fits = false;
  bool compiled = false;  // else analytic
  std::string failure;    // why the compiler gave nothing
};

struct SearchResult {
  std::vector<Candidate> candidates;  // the best first: what fits before what does not, compiled before analytic
  int64_t considered = 0;             // legal configurations
  bool found() const { return !candidates.empty() && candidates.front().fits; }
};

SearchResult search(const Planner& planner, const train::Config& config, const SearchOptions& options, const Progress& progress);

// A ranked table of the best `rows`, at most 100 wide.
std::string to_text(const SearchResult& result, size_t rows = 20);
std::string to_json(const SearchResult& result);

}  // namespace flambeau::plan
