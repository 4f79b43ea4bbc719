// What random ops draw: the words of Philox, the same ones as on the host, and the distributions made of them.
#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/philox.h"
#include "hlo/graph.h"
#include "ops/random.h"
#include "runtime/engine.h"

namespace flambeau::ops {

namespace {

const pjrt::Client& client() { return runtime::Engine::get().client(); }

at::ScalarType torch_type(DType t) {
  switch (t) {
    case DType::Pred: return at::kBool;
    case DType::S32: return at::kInt;
    case DType::S64: return at::kLong;
    case DType::U32: return at::kUInt32;
    case DType::U64: return at::kUInt64;
    case DType::F16: return at::kHalf;
    case DType::BF16: return at::kBFloat16;
    case DType::F32: return at::kFloat;
    default: return at::kDouble;
  }
}

using Draw = std::function<std::vector<Value>(Builder&, const Random&)>;

std::vector<at::Tensor> run(uint64_t seed, uint64_t offset, const Draw& draw) {
  hlo::Graph graph;
  Builder b(graph);
  Random random{graph.add_parameter({DType::U64, {}}), graph.add_parameter({DType::U64, {}})};
  graph.set_results(draw(b, random));
  hlo::simplify(graph);
  auto executable = client().compile(hlo::print(graph));
  const auto& device = client().addressable_devices()[0];
  auto s = client().upload({&seed, DType::U64, {}}, device), o = client().upload({&offset, DType::U64, {}}, device);
  const pjrt::Buffer* arguments[] = {s.get(), o.get()};
  std::vector<at::Tensor> tensors;
  for (auto& buffer : executable->execute(arguments)) {
    tensors.push_back(at::empty(at::IntArrayRef(buffer->dims().data(), buffer->dims().size()), torch_type(buffer->dtype())));
    buffer->to_host(tensors.back().data_ptr());
  }
  return tensors;
}

// A row of the table on tensors of zeros (self's values do not count) or of given values.
at::Tensor call(std::string_view name, DType dtype, Dims dims, std::vector<Argument> further, uint64_t seed = 1,
                uint64_t offset = 0, size_t output = 0) {
  return run(seed, offset, [&](Builder& b, const Random& random) {
    std::vector<Argument> arguments{Operand{b.broadcast(b.constant(dtype, 0), dims)}};
    arguments.insert(arguments.end(), further.begin(), further.end());
    const Row* row = find_row(name);
    return std::vector<Value>{row->lower(b, arguments, &random).at(output)};
  })[0];
}

constexpr uint64_t kSeed = 0x0123456789abcdef, kOffset = 0xfffffffe;  // the low counter word overflows within four blocks

TEST(RandomBits, AreTheWordsOfTheHost) {
  for (int64_t n : {1, 4, 7, 1000}) {
    auto words = run(kSeed, kOffset, [&](Builder& b, const Random& r) {
      return std::vector<Value>{random_bits(b, r, n), random_bits64(b, r, n), random_bits(b, r, n, Stream::Wide)};
    });
    for (int64_t i = 0; i < n; ++i) {
      auto u = static_cast<uint64_t>(i);
      ASSERT_EQ(words[0].data_ptr<uint32_t>()[i], philox::word(kSeed, kOffset, u)) << i << " of " << n;
      ASSERT_EQ(words[1].data_ptr<uint64_t>()[i], philox::word64(kSeed, kOffset, u)) << i << " of " << n;
      philox::Block wide = philox::encrypt({static_cast<uint32_t>(i / 4), 0, static_cast<uint32_t>(kOffset), 0x80000000},
                                           {static_cast<uint32_t>(kSeed), static_cast<uint32_t>(kSeed >> 32)});
      ASSERT_EQ(words[2].data_ptr<uint32_t>()[i], wide[u % 4]) << i << " of " << n;
    }
  }
}

TEST(RandomBits, UniformsAreThoseOfTheHost) {
  auto u = run(kSeed, 5, [&](Builder& b, const Random& r) {
    return std::vector<Value>{random_unit(b, r, DType::F32, {3, 5}), random_unit(b, r, DType::F64, {3, 5})};
  });
  for (uint64_t i = 0; i < 15; ++i) {
    EXPECT_EQ(u[0].data_ptr<float>()[i], philox::unit_float(philox::word(kSeed, 5, i)));
    EXPECT_EQ(u[1].data_ptr<double>()[i], philox::unit_double(philox::word64(kSeed, 5, i)));
  }
}

TEST(RandomBits, DoNotDependOnShapeOrPlace) {
  auto at_offset = [](uint64_t offset, Dims dims) { return call("aten::uniform", DType::F32, dims, {0.0, 1.0}, 9, offset); };
  at::Tensor all = at_offset(0, {64});
  EXPECT_TRUE(all.equal(at_offset(0, {4, 16}).flatten()));
  EXPECT_TRUE(all.slice(0, 0, 10).equal(at_offset(0, {10})));
  EXPECT_TRUE(all.slice(0, 8, 64).equal(at_offset(2, {56})));  // two blocks further
  EXPECT_FALSE(all.equal(call("aten::uniform", DType::F32, {64}, {0.0, 1.0}, 10, 0)));
}

TEST(RandomBlocks, CountWhatAnOpTakes) {
  struct {
    int64_t elements;
    DType dtype;
    int64_t blocks;
  } cases[] = {{0, DType::F32, 0}, {1, DType::F32, 1}, {4, DType::BF16, 1}, {5, DType::S32, 2}, {5, DType::Pred, 2},
               {1, DType::F64, 1}, {3, DType::S64, 2}, {4, DType::F64, 2},  {3, DType::C64, 2}, {3, DType::C128, 3}};
  for (auto& c : cases) EXPECT_EQ(random_blocks(c.elements, c.dtype), c.blocks) << c.elements << " " << torch_name(c.dtype);
}

// ---- distributions
// ------------------------------------------------------------------------------------------------------------

constexpr int64_t kMany = 200'000;

// Greatest distance of the empirical distribution from `cdf`; its 99.9999 % quantile is about 2.7 / sqrt(n).
double distance(at::Tensor sample, const std::function<double(double)>& cdf) {
  sample = std::get<0>(sample.flatten().to(at::kDouble).sort());
  double n = static_cast<double>(sample.numel()), worst = 0;
  for (int64_t i = 0; i < sample.numel(); ++i) {
    double p = cdf(sample.data_ptr<double>()[i]);
    worst = std::max({worst, std::abs(p - static_cast<double>(i) / n), std::abs(p - static_cast<double>(i + 1) / n)});
  }
  return worst * std::sqrt(n);
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

struct Distribution {
  std::string name;
  std::vector<Argument> arguments;
  std::function<double(double)> cdf;
  double least, greatest;
};
const double kInf = std::numeric_limits<double>::infinity();
const Distribution kDistributions[] = {
    {"aten::uniform", {-1.0, 3.0}, [](double x) { return (x + 1) / 4; }, -1, 3},
    {"aten::normal_functional", {1.0, 2.0}, [](double x) { return normal_cdf((x - 1) / 2); }, -15, 17},
    {"aten::exponential", {0.5}, [](double x) { return 1 - std::exp(-0.5 * x); }, 0, kInf},
    {"aten::log_normal", {0.5, 0.25}, [](double x) { return normal_cdf((std::log(x) - 0.5) / 0.25); }, 0, kInf},
    {"aten::cauchy", {1.0, 2.0}, [](double x) { return 0.5 + std::atan((x - 1) / 2) / M_PI; }, -kInf, kInf},
};

TEST(RandomDistributions, FollowTheirDistributionFunctions) {
  for (const Distribution& d : kDistributions)
    for (DType dtype : {DType::F32, DType::F64}) {
      at::Tensor sample = call(d.name, dtype, {kMany}, d.arguments);
      EXPECT_LT(distance(sample, d.cdf), 2.7) << d.name << " " << torch_name(dtype);
      EXPECT_GE(sample.min().item<double>(), d.least) << d.name;
      EXPECT_LE(sample.max().item<double>(), d.greatest) << d.name;
    }
}

TEST(RandomDistributions, NormalsAreInverseErrorFunctionsOfTheWords) {
  for (DType dtype : {DType::F32, DType::F64}) {
    at::Tensor sample = call("aten::normal_functional", dtype, {10'000}, {0.0, 1.0}, kSeed, 3);
    at::Tensor x = at::empty({10'000}, at::kDouble);
    for (uint64_t i = 0; i < 10'000; ++i)
      x.data_ptr<double>()[i] = dtype == DType::F64
                                    ? 2 * philox::unit_double(philox::word64(kSeed, 3, i)) + 0x1p-53 - 1
                                    : 2.0 * static_cast<double>(philox::unit_float(philox::word(kSeed, 3, i))) + 0x1p-24 - 1;
    at::Tensor expected = at::erfinv(x) * std::sqrt(2.0);
    double tolerance = dtype == DType::F64 ? 1e-12 : 2e-6;
    EXPECT_LT(((sample.to(at::kDouble) - expected).abs() / (expected.abs() + 1e-3)).max().item<double>(), tolerance)
        << torch_name(dtype);
  }
}

TEST(RandomDistributions, RoundedUniformsStayBelowTheirBound) {
  for (DType dtype : {DType::F16, DType::BF16}) {
    at::Tensor sample = call("aten::uniform", dtype, {kMany}, {0.0, 1.0}).to(at::kDouble);
    EXPECT_LT(sample.max().item<double>(), 1) << torch_name(dtype);
    EXPECT_NEAR(sample.mean().item<double>(), 0.5, 5e-3) << torch_name(dtype);
  }
}

TEST(RandomDistributions, ExponentialsArePositive) {
  EXPECT_GT(call("aten::exponential", DType::F32, {4'000'000}, {1.0}).min().item<double>(), 0);
}

TEST(RandomDistributions, GeometricCountsTrials) {
  at::Tensor sample = call("aten::geometric", DType::S64, {kMany}, {0.25}).to(at::kDouble);
  EXPECT_EQ(sample.min().item<double>(), 1);
  EXPECT_NEAR(sample.mean().item<double>(), 4, 0.05);
  EXPECT_NEAR(sample.eq(1).to(at::kDouble).mean().item<double>(), 0.25, 0.006);
}

// ---- every random row
// ---------------------------------------------------------------------------------------------------------

// What one row draws: range, mean and standard deviation. `through` maps draws that have no moments to such that do.
struct Moments {
  std::string row;
  std::function<std::vector<Argument>(Builder&)> arguments;
  double mean, deviation, least, greatest;
  std::function<at::Tensor(const at::Tensor&)> through = {};
};

Operand every(Builder& b, double value, Dims dims = {kMany}) { return {b.constant(DType::F32, value, std::move(dims))}; }
Operand integers(Builder& b) { return {b.constant(DType::S64, 0, {kMany})}; }

const std::vector<Moments>& all_moments() {
  const double tail = 15;  // standard deviations that no normal reaches
  const Argument none = std::monostate{};
  constexpr int64_t kKeys = 32, kQueries = 6400;
  static const std::vector<Moments> moments = {
      {"aten::uniform", [](Builder& b) { return std::vector<Argument>{every(b, 0), -1.0, 3.0}; }, 1, 4 / std::sqrt(12), -1, 3},
      {"aten::normal_functional", [](Builder& b) { return std::vector<Argument>{every(b, 0), 1.0, 2.0}; }, 1, 2, 1 - tail, 1 + tail},
      {"aten::normal.Tensor_Tensor", [](Builder& b) { return std::vector<Argument>{every(b, 1), every(b, 2)}; }, 1, 2, 1 - tail, 1 + tail},
      {"aten::normal.Tensor_float", [](Builder& b) { return std::vector<Argument>{every(b, -1), 3.0}; }, -1, 3, -1 - tail * 3, -1 + tail * 3},
      {"aten::normal.float_Tensor", [](Builder& b) { return std::vector<Argument>{2.0, every(b, 0.5)}; }, 2, 0.5, 2 - tail, 2 + tail},
      {"aten::log_normal", [](Builder& b) { return std::vector<Argument>{every(b, 0), 0.5, 0.25}; }, std::exp(0.5 + 0.03125),
       std::exp(0.5 + 0.03125) * std::sqrt(std::expm1(0.0625)), 0, kInf},
      {"aten::cauchy", [](Builder& b) { return std::vector<Argument>{every(b, 0), 1.0, 2.0}; }, 0, M_PI / std::sqrt(12), -M_PI / 2, M_PI / 2,
       [](const at::Tensor& x) { return ((x - 1) / 2).atan(); }},
      {"aten::exponential", [](Builder& b) { return std::vector<Argument>{every(b, 0), 0.5}; }, 2, 2, 0, kInf},
      {"aten::geometric", [](Builder& b) { return std::vector<Argument>{every(b, 0), 0.25}; }, 4, std::sqrt(12), 1, kInf},
      {"aten::bernoulli", [](Builder& b) { return std::vector<Argument>{every(b, 0.3)}; }, 0.3, std::sqrt(0.21), 0, 1},
      {"aten::bernoulli.p", [](Builder& b) { return std::vector<Argument>{every(b, 0), 0.3}; }, 0.3, std::sqrt(0.21), 0, 1},
      {"aten::bernoulli.Tensor", [](Builder& b) { return std::vector<Argument>{integers(b), every(b, 0.7)}; }, 0.7, std::sqrt(0.21), 0, 1},
      {"aten::native_dropout", [](Builder& b) { return std::vector<Argument>{every(b, 3), 0.25, true}; }, 3, std::sqrt(3.0), 0, 4},
      {"aten::random", [](Builder& b) { return std::vector<Argument>{integers(b)}; }, 0x1p62, 0x1p63 / std::sqrt(12), 0, 0x1p63},
      {"aten::random.to", [](Builder& b) { return std::vector<Argument>{integers(b), int64_t{10}}; }, 4.5, std::sqrt(99.0 / 12), 0, 9},
      {"aten::random.from", [](Builder& b) { return std::vector<Argument>{integers(b), int64_t{-3}, int64_t{4}}; }, 0, 2, -3, 3},
      {"aten::randperm", [](Builder&) { return std::vector<Argument>{kMany, DType::S64}; }, (kMany - 1) / 2.0, kMany / std::sqrt(12), 0, kMany - 1},
      {"aten::randperm.generator", [](Builder&) { return std::vector<Argument>{kMany, DType::S32}; }, (kMany - 1) / 2.0, kMany / std::sqrt(12), 0,
       kMany - 1},
      {"aten::multinomial", [](Builder& b) { return std::vector<Argument>{every(b, 1, {10}), kMany, true}; }, 4.5, std::sqrt(99.0 / 12), 0, 9},
      // Each output is a mean of ones, half of them dropped and the rest doubled.
      {"aten::_scaled_dot_product_fused_attention_overrideable",
       [none](Builder& b) {
         Dims queries{1, 1, kQueries, 8}, keys{1, 1, kKeys, 8};
         return std::vector<Argument>{every(b, 0, queries), every(b, 0, keys), every(b, 1, keys), none, 0.5, false, false, none};
       },
       1, 1 / std::sqrt(double{kKeys}), 0, 2, [](const at::Tensor& x) { return x.select(-1, 0); }},
  };
  return moments;
}

TEST(RandomRows, HaveTheirMoments) {
  for (const Row& row : all_rows()) {
    if (!row.random) continue;
    auto m = std::ranges::find(all_moments(), row.name, &Moments::row);
    if (m == all_moments().end()) {
      ADD_FAILURE() << row.name << " draws random numbers and has no row of moments";
      continue;
    }
    at::Tensor drawn = run(5, 11, [&](Builder& b, const Random& random) { return std::vector<Value>{row.lower(b, m->arguments(b), &random)[0]}; })[0];
    at::Tensor x = drawn.to(at::kDouble);
    if (m->through) x = m->through(x);
    double n = static_cast<double>(x.numel()), mean = x.mean().item<double>(), deviation = x.std().item<double>();
    EXPECT_GE(x.min().item<double>(), m->least) << row.name;
    EXPECT_LE(x.max().item<double>(), m->greatest) << row.name;
    EXPECT_NEAR(mean, m->mean, 5 * m->deviation / std::sqrt(n)) << row.name;
    EXPECT_NEAR(deviation, m->deviation, 0.02 * m->deviation) << row.name;
  }
}

// ---- integers and masks
// -----------------------------------------------------------------------------------------------------------

TEST(RandomIntegers, CoverTheirRangeEvenly) {
  for (DType dtype : {DType::S32, DType::S64, DType::F32}) {
    at::Tensor sample = call("aten::random.from", dtype, {kMany}, {int64_t{-3}, int64_t{4}}).to(at::kLong);
    at::Tensor counts = at::bincount(sample + 3, {}, 7).to(at::kDouble);
    EXPECT_EQ(counts.numel(), 7);
    double expected = static_cast<double>(kMany) / 7;
    EXPECT_LT((counts - expected).pow(2).sum().item<double>() / expected, 40) << torch_name(dtype);  // chi square, 6 degrees
  }
}

TEST(RandomIntegers, LargeRangesUseSixtyFourBits) {
  int64_t high = int64_t{3} << 40;
  at::Tensor wide = call("aten::random.to", DType::S64, {kMany}, {high}).to(at::kDouble) / static_cast<double>(high);
  EXPECT_GE(wide.min().item<double>(), 0);
  EXPECT_LT(wide.max().item<double>(), 1);
  EXPECT_LT(distance(wide, [](double x) { return x; }), 2.7);
  // An int32 range that is not a power of two, from the wide stream.
  at::Tensor narrow = call("aten::random.to", DType::S32, {kMany}, {int64_t{3} << 29}).to(at::kDouble) /
                      static_cast<double>(int64_t{3} << 29);
  EXPECT_LT(distance(narrow, [](double x) { return x; }), 2.7);
  at::Tensor all = call("aten::random", DType::S64, {kMany}, {});
  EXPECT_GE(all.min().item<int64_t>(), 0);
  EXPECT_LT(distance(all.to(at::kDouble) * 0x1p-63, [](double x) { return x; }), 2.7);
}

TEST(RandomMasks, DropoutKeepsAndScales) {
  auto out = run(3, 0, [](Builder& b, const Random& r) {
    std::vector<Argument> arguments{Operand{b.broadcast(b.constant(DType::F32, 2), {kMany})}, 0.25, true};
    return find_row("aten::native_dropout")->lower(b, arguments, &r);
  });
  EXPECT_NEAR(out[1].to(at::kDouble).mean().item<double>(), 0.75, 0.006);
  EXPECT_TRUE(at::allclose(out[0], out[1].to(at::kFloat) * (2 / 0.75)));
}

TEST(RandomMasks, BernoulliFollowsItsProbability) {
  for (double p : {0.0, 0.3, 1.0}) {
    double mean = call("aten::bernoulli.p", DType::F32, {kMany}, {p}).mean().item<double>();
    EXPECT_NEAR(mean, p, p == 0.3 ? 0.006 : 0) << p;
  }
}

// ---- orders and samples
// -------------------------------------------------------------------------------------------------------------

TEST(RandomOrders, RandpermIsAPermutation) {
  for (DType dtype : {DType::S64, DType::S32}) {
    auto draw = [&](uint64_t seed) {
      return run(seed, 0,
                 [&](Builder& b, const Random& r) {
                   std::vector<Argument> arguments{int64_t{1000}, dtype};
                   return find_row("aten::randperm")->lower(b, arguments, &r);
                 })[0]
          .to(at::kLong);
    };
    at::Tensor a = draw(1), c = draw(2);
    EXPECT_TRUE(std::get<0>(a.sort()).equal(at::arange(1000)));
    EXPECT_FALSE(a.equal(c));
    EXPECT_TRUE(a.equal(draw(1)));
    EXPECT_LT(a.eq(at::arange(1000)).sum().item<int64_t>(), 10);  // one fixed point is expected
  }
}

at::Tensor sample(const std::vector<double>& weights, int64_t rows, int64_t samples, bool replacement) {
  return run(11, 0, [&](Builder& b, const Random& r) {
    Value w = b.literal({DType::F64, {static_cast<int64_t>(weights.size())}}, weights.data());
    w = b.broadcast(b.convert(w, DType::F32), {rows, static_cast<int64_t>(weights.size())});
    std::vector<Argument> arguments{Operand{w}, samples, replacement};
    return find_row("aten::multinomial")->lower(b, arguments, &r);
  })[0];
}

TEST(RandomSamples, MultinomialFollowsItsWeights) {
  const std::vector<double> weights{1, 0, 3, 0, 4, 2, 0};
  struct {
    int64_t rows, samples;
    bool replacement;
  } cases[] = {{1, 50'000, true}, {50'000, 1, false}, {25'000, 2, true}};
  for (auto& c : cases) {
    at::Tensor counts = at::bincount(sample(weights, c.rows, c.samples, c.replacement).flatten(), {}, 7).to(at::kDouble);
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(counts[static_cast<int64_t>(i)].item<double>() / 50'000, weights[i] / 10, weights[i] == 0 ? 0 : 0.012)
          << i;
  }
}

TEST(RandomSamples, MultinomialWithoutReplacementIsDistinctAndWeighted) {
  at::Tensor s = sample({1, 0, 3, 6}, 50'000, 3, false);
  at::Tensor sorted = std::get<0>(s.sort(-1));
  EXPECT_TRUE(sorted.eq(at::tensor({0, 2, 3}, at::kLong)).all().item<bool>());
  at::Tensor first = at::bincount(s.select(1, 0), {}, 4).to(at::kDouble) / 50'000;
  EXPECT_NEAR(first[3].item<double>(), 0.6, 0.012);
  // The second of two draws: P(2 second) = 0.6 * 3/4 + 0.1 * 3/9.
  at::Tensor second = at::bincount(s.select(1, 1), {}, 4).to(at::kDouble) / 50'000;
  EXPECT_NEAR(second[2].item<double>(), 0.6 * 0.75 + 0.1 / 3, 0.012);
}

// ---- dropout inside attention
// ---------------------------------------------------------------------------------------------------------

// With values that are the identity the output shows the dropped probabilities; their gradient shows the mask that backward
// makes.
TEST(RandomAttention, BackwardMakesTheMaskAgain) {
  constexpr int64_t kKeys = 32;
  auto out = run(21, 4, [&](Builder& b, const Random& r) {
    Dims dims{1, 2, kKeys, kKeys};
    Value zero = b.broadcast(b.constant(DType::F32, 0), dims);
    Value eye =
        b.convert(b.compare(b.iota({DType::S32, dims}, 2), b.iota({DType::S32, dims}, 3), hlo::Comparison::EQ), DType::F32);
    Argument none = std::monostate{};
    std::vector<Argument> forward{Operand{zero}, Operand{zero}, Operand{eye}, none, 0.5, false, false, none};
    auto f = find_row("aten::_scaled_dot_product_fused_attention_overrideable")->lower(b, forward, &r);
    std::vector<Argument> backward{Operand{eye},  Operand{zero}, Operand{zero}, Operand{eye},  none,  Dims{0, 0, 1, 0},
                                   Operand{f[0]}, Operand{f[1]}, none,          none,          kKeys, kKeys,
                                   0.5,           false,         Operand{f[6]}, Operand{f[7]}, none};
    auto g = find_row("aten::_scaled_dot_product_fused_attention_overrideable_backward")->lower(b, backward, nullptr);
    return std::vector<Value>{f[0], g[2]};
  });
  EXPECT_TRUE(at::allclose(out[0].transpose(-1, -2), out[1]));
  EXPECT_NEAR(out[0].ne(0).to(at::kDouble).mean().item<double>(), 0.5, 0.05);
  EXPECT_NEAR(out[0].max().item<double>(), 2.0 / kKeys, 1e-6);
}

}  // namespace

}  // namespace flambeau::ops
