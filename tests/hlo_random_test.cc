// simplify() changes no result: random programs give the same bits on a CPU plugin before and after.
//
// What XLA does itself to either program (x + 0.0 -> x) cannot show here: simplify_test has a row for each rule. The numbers
// are such that sums and products are exact (small halves, zeros of both signs, infinities, NaN), so that how a plugin fuses
// and contracts cannot make a difference.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "hlo/elements.h"
#include "hlo_run.h"

namespace flambeau::tests {
namespace {

using namespace hlo;

class RandomProgram {
 public:
  explicit RandomProgram(uint32_t seed) : random_(seed) {
    for (DType t : {DType::F32, DType::F32, DType::S32, DType::S32, DType::BF16, DType::Pred, DType::U8}) add_input(t);
    for (int i = 0; i < 60; ++i) values_.push_back(step());
    for (size_t i = values_.size() - 25; i < values_.size(); ++i) program.expect(values_[i], {0});  // only run
    program.finish();
  }
  Program program;

 private:
  int pick(int n) { return std::uniform_int_distribution(0, n - 1)(random_); }

  std::vector<double> numbers(DType t, int64_t count) {
    constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kFloats[] = {0, -0.0, 1, -1, 2, 0.5, kInf, -kInf, kNan};
    std::vector<double> out;
    for (int64_t i = 0; i < count; ++i)
      out.push_back(is_float(t) ? kFloats[pick(9)] : t == DType::Pred ? pick(2) : t == DType::U8 ? pick(256) : pick(9) - 4);
    return out;
  }

  Dims dims() {
    const Dims shapes[] = {{}, {12}, {3, 2}, {1, 4}, {2, 1, 3}, {2, 3, 4}};
    return shapes[pick(6)];
  }

  Dims shuffled(int64_t rank) {
    Dims permutation(static_cast<size_t>(rank));
    std::iota(permutation.begin(), permutation.end(), 0);
    std::shuffle(permutation.begin(), permutation.end(), random_);
    return permutation;
  }

  Value part(Value x) {
    Dims start, limit, stride;
    for (int64_t d : x.dims()) {
      start.push_back(pick(static_cast<int>(d)));
      limit.push_back(start.back() + 1 + pick(static_cast<int>(d - start.back())));
      stride.push_back(1 + pick(2));
    }
    return program.b.slice(x, start, limit, stride);
  }

  void add_input(DType t) {
    const Type type{t, dims()};
    values_.push_back(program.in(t, type.dims, numbers(t, type.elements())));
  }

  // Often a recent one, so that operations follow each other.
  Value any() {
    const int n = static_cast<int>(values_.size()), recent = pick(2) ? std::min(n, 5) : n;
    return values_[static_cast<size_t>(n - 1 - pick(recent))];
  }

  // Of this type: an earlier value, an element that matters repeated, or a literal.
  Value other(const Type& type) {
    const int choice = pick(6);
    for (int i = 0; choice < 3 && i < 10; ++i)
      if (Value v = any(); v.type() == type) return v;
    const double one = numbers(type.dtype, 1)[0];
    if (choice == 3) return program.b.broadcast(program.b.constant(type.dtype, one), type.dims);
    if (choice == 4) {
      std::string bytes;
      for (double n : numbers(type.dtype, type.elements()))
        bytes += is_float(type.dtype) ? encode_float(type.dtype, n)
                                      : encode_integer(type.dtype, static_cast<uint64_t>(static_cast<int64_t>(n)));
      return program.b.literal(type, bytes.data());
    }
    return program.b.constant(type.dtype, one, type.dims);
  }

