#include "data/dataset.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"

namespace flambeau::data {
namespace {

// Fisher-Yates from counters: the same permutation with every compiler and library, which std::shuffle does not promise.
void shuffle(std::vector<int64_t>& values, uint64_t seed, int64_t epoch, std::string_view what) {
  for (size_t i = values.size(); i > 1; --i) {
    uint64_t bits = Hasher().add(seed).add(epoch).add(what).add(i).value();
    auto j = static_cast<size_t>((static_cast<unsigned __int128>(bits) * i) >> 64);
    std::swap(values[i - 1], values[j]);
  }
}

std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), int64_t{0});
  return values;
}

}  // namespace

Batch::Batch(int64_t rows, int64_t seq_len) : rows(rows), seq_len(seq_len) {
  auto size = static_cast<size_t>(rows * seq_len);
  for (auto* values : {&tokens, &labels, &positions, &documents}) values->resize(size);
}

int64_t Batch::valid_labels() const {
  return std::count_if(labels.begin(), labels.end(), [](int64_t label) { return label != kIgnoredLabel; });
}

Dataset::Dataset(Corpus corpus, const DatasetOptions& options) : corpus_(std::move(corpus)), options_(options) {
  if (options_.seq_len < 1) raise<InvalidArgument>("[data] expected a sequence length of at least 1, got {}", options_.seq_len);
  samples_ = corpus_.tokens() / options_.seq_len;
  if (options_.keep_remainder && corpus_.tokens() % options_.seq_len != 0) ++samples_;
  if (samples_ == 0) {
    raise<InvalidArgument>(
        "[data] expected at least one sample of {} tokens, got {} tokens in {} documents; add text, or use a shorter sequence "
        "length",
        options_.seq_len, corpus_.tokens(), corpus_.documents());
  }
  fingerprint_ = Hasher()
                     .add(corpus_.hash())
                     .add(options_.seq_len)
                     .add(options_.seed)
                     .add(options_.shuffle)
                     .add(options_.keep_remainder)
                     .value();
}

Cursor Dataset::advance(Cursor cursor, int64_t samples) const {
  int64_t sample = cursor.sample + samples;
  return {cursor.epoch + sample / samples_, sample % samples_};
}

std::string Dataset::save_cursor(Cursor cursor) const {
  nlohmann::json saved{{"epoch", cursor.epoch}, {"sample", cursor.sample}, {"dataset", fmt::format("{:016x}", fingerprint_)}};
  return saved.dump();
}

Cursor Dataset::load_cursor(std::string_view json) const {
  auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  auto integer = [&](const char* name) -> int64_t {
    if (parsed.is_object() && parsed.contains(name) && parsed[name].is_number_integer()) {
      if (!parsed[name].is_number_unsigned()) return parsed[name].get<int64_t>();
      if (auto value = parsed[name].get<uint64_t>(); value <= INT64_MAX) return static_cast<int64_t>(value);
    }
    raise<InvalidArgument>("[data] expected a saved data cursor with the integer '{}', got '{:.100}'; the checkpoint is damaged",
                           name, json);
  };
  Cursor cursor{integer("epoch"), integer("sample")};
  auto saved_for = parsed.contains("dataset") && parsed["dataset"].is_string() ? parsed["dataset"].get<std::string>() : "";
  if (std::string here = fmt::format("{:016x}", fingerprint_); saved_for != here) {
    raise<InvalidArgument>(
        "[data] expected a data cursor of dataset {}, got one of '{:.40}': text, tokenizer, sequence length or seed have "
        "changed since it was saved; restore them, or start the data anew",
        here, saved_for);
  }
  if (cursor.epoch < 0 || cursor.sample < 0 || cursor.sample >= samples_) {
    raise<InvalidArgument>(
        "[data] expected a data cursor with epoch >= 0 and a sample in [0, {}), got epoch {}, sample {}; the checkpoint is "
        "damaged",
        samples_, cursor.epoch, cursor.sample);
  }
  return cursor;
}

Dataset::Epoch::Epoch(const Dataset& dataset, int64_t epoch)
    : dataset_(&dataset),
      number_(epoch),
      documents_(counting(dataset.corpus_.documents())),
      samples_(counting(dataset.samples_)) {
  if (dataset.options_.shuffle) {
    shuffle(documents_, dataset.options_.seed, epoch, "documents");
    shuffle(samples_, dataset.options_.seed, epoch, "samples");
  }
  starts_.reserve(documents_.size());
  int64_t start = 0;
  for (int64_t document : documents_) {
    starts_.push_back(start);
    start += dataset.corpus_.length(document);
  }
}

void Dataset::Epoch::fill(int64_t sample, Batch& batch, int64_t row) const {
  const int64_t seq_len = dataset_->options_.seq_len;
  fill_padding(*dataset_, batch, row);
  int64_t begin = samples_.at(static_cast<size_t>(sample)) * seq_len;
  auto out = static_cast<size_t>(row * seq_len);
  size_t which = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin()) - 1;
  int64_t filled = 0;
  for (int64_t part = 0; filled < seq_len && which < documents_.size(); ++part, ++which) {
    std::span<const int32_t> ids = dataset_->corpus_.document(documents_[which]);
    int64_t first = begin + filled - starts_[which];
    int64_t count = std::min<int64_t>(std::ssize(ids) - first, seq_len - filled);
    for (int64_t i = 0; i < count; ++i, ++out) {
      auto at = static_cast<size_t>(first + i);
      batch.tokens[out] = ids[at];
      batch.labels[out] = at + 1 < ids.size() ? ids[at + 1] : kIgnoredLabel;
      batch.positions[out] = i;
      batch.documents[out] = part;
    }
    filled += count;
  }
  // What is left of a remainder stays padding, as one more document.
  if (filled > 0 && filled < seq_len) {
    int64_t next = batch.documents[out - 1] + 1;
    std::fill_n(batch.documents.begin() + static_cast<int64_t>(out), seq_len - filled, next);
    std::iota(batch.positions.begin() + static_cast<int64_t>(out), batch.positions.begin() + (row + 1) * seq_len, int64_t{0});
  }
}

void fill_padding(const Dataset& dataset, Batch& batch, int64_t row) {
  int64_t seq_len = dataset.seq_len(), out = row * seq_len;
  std::fill_n(batch.tokens.begin() + out, seq_len, dataset.corpus().eos());
  std::fill_n(batch.labels.begin() + out, seq_len, kIgnoredLabel);
  std::fill_n(batch.documents.begin() + out, seq_len, int64_t{0});
  std::iota(batch.positions.begin() + out, batch.positions.begin() + out + seq_len, int64_t{0});
}

}  // namespace flambeau::data
