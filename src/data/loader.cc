#include "data/loader.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace flambeau::data {
namespace {

// One entry a row.
std::vector<bool> held_rows(int64_t global_batch, std::vector<bool> held) {
  if (global_batch < 1) raise<InvalidArgument>("[data] expected a batch of at least 1 sample, got {}; use a larger one", global_batch);
  if (held.empty()) held.assign(static_cast<size_t>(global_batch), true);
  if (std::ssize(held) != global_batch) {
    raise<InvalidArgument>("[data] expected to be told of each of the {} rows of a batch whether it is read here, got {} entries; give one a row, or "
                           "none to read all",
                           global_batch, held.size());
  }
  return held;
}

// Makes batch after batch; lives on the prefetching thread.
class BatchMaker {
 public:
  BatchMaker(const Dataset& dataset, const LoaderOptions& options, Cursor start)
      : dataset_(dataset),
        options_(options),
        held_(held_rows(options.global_batch, options.held)),
        cursor_(start) {}

  std::optional<std::pair<Batch, Cursor>> make() {
    Cursor after = dataset_.advance(cursor_, options_.global_batch);
    bool within_epoch = after.epoch == cursor_.epoch || after == Cursor{cursor_.epoch + 1, 0};
    if (!options_.repeat && (cursor_.epoch > 0 || !within_epoch)) return std::nullopt;
    Batch batch(options_.global_batch, dataset_.seq_len());
    for (int64_t row = 0; row < options_.global_batch; ++row) {
      if (!held_[static_cast<size_t>(row)]) {
        fill_padding(dataset_, batch, row);
        continue;
      }
      Cursor at = dataset_.advance(cursor_, row);
      if (!epoch_ || epoch_->number() != at.epoch) epoch_.emplace(dataset_, at.epoch);
      epoch_->fill(at.sample, batch, row);
    }
    cursor_ = after;
    return std::pair{std::move(batch), after};
  }

 private:
  const Dataset& dataset_;
  const LoaderOptions options_;
  const std::vector<bool> held_;
  Cursor cursor_;
  std::optional<Dataset::Epoch> epoch_;
};

}  // namespace

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, Cursor start)
    : cursor_(start), prefetcher_(
                          [maker = std::make_shared<BatchMaker>(dataset, options, start)]() -> std::optional<Item> {
                            auto made = maker->make();
                            if (!made) return std::nullopt;
                            return Item{std::move(made->first), made->second};
                          },
                          std::max<size_t>(options.prefetch, 1)) {}

std::optional<Batch> Loader::next() {
  std::optional<Item> item = prefetcher_.next();
  if (!item) return std::nullopt;
  cursor_ = item->after;
  return std::move(item->batch);
}

ValidationLoader::ValidationLoader(const Dataset& dataset, int64_t global_batch, std::vector<bool> held)
    : dataset_(dataset), epoch_(dataset, 0), global_batch_(global_batch), held_(held_rows(global_batch, std::move(held))) {}

int64_t ValidationLoader::batches() const { return (dataset_.samples_per_epoch() + global_batch_ - 1) / global_batch_; }

std::optional<Batch> ValidationLoader::next() {
  if (sample_ >= dataset_.samples_per_epoch()) return std::nullopt;
  Batch batch(global_batch_, dataset_.seq_len());
  for (int64_t row = 0; row < global_batch_; ++row) {
    const int64_t sample = sample_ + row;
    if (sample < dataset_.samples_per_epoch() && held_[static_cast<size_t>(row)]) {
      epoch_.fill(sample, batch, row);
    } else {
      fill_padding(dataset_, batch, row);
    }
  }
  sample_ += global_batch_;
  return batch;
}

}  // namespace flambeau::data