  Value step() {
    Builder& b = program.b;
    const Value x = any();
    const DType t = x.dtype();
    switch (pick(18)) {
      case 0: return arithmetic(x);
      case 1: return arithmetic(x);
      case 2: {
        constexpr DType kTypes[] = {DType::F32, DType::F64, DType::BF16, DType::S32, DType::S64,
                                    DType::S8,  DType::U8,  DType::Pred, DType::F16};
        const DType to = kTypes[pick(9)];
        if (is_float(t) && is_integer(to)) return x;  // of infinities: the plugin's affair
        return b.convert(x, to);
      }
      case 3: return b.transpose(x, shuffled(x.rank()));
      case 4: return b.reshape(x, {x.elements()});
      case 5: {
        Dims more = x.dims();
        more.insert(more.begin() + pick(static_cast<int>(more.size()) + 1), 1);
        return x.rank() < 4 ? b.reshape(x, more) : x;
      }
      case 6: {
        Dims more = x.dims();
        for (int64_t& d : more)
          if (d == 1) d = 2;
        if (more.size() < 3) more.insert(more.begin(), 2);
        return x.elements() < 100 ? b.broadcast(x, more) : x;
      }
      case 7: return part(x);
      case 8:
        return x.rank() && x.elements() < 100
                   ? b.concatenate(std::array{x, other(x.type())}, pick(static_cast<int>(x.rank())))
                   : x;
      case 9: return b.select(pick(2) ? other({DType::Pred, {}}) : other({DType::Pred, x.dims()}), x, other(x.type()));
      case 10: return b.compare(x, pick(3) ? other(x.type()) : x, static_cast<Comparison>(pick(6)));
      case 11: return t == DType::Pred || is_integer(t) ? b.logical_not(x) : b.negate(x);
      case 12: return x.rank() ? b.reverse(x, {pick(static_cast<int>(x.rank()))}) : x;
      case 13:
        return x.rank() == 1 && x.dim(0) > 1 ? b.dynamic_slice(x, std::array{other({DType::S32, {}})}, {x.dim(0) - 1}) : x;
      case 14: return is_float(t) && t != DType::F64 ? b.reduce(x, Dims(x.rank() ? 1 : 0, 0), Reduction::Max) : x;
      case 15: return part(part(x));
      case 16: return b.transpose(b.transpose(x, shuffled(x.rank())), shuffled(x.rank()));
      default:
        return b.for_loop(2, std::array{x},
                          [&](Builder&, std::span<const Value> p) { return std::vector{arithmetic(p[1])}; })[0];
    }
  }

  Value arithmetic(Value x) {
    Builder& b = program.b;
    const DType t = x.dtype();
    const Value y = other(x.type());
    if (t == DType::Pred)
      return b.binary(std::array{Op::And, Op::Or, Op::Xor, Op::Add, Op::Multiply, Op::Maximum}[static_cast<size_t>(pick(6))],
                      x, y);
    if (is_integer(t)) {
      constexpr std::array kOps{Op::Add, Op::Subtract, Op::Multiply, Op::And, Op::Or, Op::Xor, Op::Maximum, Op::Minimum};
      const Op op = kOps[static_cast<size_t>(pick(8))];
      return pick(2) ? b.binary(op, x, y) : b.binary(op, y, x);
    }
    const Value factor = b.constant(t, std::array{1.0, -1.0, 0.5, 0.0, -0.0}[static_cast<size_t>(pick(5))], x.dims());
    switch (pick(6)) {
      case 0: return b.multiply(x, factor);
      case 1: return b.multiply(factor, x);
      case 2: return b.add(x, factor);
      case 3: return b.subtract(x, factor);
      case 4: return b.divide(x, b.constant(t, 1, x.dims()));
      default: return b.maximum(x, y);
    }
  }

  std::mt19937 random_;
  std::vector<Value> values_;
};

TEST(RandomPrograms, SimplifyKeepsEveryBit) {
  const auto path = installed("cpu");
  if (!path) GTEST_SKIP() << "the plugin is not installed";
  const auto client = pjrt::Client::create(pjrt::Plugin::load(*path), {{"cpu_device_count", int64_t{8}}});
  constexpr uint32_t kPrograms = 12;
  size_t removed = 0;
  for (uint32_t seed = 1; seed <= kPrograms; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomProgram random(seed);
    Program& program = random.program;
    const std::string text = print(program.graph);
    const auto plain = execute(*client, program, text);
    const size_t before = program.graph.node_count();
    simplify(program.graph);
    removed += before - program.graph.node_count();
    const std::string shorter = print(program.graph);
    const auto simplified = execute(*client, program, shorter);
    for (size_t i = 0; i < program.results.size(); ++i)
      ASSERT_EQ(difference(program.results[i].type(), simplified[0][i], {plain[0][i], 0}), "") << "result " << i << '\n'
                                                                                               << text << shorter;
  }
  EXPECT_GT(removed, kPrograms * 30);  // the programs give it something to do
}

}  // namespace
}  // namespace flambeau::tests
