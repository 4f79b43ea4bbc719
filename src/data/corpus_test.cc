#include "data/corpus.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "base/error.h"

namespace flambeau::data {
namespace {

TEST(ByteTokenizer, EveryTextGoesThereAndBack) {
  ByteTokenizer tokenizer;
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  for (const std::string& text : {std::string(), std::string("abc"), std::string("\0a\0", 3), std::string("\xc3\xa9\xff"), all}) {
    auto ids = tokenizer.encode(text);
    ASSERT_EQ(ids.size(), text.size());
    for (int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 256);
    std::vector<int64_t> framed{tokenizer.bos()};
    framed.insert(framed.end(), ids.begin(), ids.end());
    framed.push_back(tokenizer.eos());
    EXPECT_EQ(tokenizer.decode(framed), text);
  }
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  for (int64_t id : {int64_t{-1}, int64_t{258}, INT64_MAX, INT64_MIN}) {
    EXPECT_THROW(tokenizer.decode(std::span(&id, 1)), InvalidArgument) << id;
  }
}

TEST(Corpus, FramesDocuments) {
  std::vector<Document> documents{{"a", "xy"}, {"b", ""}, {"c", "z"}};
  Corpus corpus(documents, ByteTokenizer());
  ASSERT_EQ(corpus.documents(), 3);
  EXPECT_EQ(corpus.tokens(), 4 + 2 + 3);
  auto ids = [&](int64_t i) { return std::vector<int32_t>(corpus.document(i).begin(), corpus.document(i).end()); };
  EXPECT_EQ(ids(0), (std::vector<int32_t>{256, 'x', 'y', 257}));
  EXPECT_EQ(ids(1), (std::vector<int32_t>{256, 257}));
  EXPECT_EQ(ids(2), (std::vector<int32_t>{256, 'z', 257}));
}

TEST(Corpus, HashSeesIdsAndBoundaries) {
  auto hash = [](std::vector<Document> documents) { return Corpus(documents, ByteTokenizer()).hash(); };
  EXPECT_EQ(hash({{"a", "x"}, {"b", "y"}}), hash({{"c", "x"}, {"d", "y"}}));
  EXPECT_NE(hash({{"a", "x"}, {"b", "y"}}), hash({{"b", "y"}, {"a", "x"}}));
  EXPECT_NE(hash({{"a", "x"}, {"b", "y"}}), hash({{"a", "xy"}}));
  EXPECT_NE(hash({}), hash({{"a", ""}}));
}

std::vector<Document> numbered(int count) {
  std::vector<Document> documents;
  for (int i = 0; i < count; ++i) documents.push_back({"d" + std::to_string(i), "text number " + std::to_string(i)});
  return documents;
}

std::map<std::string, bool> sides(const Split& split) {
  std::map<std::string, bool> result;
  for (const Document& document : split.train) result[document.text] = false;
  for (const Document& document : split.held_out) result[document.text] = true;
  return result;
}

TEST(Split, HoldsOutAboutTheFraction) {
  for (double fraction : {0.01, 0.1, 0.5}) {
    Split split = split_documents(numbered(5000), fraction);
    EXPECT_NEAR(static_cast<double>(split.held_out.size()), 5000 * fraction, 4 * std::sqrt(5000 * fraction));
    EXPECT_EQ(split.train.size() + split.held_out.size(), 5000u);
  }
  Split all = split_documents(numbered(10), 0);
  EXPECT_EQ(all.train.size(), 10u);
  EXPECT_TRUE(all.held_out.empty());
}

TEST(Split, ContentAloneDecides) {
  auto before = sides(split_documents(numbered(200), 0.2));
  auto more = numbered(300);
  std::reverse(more.begin(), more.end());
  for (Document& document : more) document.name += " renamed";
  for (const auto& [text, held_out] : sides(split_documents(more, 0.2))) {
    if (before.contains(text)) {
      EXPECT_EQ(before[text], held_out) << text;
    }
  }
  auto twice = numbered(200);
  for (Document& document : numbered(200)) twice.push_back({"copy of " + document.name, document.text});
  Split split = split_documents(twice, 0.2);
  for (const Document& held_out : split.held_out) {
    for (const Document& document : split.train) EXPECT_NE(held_out.text, document.text);
  }
}

TEST(Split, NeitherSideIsEmpty) {
  for (int count = 2; count < 20; ++count) {
    for (double fraction : {1e-9, 0.05, 0.5, 0.999999}) {
      Split split = split_documents(numbered(count), fraction);
      EXPECT_FALSE(split.train.empty());
      EXPECT_FALSE(split.held_out.empty());
      EXPECT_EQ(split.train.size() + split.held_out.size(), static_cast<size_t>(count));
    }
  }
}

TEST(Split, OfASingleDocumentTheEndIsHeldOut) {
  struct {
    std::string text;
    double fraction;
    std::string train, held_out;
  } cases[] = {
      {"0123456789", 0.2, "01234567", "89"},
      {"one\ntwo\nthree\nfour\n", 0.3, "one\ntwo\nthree\n", "four\n"},
      {"one\ntwo\n", 0.1, "one\ntwo", "\n"},
      {"ab", 0.001, "a", "b"},
      {"ab", 0.999, "a", "b"},
  };
  for (const auto& c : cases) {
    Split split = split_documents({{"all.txt", c.text}}, c.fraction);
    ASSERT_EQ(split.train.size(), 1u);
    ASSERT_EQ(split.held_out.size(), 1u);
    EXPECT_EQ(split.train[0].text, c.train);
    EXPECT_EQ(split.held_out[0].text, c.held_out);
    EXPECT_EQ(split.train[0].name, "all.txt");
  }
}

TEST(Split, Refusals) {
  for (double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(split_documents(numbered(5), fraction), InvalidArgument) << fraction;
  }
  EXPECT_THROW(split_documents({}, 0.1), InvalidArgument);
  EXPECT_THROW(split_documents({{"a", "x"}}, 0.1), InvalidArgument);
  EXPECT_THROW(split_documents({{"a", ""}, {"b", ""}}, 0.1), InvalidArgument);
  EXPECT_THROW(split_documents({{"a", "same"}, {"b", "same"}}, 0.1), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::data
