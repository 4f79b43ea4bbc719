#include "data/loader.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/error.h"

namespace flambeau::data {
namespace {

using namespace std::chrono_literals;

Dataset make_dataset(const DatasetOptions& options, int documents = 30, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<Document> texts;
  for (int i = 0; i < documents; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = static_cast<char>(random());
    texts.push_back({std::to_string(i), text});
  }
  return Dataset(Corpus(texts, ByteTokenizer()), options);
}

std::vector<Batch> take(Loader& loader, int count) {
  std::vector<Batch> batches;
  while (std::ssize(batches) < count) {
    auto batch = loader.next();
    if (!batch) break;
    batches.push_back(std::move(*batch));
  }
  return batches;
}

// Which rows process `rank` of `ranks` holds: every ranks-th one.
std::vector<bool> every(int64_t rows, int64_t rank, int64_t ranks) {
  std::vector<bool> held(static_cast<size_t>(rows));
  for (int64_t row = rank; row < rows; row += ranks) held[static_cast<size_t>(row)] = true;
  return held;
}

// Each row as the process that holds it has read it.
Batch joined(const std::vector<Batch>& parts) {
  Batch all = parts[0];
  for (int64_t row = 0; row < all.rows; ++row) {
    const Batch& part = parts[static_cast<size_t>(row) % parts.size()];
    for (auto member : {&Batch::tokens, &Batch::labels, &Batch::positions, &Batch::documents}) {
      std::copy_n((part.*member).begin() + row * all.seq_len, all.seq_len, (all.*member).begin() + row * all.seq_len);
    }
  }
  return all;
}

TEST(Prefetcher, KeepsOrderAndEnds) {
  for (size_t depth : {1, 2, 7}) {
    Prefetcher<int> prefetcher([i = 0]() mutable { return i < 100 ? std::optional(i++) : std::nullopt; }, depth);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(prefetcher.next(), i);
    EXPECT_EQ(prefetcher.next(), std::nullopt);
    EXPECT_EQ(prefetcher.next(), std::nullopt);
  }
}

TEST(Prefetcher, WorksAheadByItsDepthAndNoMore) {
  std::atomic<int> made = 0;
  Prefetcher<int> prefetcher([&] { return std::optional(made++); }, 2);
  auto settle = [&](int expected) {
    for (int i = 0; i < 2000 && made < expected; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    return made.load();
  };
  EXPECT_EQ(settle(2), 2);
  prefetcher.next();
  EXPECT_EQ(settle(3), 3);
}

TEST(Prefetcher, ForwardsWhatWasThrownAfterWhatWasMade) {
  Prefetcher<int> prefetcher(
      [i = 0]() mutable -> std::optional<int> {
        if (i == 3) throw std::runtime_error("the disk is gone");
        return i++;
      },
      2);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(prefetcher.next(), i);
  for (int i = 0; i < 2; ++i) {
    try {
      prefetcher.next();
      FAIL() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the disk is gone");
    }
  }
}

TEST(Prefetcher, StopsWhateverItsThreadDoes) {
  for (int round = 0; round < 50; ++round) {
    Prefetcher<int> waiting_for_room([] { return std::optional(1); }, 2);
    Prefetcher<int> working([] { return std::this_thread::sleep_for(1ms), std::optional(1); }, 2);
    Prefetcher<int> failed([]() -> std::optional<int> { throw std::runtime_error("never asked for"); }, 2);
    Prefetcher<int> ended([]() -> std::optional<int> { return std::nullopt; }, 2);
    if (round % 2) working.next();
  }
}

TEST(Loader, TakenUpAnywhereGoesOnAsIfNeverLeft) {
  for (int64_t global_batch : {1, 3, 8, 200}) {  // 200: more than an epoch
    Dataset dataset = make_dataset({.seq_len = 8});
    Loader uninterrupted(dataset, {.global_batch = global_batch});
    std::vector<Batch> expected = take(uninterrupted, 60);
    std::mt19937 random(7);
    for (int round = 0; round < 10; ++round) {
      int stop = static_cast<int>(random() % 50);
      std::string saved;
      {
        Loader first(dataset, {.global_batch = global_batch, .prefetch = 1 + random() % 4});
        take(first, stop);
        saved = dataset.save_cursor(first.cursor());
      }
      Dataset same = make_dataset({.seq_len = 8});
      Loader second(same, {.global_batch = global_batch, .prefetch = 1 + random() % 4}, same.load_cursor(saved));
      std::vector<Batch> rest = take(second, 60 - stop);
      ASSERT_EQ(rest, std::vector<Batch>(expected.begin() + stop, expected.end())) << "stopped after " << stop;
      ASSERT_EQ(second.cursor(), uninterrupted.cursor());
    }
  }
}

TEST(Loader, ProcessesShareOneOrder) {
  Dataset dataset = make_dataset({.seq_len = 8});
  Loader whole(dataset, {.global_batch = 12});
  std::vector<Batch> expected = take(whole, 40);
  Cursor cursor;
  size_t at = 0;
  for (int64_t ranks : {1, 4, 3, 12, 2}) {  // another number of processes after each stop
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      LoaderOptions options{.global_batch = 12, .held = every(12, rank, ranks)};
      loaders.push_back(std::make_unique<Loader>(dataset, options, cursor));
    }
    for (int step = 0; step < 8; ++step, ++at) {
      std::vector<Batch> parts;
      for (auto& loader : loaders) parts.push_back(*loader->next());
      ASSERT_EQ(joined(parts), expected[at]) << ranks << " ranks, batch " << at;
    }
    for (auto& loader : loaders) ASSERT_EQ(loader->cursor(), loaders[0]->cursor());
    cursor = loaders[0]->cursor();
  }
}

TEST(Loader, TimingDoesNotMatter) {
  Dataset dataset = make_dataset({.seq_len = 8});
  Loader eager(dataset, {.global_batch = 4, .prefetch = 1}), lazy(dataset, {.global_batch = 4, .prefetch = 5});
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    ASSERT_EQ(eager.next(), lazy.next());
    ASSERT_EQ(eager.cursor(), lazy.cursor());
  }
}

TEST(Loader, WithoutRepeatingItEndsBeforeTheBatchThatIsNotFull) {
  Dataset dataset = make_dataset({.seq_len = 8});
  int64_t samples = dataset.samples_per_epoch();
  for (int64_t global_batch : {int64_t{1}, int64_t{7}, samples, samples + 1}) {
    Loader loader(dataset, {.global_batch = global_batch, .repeat = false});
    EXPECT_EQ(std::ssize(take(loader, 10'000)), samples / global_batch) << global_batch;
    EXPECT_FALSE(loader.next());
    Loader resumed(dataset, {.global_batch = global_batch, .repeat = false}, loader.cursor());
    EXPECT_FALSE(resumed.next());
  }
}

TEST(Loader, Refusals) {
  Dataset dataset = make_dataset({.seq_len = 8});
  const LoaderOptions cases[] = {
      {.global_batch = 0},
      {.global_batch = 4, .held = {true, true, false}},
      {.global_batch = -2},
  };
  for (const LoaderOptions& options : cases) {
    EXPECT_THROW(Loader(dataset, options), InvalidArgument);
    EXPECT_THROW(ValidationLoader(dataset, options.global_batch, options.held), InvalidArgument);
  }
}

TEST(ValidationLoader, EverySampleOnceAndPaddingIgnored) {
  Dataset dataset = make_dataset({.seq_len = 8, .shuffle = false, .keep_remainder = true});
  const Corpus& corpus = dataset.corpus();
  for (int64_t ranks : {1, 3}) {
    for (int64_t global_batch : {3, 15, 300}) {
      std::vector<std::unique_ptr<ValidationLoader>> loaders;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        loaders.push_back(std::make_unique<ValidationLoader>(dataset, global_batch, every(global_batch, rank, ranks)));
      }
      for (int pass = 0; pass < 2; ++pass) {
        std::vector<int64_t> tokens;
        int64_t labels = 0, batches = 0;
        for (; batches < loaders[0]->batches(); ++batches) {
          std::vector<Batch> parts;
          for (auto& loader : loaders) parts.push_back(loader->next().value());
          Batch all = joined(parts);
          ASSERT_EQ(all.rows, global_batch);
          labels += all.valid_labels();
          tokens.insert(tokens.end(), all.tokens.begin(), all.tokens.end());
        }
        for (auto& loader : loaders) EXPECT_FALSE(loader->next());
        EXPECT_EQ(labels, corpus.tokens() - corpus.documents());
        std::vector<int64_t> expected;
        for (int64_t d = 0; d < corpus.documents(); ++d) {
          expected.insert(expected.end(), corpus.document(d).begin(), corpus.document(d).end());
        }
        expected.resize(tokens.size(), corpus.eos());
        EXPECT_EQ(tokens, expected);
        for (auto& loader : loaders) loader->restart();
      }
    }
  }
}

}  // namespace
}  // namespace flambeau::data
