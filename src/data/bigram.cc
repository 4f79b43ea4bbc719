#include "data/bigram.h"

#include <cmath>

#include "base/error.h"

namespace flambeau::data {
namespace {

uint64_t pair_key(int64_t previous, int64_t next, int64_t vocab_size) {
  return static_cast<uint64_t>(previous * vocab_size + next);
}

}  // namespace

Bigram::Bigram(const Corpus& train)
    : vocab_size_(train.vocab_size()),
      next_counts_(static_cast<size_t>(vocab_size_)),
      previous_(static_cast<size_t>(vocab_size_)) {
  for (int64_t d = 0; d < train.documents(); ++d) {
    auto ids = train.document(d);
    for (size_t i = 1; i < ids.size(); ++i) {
      int64_t& count = pairs_[pair_key(ids[i - 1], ids[i], vocab_size_)];
      Previous& previous = previous_[static_cast<size_t>(ids[i - 1])];
      previous.kinds += count == 0;
      ++previous.count;
      ++count;
      ++next_counts_[static_cast<size_t>(ids[i])];
      ++total_;
    }
  }
}

double Bigram::probability(int64_t previous, int64_t next) const {
  double alone = static_cast<double>(next_counts_.at(static_cast<size_t>(next)) + 1) / static_cast<double>(total_ + vocab_size_);
  const Previous& seen = previous_.at(static_cast<size_t>(previous));
  if (seen.count == 0) return alone;
  auto found = pairs_.find(pair_key(previous, next, vocab_size_));
  double count = found == pairs_.end() ? 0 : static_cast<double>(found->second);
  return (count + static_cast<double>(seen.kinds) * alone) / static_cast<double>(seen.count + seen.kinds);
}

double Bigram::cross_entropy(const Corpus& corpus) const {
  if (corpus.vocab_size() != vocab_size_) {
    raise<InvalidArgument>("[bigram] expected text of a vocabulary of {}, got {}; use one tokenizer", vocab_size_,
                           corpus.vocab_size());
  }
  // Text is far longer than its list of different pairs: count first, take logarithms once a pair.
  std::unordered_map<uint64_t, int64_t> pairs;
  int64_t labels = 0;
  for (int64_t d = 0; d < corpus.documents(); ++d) {
    auto ids = corpus.document(d);
    for (size_t i = 1; i < ids.size(); ++i) ++pairs[pair_key(ids[i - 1], ids[i], vocab_size_)];
    labels += std::ssize(ids) - 1;
  }
  if (labels == 0) raise<InvalidArgument>("[bigram] expected text to measure on, got none; hold some documents out");
  double sum = 0;
  for (auto [key, count] : pairs) {
    auto pair = static_cast<int64_t>(key);
    sum -= static_cast<double>(count) * std::log(probability(pair / vocab_size_, pair % vocab_size_));
  }
  return sum / static_cast<double>(labels);
}

}  // namespace flambeau::data
