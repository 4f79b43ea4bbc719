// The fastest way to train a model on a pod, as far as estimates tell: meshes, activation-checkpoint policies, microbatches and blocks of
// attention.
//
// A step keeps the configuration's number of sequences whatever the mesh, so that steps mean the same. The analytic mode estimates every
// legal combination, which takes a fraction of a second each; the compiler is asked of the promising ones. Its answers correct the
// analytic ones of others alike, and so decide what is asked next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "plan/search/alternatives.h"
#include "plan/search/space.h"

namespace flambeau::plan {

struct SearchOptions {
  int64_t compilations = 24;     // at most, before blocks of attention; half as many more where nothing fits
  std::filesystem::path record;  // what was compiled is kept here, a line each, and not compiled again; empty: nowhere
};

struct Candidate {
  Choice choice;
  Keys keys;            // on top of the configuration; none: itself
  int64_t total = 0;    // HBM a device
  double step_s = 0;    // estimated
  double tokens_per_second_per_chip = 0;
  double mfu = 0;
  bool fits = false;      // never what failed
  bool compiled = false;  // else analytic
  bool given = false;     // what the configuration says by itself
  std::string failure;    // why the compiler gave nothing
};

struct SearchResult {
  // The best first: what was compiled and fits, what should fit by the analytic mode, what does not.
  std::vector<Candidate> candidates;
  int64_t considered = 0;  // legal configurations
  int64_t hopeless = 0;    // others, whose parameters and optimizer states alone do not fit
  bool compiler = false;   // there was one

  // The best that fits, as the compiler says where there is one; null: none.
  const Candidate* best() const;
  // Whether the compiler gave any answer; and why it did not the first time that it did not, empty where it always did.
  bool answered() const;
  std::string first_failure() const;
};

SearchResult search(const Planner& planner, const train::Config& config, const SearchOptions& options, const Progress& progress);

// The best first.
void rank(std::vector<Candidate>& candidates);

// A ranked table of the best `rows`, at most 100 wide: of what was compiled, where something was.
std::string to_text(const SearchResult& result, size_t rows = 20);
std::string to_json(const SearchResult& result);

}  // namespace flambeau::plan
