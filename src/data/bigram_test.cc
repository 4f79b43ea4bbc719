#include "data/bigram.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"

namespace flambeau::data {
namespace {

Corpus corpus_of(const std::vector<std::string>& texts) {
  std::vector<Document> documents;
  for (const std::string& text : texts) documents.push_back({"d", text});
  return Corpus(documents, ByteTokenizer());
}

std::string random_text(std::mt19937& random, int length, unsigned letters) {
  std::string text(static_cast<size_t>(length), ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % letters);
  return text;
}

TEST(Bigram, ProbabilitiesSumToOne) {
  Bigram bigram(corpus_of({"abracadabra", "banana", ""}));
  for (int64_t previous : {int64_t{'a'}, int64_t{'b'}, int64_t{'z'}, int64_t{256}, int64_t{257}}) {
    double sum = 0;
    for (int64_t next = 0; next < 258; ++next) {
      EXPECT_GT(bigram.probability(previous, next), 0);
      sum += bigram.probability(previous, next);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(Bigram, ByHand) {
  // Pairs of "aab": <a aa ab b>, four labels: a a b eos.
  Bigram bigram(corpus_of({"aab"}));
  double p_a = 3.0 / 262, p_b = 2.0 / 262, p_eos = 2.0 / 262;
  EXPECT_DOUBLE_EQ(bigram.probability('a', 'a'), (1 + 2 * p_a) / 4);  // after a: a and b, once each
  EXPECT_DOUBLE_EQ(bigram.probability('a', 'b'), (1 + 2 * p_b) / 4);
  EXPECT_DOUBLE_EQ(bigram.probability('b', 257), (1 + p_eos) / 2);
  EXPECT_DOUBLE_EQ(bigram.probability('b', 'a'), p_a / 2);
  EXPECT_DOUBLE_EQ(bigram.probability('z', 'a'), p_a);  // nothing was seen after z
  double expected = -(std::log((1 + p_a) / 2) + std::log((1 + 2 * p_b) / 4) + std::log((1 + p_eos) / 2)) / 3;
  EXPECT_DOUBLE_EQ(bigram.cross_entropy(corpus_of({"ab"})), expected);
}

TEST(Bigram, CrossEntropyIsThatOfTheSource) {
  std::mt19937 random(1);
  std::string cycle;
  for (int i = 0; i < 20'000; ++i) cycle.push_back(static_cast<char>('a' + i % 26));
  struct {
    const char* name;
    std::string train, held_out;
    double expected, tolerance;
  } cases[] = {
      {"uniform over 16", random_text(random, 200'000, 16), random_text(random, 20'000, 16), std::log(16.0), 0.01},
      {"one letter", random_text(random, 50'000, 1), random_text(random, 50'000, 1), 0, 0.002},
      {"a cycle", cycle, cycle, 0, 0.01},
  };
  for (const auto& c : cases) {
    EXPECT_NEAR(Bigram(corpus_of({c.train})).cross_entropy(corpus_of({c.held_out})), c.expected, c.tolerance) << c.name;
  }
}

TEST(Bigram, UnseenTextIsFinite) {
  double nats = Bigram(corpus_of({"aaaa"})).cross_entropy(corpus_of({"\xff\x80zzz", ""}));
  EXPECT_GT(nats, 2);
  EXPECT_LT(nats, 20);
}

class OtherTokenizer : public ByteTokenizer {
 public:
  int64_t vocab_size() const override { return 300; }
};

TEST(Bigram, Refusals) {
  Bigram bigram(corpus_of({"abc"}));
  EXPECT_THROW(bigram.cross_entropy(corpus_of({})), InvalidArgument);
  std::vector<Document> documents{{"d", "abc"}};
  EXPECT_THROW(bigram.cross_entropy(Corpus(documents, OtherTokenizer())), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::data
