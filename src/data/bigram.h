// The baseline that a trained model has to beat: how well the last token alone predicts the next.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "data/corpus.h"

namespace flambeau::data {

// Bigram counts, interpolated with unigrams after Witten and Bell ("The zero-frequency problem", 1991; method C):
//   p(b | a) = (count(a b) + kinds(a) p(b)) / (count(a) + kinds(a))    kinds(a): how many different tokens were seen after a
//   p(b)     = (count(b) + 1) / (tokens + vocab_size)
// Pairs are counted within documents only, as labels are.
class Bigram {
 public:
  explicit Bigram(const Corpus& train);

  double probability(int64_t previous, int64_t next) const;
  // Nats a token over every label of the corpus (all tokens but each document's first). InvalidArgument when it has none, or
  // another vocabulary.
  double cross_entropy(const Corpus& corpus) const;

 private:
  struct Previous {
    int64_t count = 0, kinds = 0;
  };
  int64_t vocab_size_, total_ = 0;
  std::vector<int64_t> next_counts_;
  std::vector<Previous> previous_;
  std::unordered_map<uint64_t, int64_t> pairs_;  // previous x vocab_size + next
};

}  // namespace flambeau::data
