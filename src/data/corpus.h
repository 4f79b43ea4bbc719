// Documents as token ids, and the part of them that is held out from training.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/source.h"
#include "data/tokenizer.h"

namespace flambeau::data {

// The token ids of all documents, one after the other (four bytes a token, in memory). Each document is bos, its text, eos.
class Corpus {
 public:
  Corpus(std::span<const Document> documents, const Tokenizer& tokenizer);

  int64_t documents() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return starts_.back(); }
  std::span<const int32_t> document(int64_t i) const;
  int64_t length(int64_t i) const { return starts_[static_cast<size_t>(i) + 1] - starts_[static_cast<size_t>(i)]; }
  int64_t eos() const { return eos_; }
  int64_t vocab_size() const { return vocab_size_; }
  uint64_t hash() const;  // of the ids and of where documents begin

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> starts_{0};
  int64_t eos_, vocab_size_;
};

struct Split {
  std::vector<Document> train, held_out;
};

// Holds out about `fraction` (in [0, 1)) of the documents. A document's content alone decides, so the split does not change with
// seeds, names, order or further documents, and copies of one text never stand on both sides. With a positive fraction neither
// side is left empty: of a single document the end is held out, from a line's start where there is one.
// InvalidArgument when there is too little text to split.
Split split_documents(std::vector<Document> documents, double fraction);

}  // namespace flambeau::data
