#include "data/dataset.h"

#include <array>
#include <map>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "base/error.h"

namespace flambeau::data {
namespace {

Corpus corpus_of(const std::vector<std::string>& texts) {
  std::vector<Document> documents;
  for (size_t i = 0; i < texts.size(); ++i) documents.push_back({"d" + std::to_string(i), texts[i]});
  return Corpus(documents, ByteTokenizer());
}

// Documents of random lengths, each of them of bytes that tell it from the others where there are fewer than 250.
Corpus random_corpus(std::mt19937& random, int documents, int longest) {
  std::vector<std::string> texts;
  for (int i = 0; i < documents; ++i) texts.emplace_back(random() % static_cast<unsigned>(longest + 1), static_cast<char>(i));
  return corpus_of(texts);
}

Batch sample(const Dataset& dataset, int64_t epoch, int64_t index) {
  Batch batch(1, dataset.seq_len());
  Dataset::Epoch(dataset, epoch).fill(index, batch, 0);
  return batch;
}

using Ids = std::vector<int64_t>;
constexpr int64_t kBos = 256, kEos = 257, kNone = kIgnoredLabel;

TEST(Dataset, PacksDocumentsOneAfterTheOther) {
  Dataset dataset(corpus_of({"abc", "d", "efgh"}), {.seq_len = 6, .shuffle = false, .keep_remainder = true});
  ASSERT_EQ(dataset.samples_per_epoch(), 3);  // 5 + 3 + 6 = 14 tokens
  Batch first = sample(dataset, 0, 0), second = sample(dataset, 0, 1), third = sample(dataset, 0, 2);
  EXPECT_EQ(first.tokens, (Ids{kBos, 'a', 'b', 'c', kEos, kBos}));
  EXPECT_EQ(first.labels, (Ids{'a', 'b', 'c', kEos, kNone, 'd'}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(first.documents, (Ids{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(second.tokens, (Ids{'d', kEos, kBos, 'e', 'f', 'g'}));
  EXPECT_EQ(second.labels, (Ids{kEos, kNone, 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(second.positions, (Ids{0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(second.documents, (Ids{0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(third.tokens, (Ids{'h', kEos, kEos, kEos, kEos, kEos}));
  EXPECT_EQ(third.labels, (Ids{kEos, kNone, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(third.positions, (Ids{0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(third.documents, (Ids{0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(third.valid_labels(), 1);
}

TEST(Dataset, NothingLeadsFromOneDocumentToAnother) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    auto seq_len = 1 + static_cast<int64_t>(random() % 20);
    Dataset dataset(random_corpus(random, 40, 30), {.seq_len = seq_len, .seed = random()});
    for (int64_t i = 0; i < dataset.samples_per_epoch(); ++i) {
      Batch batch = sample(dataset, round, i);
      for (size_t t = 0; t < batch.tokens.size(); ++t) {
        bool begins = t == 0 || batch.documents[t] != batch.documents[t - 1];
        ASSERT_EQ(batch.positions[t], begins ? 0 : batch.positions[t - 1] + 1);
        ASSERT_TRUE(begins || batch.tokens[t] != kBos);
        ASSERT_TRUE(begins || batch.labels[t - 1] == batch.tokens[t]);
        ASSERT_EQ(batch.labels[t] == kNone, batch.tokens[t] == kEos);
        if (batch.labels[t] != kNone && batch.labels[t] != kEos && batch.tokens[t] != kBos) {
          ASSERT_EQ(batch.labels[t], batch.tokens[t]);  // a document repeats one byte
        }
      }
    }
  }
}

TEST(Dataset, AnEpochHasEveryLabelOnce) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    Corpus corpus = random_corpus(random, 1 + static_cast<int>(random() % 50), 40);
    std::map<std::pair<int64_t, int64_t>, int> wanted, got;  // (token, label)
    for (int64_t d = 0; d < corpus.documents(); ++d) {
      auto ids = corpus.document(d);
      for (size_t i = 1; i < ids.size(); ++i) ++wanted[{ids[i - 1], ids[i]}];
    }
    Dataset dataset(corpus, {.seq_len = 1 + static_cast<int64_t>(random() % 17), .seed = random(), .keep_remainder = true});
    for (int64_t i = 0; i < dataset.samples_per_epoch(); ++i) {
      Batch batch = sample(dataset, round, i);
      for (size_t t = 0; t < batch.tokens.size(); ++t) {
        if (batch.labels[t] != kNone) ++got[{batch.tokens[t], batch.labels[t]}];
      }
    }
    EXPECT_EQ(got, wanted);
  }
}

TEST(Dataset, OrderIsDrawnFromSeedAndEpoch) {
  std::mt19937 random(3);
  Corpus corpus = random_corpus(random, 60, 40);
  auto order = [&](uint64_t seed, int64_t epoch, bool shuffle = true) {
    Dataset dataset(corpus, {.seq_len = 16, .seed = seed, .shuffle = shuffle});
    std::vector<Ids> tokens;
    for (int64_t i = 0; i < dataset.samples_per_epoch(); ++i) tokens.push_back(sample(dataset, epoch, i).tokens);
    return tokens;
  };
  EXPECT_EQ(order(5, 3), order(5, 3));
  EXPECT_NE(order(5, 3), order(6, 3));
  EXPECT_NE(order(5, 3), order(5, 4));
  EXPECT_EQ(order(5, 3, false), order(6, 4, false));
}

TEST(Dataset, ShufflesAreUniform) {
  // Where the first of 5 one-sample documents comes, over many epochs.
  Dataset dataset(corpus_of({"a", "b", "c", "d", "e"}), {.seq_len = 3});
  std::array<int, 5> at{};
  constexpr int kEpochs = 5000;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    Dataset::Epoch order(dataset, epoch);
    for (int64_t i = 0; i < 5; ++i) {
      Batch batch(1, 3);
      order.fill(i, batch, 0);
      if (batch.tokens[1] == 'a') ++at[static_cast<size_t>(i)];
    }
  }
  for (int count : at) EXPECT_NEAR(count, kEpochs / 5, 150);  // five standard deviations
}

TEST(Dataset, CursorsAdvanceOverEpochs) {
  Dataset dataset(corpus_of({"abcd"}), {.seq_len = 2});  // 3 samples
  EXPECT_EQ(dataset.advance({0, 0}, 2), (Cursor{0, 2}));
  EXPECT_EQ(dataset.advance({0, 2}, 1), (Cursor{1, 0}));
  EXPECT_EQ(dataset.advance({4, 1}, 8), (Cursor{7, 0}));
}

TEST(Dataset, CursorsAreSavedExactly) {
  Dataset dataset(corpus_of({"abcdefgh"}), {.seq_len = 2});
  for (Cursor cursor : {Cursor{0, 0}, Cursor{7, 4}, Cursor{INT64_MAX, 1}}) {
    EXPECT_EQ(dataset.load_cursor(dataset.save_cursor(cursor)), cursor);
  }
}

TEST(Dataset, HostileCursorsAreRefused) {
  Dataset dataset(corpus_of({"abcdefgh"}), {.seq_len = 2});
  std::string good = dataset.save_cursor({1, 2}), stamp = good.substr(good.find("\"dataset\""), 28);
  ASSERT_EQ(dataset.load_cursor("{\"epoch\":1,\"sample\":2," + stamp + "}"), (Cursor{1, 2}));
  for (const std::string& json : {
           std::string(), std::string("null"), std::string("[1,2]"), std::string("{"), std::string("\xff\xfe"),
           std::string(100'000, '['),
           good.substr(0, good.size() / 2), "{\"epoch\":1," + stamp + "}", "{\"sample\":1," + stamp + "}",
           "{\"epoch\":-1,\"sample\":2," + stamp + "}", "{\"epoch\":1,\"sample\":5," + stamp + "}",
           "{\"epoch\":1,\"sample\":-1," + stamp + "}", "{\"epoch\":1.5,\"sample\":1," + stamp + "}",
           "{\"epoch\":\"1\",\"sample\":1," + stamp + "}", "{\"epoch\":18446744073709551615,\"sample\":1," + stamp + "}",
           "{\"epoch\":1e400,\"sample\":1," + stamp + "}", std::string("{\"epoch\":1,\"sample\":1}"),
           std::string("{\"epoch\":1,\"sample\":1,\"dataset\":7}"), std::string("{\"epoch\":1,\"sample\":1,\"dataset\":\"0\"}"),
       }) {
    EXPECT_THROW(dataset.load_cursor(json), InvalidArgument) << json.substr(0, 100);
  }
}

TEST(Dataset, CursorsOfOtherDatasetsAreRefused) {
  std::vector<std::string> texts{"abcdefgh", "ij"};
  DatasetOptions options{.seq_len = 2};
  std::string saved = Dataset(corpus_of(texts), options).save_cursor({0, 1});
  EXPECT_NO_THROW(Dataset(corpus_of(texts), options).load_cursor(saved));
  auto with = [&](auto change) {
    DatasetOptions changed = options;
    change(changed);
    return Dataset(corpus_of(texts), changed);
  };
  EXPECT_THROW(Dataset(corpus_of({"abcdefgx", "ij"}), options).load_cursor(saved), InvalidArgument);
  EXPECT_THROW(Dataset(corpus_of({"ij", "abcdefgh"}), options).load_cursor(saved), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.seq_len = 3; }).load_cursor(saved), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.seed = 1; }).load_cursor(saved), InvalidArgument);
  EXPECT_THROW(with([](auto& o) { o.shuffle = false; }).load_cursor(saved), InvalidArgument);
}

TEST(Dataset, Refusals) {
  EXPECT_THROW(Dataset(corpus_of({"abc"}), {.seq_len = 0}), InvalidArgument);
  EXPECT_THROW(Dataset(corpus_of({"abc"}), {.seq_len = -1}), InvalidArgument);
  EXPECT_THROW(Dataset(corpus_of({"abc"}), {.seq_len = 6}), InvalidArgument);
  EXPECT_THROW(Dataset(corpus_of({}), {.seq_len = 1, .keep_remainder = true}), InvalidArgument);
  EXPECT_NO_THROW(Dataset(corpus_of({"abc"}), {.seq_len = 5}));
  EXPECT_NO_THROW(Dataset(corpus_of({"abc"}), {.seq_len = 6, .keep_remainder = true}));
}

}  // namespace
}  // namespace flambeau::data
