#include "data/corpus.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"

namespace flambeau::data {
namespace {

// Where in [0, 1) a document lies.
double place_of(const Document& document) { return static_cast<double>(hash_string(document.text) >> 11) * 0x1p-53; }

Split split_single(Document document, double fraction) {
  const std::string& text = document.text;
  size_t wanted = static_cast<size_t>(static_cast<double>(text.size()) * (1 - fraction));
  size_t cut = std::clamp<size_t>(wanted, 1, text.size() - 1);
  size_t line_end = text.find('\n', cut);
  if (line_end != std::string::npos && line_end + 1 < text.size()) cut = line_end + 1;
  Split split;
  split.held_out.push_back({document.name + " (end)", text.substr(cut)});
  document.text.resize(cut);
  split.train.push_back(std::move(document));
  return split;
}

}  // namespace

Corpus::Corpus(std::span<const Document> documents, const Tokenizer& tokenizer)
    : eos_(tokenizer.eos()), vocab_size_(tokenizer.vocab_size()) {
  starts_.reserve(documents.size() + 1);
  for (const Document& document : documents) {
    std::vector<int32_t> ids = tokenizer.encode(document.text);
    tokens_.push_back(static_cast<int32_t>(tokenizer.bos()));
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    tokens_.push_back(static_cast<int32_t>(tokenizer.eos()));
    starts_.push_back(static_cast<int64_t>(tokens_.size()));
  }
}

std::span<const int32_t> Corpus::document(int64_t i) const {
  return std::span(tokens_).subspan(static_cast<size_t>(starts_[static_cast<size_t>(i)]), static_cast<size_t>(length(i)));
}

uint64_t Corpus::hash() const {
  return Hasher()
      .add(hash_bytes(tokens_.data(), tokens_.size() * sizeof(int32_t)))
      .add(hash_bytes(starts_.data(), starts_.size() * sizeof(int64_t)))
      .value();
}

Split split_documents(std::vector<Document> documents, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    raise<InvalidArgument>("[data] expected a held-out fraction in [0, 1), got {}", fraction);
  }
  if (fraction == 0) return {std::move(documents), {}};
  size_t bytes = 0;
  for (const Document& document : documents) bytes += document.text.size();
  if (documents.empty() || bytes < 2) {
    raise<InvalidArgument>("[data] expected text to hold a part of out, got {} bytes; add text, or hold nothing out", bytes);
  }
  if (documents.size() == 1) return split_single(std::move(documents[0]), fraction);

  std::vector<double> places(documents.size());
  std::transform(documents.begin(), documents.end(), places.begin(), place_of);
  // The threshold moves where it would leave one side empty: to just take in the first place, or just leave out the last.
  auto [first, last] = std::minmax_element(places.begin(), places.end());
  if (*first == *last) raise<InvalidArgument>("[data] expected different documents to hold some out, got {} copies of '{}'",
                                              documents.size(), documents[0].name);
  double threshold = std::min(std::max(fraction, std::nextafter(*first, 1.0)), *last);
  Split split;
  for (size_t i = 0; i < documents.size(); ++i) {
    (places[i] < threshold ? split.held_out : split.train).push_back(std::move(documents[i]));
  }
  return split;
}

}  // namespace flambeau::data
