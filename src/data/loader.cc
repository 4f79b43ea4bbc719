#include "data/loader.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace flambeau::data {
namespace {

int64_t rows_of_rank(int64_t global_batch, int64_t rank, int64_t ranks) {
  if (global_batch < 1 || ranks < 1 || rank < 0 || rank >= ranks || global_batch % ranks != 0) {
    raise<InvalidArgument>(
        "[data] expected a batch of at least 1 sample that {} ranks divide, and a rank in [0, {}), got batch {}, rank {}; use a "
        "batch that is a multiple of the number of ranks",
        ranks, ranks, global_batch, rank);
  }
  return global_batch / ranks;
}

// Makes batch after batch; lives on the prefetching thread.
class BatchMaker {
 public:
  BatchMaker(const Dataset& dataset, const LoaderOptions& options, Cursor start)
      : dataset_(dataset),
        options_(options),
        rows_(rows_of_rank(options.global_batch, options.rank, options.ranks)),
        cursor_(start) {}

  std::optional<std::pair<Batch, Cursor>> make() {
    Cursor after = dataset_.advance(cursor_, options_.global_batch);
    bool within_epoch = after.epoch == cursor_.epoch || after == Cursor{cursor_.epoch + 1, 0};
    if (!options_.repeat && (cursor_.epoch > 0 || !within_epoch)) return std::nullopt;
    Batch batch(rows_, dataset_.seq_len());
    for (int64_t row = 0; row < rows_; ++row) {
      Cursor at = dataset_.advance(cursor_, options_.rank * rows_ + row);
      if (!epoch_ || epoch_->number() != at.epoch) epoch_.emplace(dataset_, at.epoch);
      epoch_->fill(at.sample, batch, row);
    }
    cursor_ = after;
    return std::pair{std::move(batch), after};
  }

 private:
  const Dataset& dataset_;
  const LoaderOptions options_;
  const int64_t rows_;
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

ValidationLoader::ValidationLoader(const Dataset& dataset, int64_t global_batch, int64_t rank, int64_t ranks)
    : dataset_(dataset),
      epoch_(dataset, 0),
      global_batch_(global_batch),
      rank_(rank),
      rows_(rows_of_rank(global_batch, rank, ranks)) {}

int64_t ValidationLoader::batches() const { return (dataset_.samples_per_epoch() + global_batch_ - 1) / global_batch_; }

std::optional<Batch> ValidationLoader::next() {
  if (sample_ >= dataset_.samples_per_epoch()) return std::nullopt;
  Batch batch(rows_, dataset_.seq_len());
  for (int64_t row = 0; row < rows_; ++row) {
    int64_t sample = sample_ + rank_ * rows_ + row;
    if (sample < dataset_.samples_per_epoch()) {
      epoch_.fill(sample, batch, row);
    } else {
      fill_padding(dataset_, batch, row);
    }
  }
  sample_ += global_batch_;
  return batch;
}

}  // namespace flambeau::data
