// Samples of equal length, packed from documents, in an order that can be left and taken up again anywhere.
//
// An epoch lays all documents one after the other (in an order drawn anew for each epoch) and cuts the row of tokens every
// seq_len tokens; the samples so made are put into an order drawn anew too. Everything is a function of (seed, epoch, sample
// index). The only state is a Cursor, which counts samples over all data-parallel ranks, so that a run may be taken up with
// another number of ranks and sees the same samples in the same order.
//
// A sample holds parts of one or more documents. `documents` numbers them, `positions` counts from 0 in each part, and the label of a
// document's last token is ignored: nothing leads from one document into another. The part of a long document that begins
// at a cut counts from 0 as well, so positions are always less than seq_len.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"

namespace flambeau::data {

inline constexpr int64_t kIgnoredLabel = -100;

struct Batch {
  int64_t rows = 0, seq_len = 0;
  // [rows, seq_len] each, row-major
  std::vector<int64_t> tokens;     // what the model reads
  std::vector<int64_t> labels;     // the next token of the same document, or kIgnoredLabel
  std::vector<int64_t> positions;  // within the part of the document that the sample holds
  std::vector<int64_t> documents;  // 0, 1, 2, ... within the sample: tokens attend to tokens of an equal number

  Batch() = default;
  Batch(int64_t rows, int64_t seq_len);
  int64_t valid_labels() const;  // not ignored
  friend bool operator==(const Batch&, const Batch&) = default;
};

// The next sample to be used.
struct Cursor {
  int64_t epoch = 0;
  int64_t sample = 0;  // less than samples_per_epoch()
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

struct DatasetOptions {
  int64_t seq_len = 0;
  uint64_t seed = 42;
  bool shuffle = true;           // documents, and samples within an epoch
  bool keep_remainder = false;   // what does not fill a sample at an epoch's end: a padded sample of its own, or left out
};

// Immutable; may be used from several threads.
class Dataset {
 public:
  // InvalidArgument when the corpus does not fill one sample.
  Dataset(Corpus corpus, const DatasetOptions& options);

  int64_t samples_per_epoch() const { return samples_; }
  int64_t seq_len() const { return options_.seq_len; }
  const Corpus& corpus() const { return corpus_; }
  // Equal for datasets that give the same samples in the same order.
  uint64_t fingerprint() const { return fingerprint_; }

  // The cursor `samples` (>= 0) after `cursor`.
  Cursor advance(Cursor cursor, int64_t samples) const;

  // JSON for a checkpoint. load_cursor refuses (InvalidArgument) what is damaged or was saved for another dataset.
  std::string save_cursor(Cursor cursor) const;
  Cursor load_cursor(std::string_view json) const;

  // The order of one epoch. Making it costs time in the number of documents and samples; it refers to its dataset.
  class Epoch {
   public:
    Epoch(const Dataset& dataset, int64_t epoch);
    int64_t number() const { return number_; }
    // Fills row `row` of `batch` with sample `sample` of the epoch.
    void fill(int64_t sample, Batch& batch, int64_t row) const;

   private:
    const Dataset* dataset_;
    int64_t number_;
    std::vector<int64_t> documents_;  // in the order in which they are laid out
    std::vector<int64_t> starts_;     // where each begins in the row of tokens
    std::vector<int64_t> samples_;    // which cut the n-th sample is
  };

 private:
  Corpus corpus_;
  DatasetOptions options_;
  int64_t samples_;
  uint64_t fingerprint_;
};

// A row without a sample: eos throughout, every label ignored.
void fill_padding(const Dataset& dataset, Batch& batch, int64_t row);

}  // namespace flambeau::data
