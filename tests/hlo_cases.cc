#include "hlo_cases.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "hlo/elements.h"

namespace flambeau::tests {

using namespace hlo;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string bytes_of(const Type& type, const std::vector<double>& numbers) {
  std::string bytes;
  const size_t per_element = is_complex(type.dtype) ? 2 : 1;
  const auto count = static_cast<size_t>(type.elements());
  FLAMBEAU_CHECK(numbers.size() == count * per_element || numbers.size() == per_element || count == 0,
                 "a case gives all its numbers");
  for (size_t i = 0; i < count; ++i) {
    const double* at = &numbers[numbers.size() == per_element ? 0 : i * per_element];
    if (is_complex(type.dtype))
      bytes += encode_complex(type.dtype, {at[0], at[1]});
    else if (is_float(type.dtype))
      bytes += encode_float(type.dtype, at[0]);
    else
      bytes += encode_integer(type.dtype,
                              at[0] < 0 ? static_cast<uint64_t>(static_cast<int64_t>(at[0])) : static_cast<uint64_t>(at[0]));
  }
  return bytes;
}

bool close(double got, double want, double tolerance) {
  if (std::isnan(want)) return std::isnan(got);
  if (tolerance == 0 || std::isinf(want)) return got == want && std::signbit(got) == std::signbit(want);
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

}  // namespace

Value Program::in(DType dtype, Dims dims, const std::vector<double>& numbers, Signature signature) {
  const Type type{dtype, std::move(dims)};
  inputs.push_back({type, bytes_of(type, numbers)});
  return graph.add_parameter(type, std::move(signature));
}

void Program::expect(Value value, const std::vector<double>& numbers, double tolerance, Signature signature) {
  expected.push_back({bytes_of(value.type(), numbers), tolerance});
  results.push_back(value);
  result_signatures.push_back(std::move(signature));
}

void Program::expect_bytes(Value value, std::string bytes) {
  expected.push_back({std::move(bytes), 0});
  results.push_back(value);
  result_signatures.emplace_back();
}

std::string difference(const Type& type, const std::string& got, const Program::Expected& expected) {
  if (got.size() != expected.bytes.size()) return fmt::format("{} bytes, expected {}", got.size(), expected.bytes.size());
  const DType part = type.dtype == DType::C64 ? DType::F32 : type.dtype == DType::C128 ? DType::F64 : type.dtype;
  const auto size = static_cast<size_t>(byte_size(part));
  std::string text;
  for (size_t i = 0; i < got.size(); i += size) {
    const char *g = got.data() + i, *e = expected.bytes.data() + i;
    if (!is_float(part)) {
      if (decode_bits(part, g) != decode_bits(part, e))
        text += fmt::format("[{}] {} != {}  ", i / size, decode_integer(part, g), decode_integer(part, e));
    } else if (!close(decode_float(part, g), decode_float(part, e), expected.tolerance)) {
      text += fmt::format("[{}] {} != {}  ", i / size, decode_float(part, g), decode_float(part, e));
    }
  }
  return text;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto* group :
       {&element_wise_cases, &constant_cases, &movement_cases, &region_cases, &contraction_cases, &partition_cases})
    for (Case& c : (*group)()) all.push_back(std::move(c));
  return all;
}

// ---- element-wise
// -------------------------------------------------------------------------------------------------------------

std::vector<Case> element_wise_cases() {
  std::vector<Case> cases;
  struct Unary {
    Op op;
    DType dtype;
    std::vector<double> x, want;
    double tolerance = 0;
  };
  constexpr double kFast = 2e-6;  // CPU plugins approximate transcendental functions
  const Unary unary[] = {
      {Op::Abs, DType::F32, {-1.5, 0, -kInf}, {1.5, 0, kInf}},
      {Op::Abs, DType::S32, {-7, 7}, {7, 7}},
      {Op::Abs, DType::C64, {3, 4}, {5}, kFast},
      {Op::Cbrt, DType::F32, {27, -8}, {3, -2}, kFast},
      {Op::Ceil, DType::F32, {1.2, -1.2}, {2, -1}},
      {Op::CountLeadingZeros, DType::U8, {1, 128, 0}, {7, 0, 8}},
      {Op::Cosine, DType::F32, {0, 1}, {1, std::cos(1.0)}, kFast},
      {Op::Exponential, DType::F64, {0, 1}, {1, std::exp(1.0)}, 1e-14},
      {Op::ExponentialMinusOne, DType::F32, {0, 1e-4}, {0, std::expm1(1e-4)}, kFast},
      {Op::Floor, DType::F32, {1.2, -1.2}, {1, -2}},
      {Op::Imag, DType::C64, {1, 2, 3, 4}, {2, 4}},
      {Op::IsFinite, DType::F32, {1, kInf, kNan}, {1, 0, 0}},
      {Op::Log, DType::F32, {1, 2}, {0, std::log(2.0)}, kFast},
      {Op::LogPlusOne, DType::F32, {0, 1e-4}, {0, std::log1p(1e-4)}, kFast},
      {Op::Logistic, DType::F32, {0, 1}, {0.5, 1 / (1 + std::exp(-1.0))}, kFast},
      {Op::Negate, DType::F32, {1, 0, kNan}, {-1, -0.0, kNan}},
      {Op::Negate, DType::S64, {5, -6}, {-5, 6}},
      {Op::Not, DType::Pred, {0, 1}, {1, 0}},
      {Op::Not, DType::S32, {0, 5}, {-1, -6}},
      {Op::PopulationCount, DType::U32, {0, 7, 4294967295.0}, {0, 3, 32}},
      {Op::Real, DType::C128, {1, 2, 3, 4}, {1, 3}},
      {Op::RoundNearestAfz, DType::F32, {0.5, 1.5, -2.5}, {1, 2, -3}},
      {Op::RoundNearestEven, DType::F32, {0.5, 1.5, -2.5}, {0, 2, -2}},
      {Op::Rsqrt, DType::F32, {4, 16}, {0.5, 0.25}, kFast},
      {Op::Sign, DType::F32, {-3, 0, 2}, {-1, 0, 1}},
      {Op::Sine, DType::F32, {0, 1}, {0, std::sin(1.0)}, kFast},
      {Op::Sqrt, DType::F32, {4, 9}, {2, 3}, kFast},
      {Op::Tan, DType::F32, {0, 1}, {0, std::tan(1.0)}, kFast},
      {Op::Tanh, DType::F32, {0, 1}, {0, std::tanh(1.0)}, kFast},
      {Op::Tanh, DType::BF16, {0, 1}, {0, 0.76171875}, 4e-3},
      {Op::Sqrt, DType::F16, {4, 9}, {2, 3}, 1e-3},
  };
  for (const Unary& u : unary)
    cases.push_back({fmt::format("{}.{}", op_name(u.op), hlo_name(u.dtype)), [u](Program& p) {
                       const auto n = static_cast<int64_t>(u.x.size()) / (is_complex(u.dtype) ? 2 : 1);
                       p.expect(p.b.unary(u.op, p.in(u.dtype, {n}, u.x)), u.want, u.tolerance);
                     }});
  struct Binary {
    Op op;
    DType dtype;
    std::vector<double> x, y, want;
    double tolerance = 0;
  };
  const Binary binary[] = {
      {Op::Add, DType::F32, {1, -0.0}, {2, -0.0}, {3, -0.0}},
      {Op::Add, DType::U8, {250}, {10}, {4}},
      {Op::Add, DType::BF16, {1}, {0.5}, {1.5}},
      {Op::Add, DType::Pred, {1, 1, 0}, {1, 0, 0}, {1, 1, 0}},
      {Op::Multiply, DType::Pred, {1, 1, 0}, {1, 0, 0}, {1, 0, 0}},
      {Op::Maximum, DType::Pred, {1, 1, 0}, {1, 0, 0}, {1, 1, 0}},
      {Op::Minimum, DType::Pred, {1, 1, 0}, {1, 0, 0}, {1, 0, 0}},
      {Op::And, DType::S32, {12}, {10}, {8}},
      {Op::And, DType::Pred, {1, 1}, {1, 0}, {1, 0}},
      {Op::Atan2, DType::F32, {1}, {-1}, {std::atan2(1.0, -1.0)}, kFast},
      {Op::Complex, DType::F32, {1, 2}, {3, 4}, {1, 3, 2, 4}},
      {Op::Divide, DType::F32, {1}, {4}, {0.25}},
      {Op::Divide, DType::S32, {-7}, {2}, {-3}},
      {Op::Divide, DType::F16, {1}, {3}, {0.333251953125}},
      {Op::Maximum, DType::F32, {1, kNan}, {2, 1}, {2, kNan}},
      {Op::Minimum, DType::U64, {1}, {2}, {1}},
      {Op::Multiply, DType::F64, {1.5}, {-2}, {-3}},
      {Op::Multiply, DType::C64, {1, 2}, {3, 4}, {-5, 10}},
      {Op::Or, DType::U16, {12}, {10}, {14}},
      {Op::Power, DType::F32, {2, 9}, {10, 0.5}, {1024, 3}, kFast},
      {Op::Remainder, DType::F32, {-7.5}, {2}, {-1.5}},
      {Op::Remainder, DType::S64, {-7}, {2}, {-1}},
      {Op::ShiftLeft, DType::S32, {3}, {4}, {48}},
      {Op::ShiftRightArithmetic, DType::S8, {-8}, {1}, {-4}},
      {Op::ShiftRightLogical, DType::U32, {4294967288.0}, {1}, {2147483644.0}},
      {Op::Subtract, DType::S16, {3}, {10}, {-7}},
      {Op::Xor, DType::S8, {12}, {10}, {6}},
      {Op::Xor, DType::Pred, {1, 1}, {1, 0}, {0, 1}},
  };
  for (const Binary& u : binary)
    cases.push_back({fmt::format("{}.{}", op_name(u.op), hlo_name(u.dtype)), [u](Program& p) {
                       const Dims dims{static_cast<int64_t>(u.x.size()) / (is_complex(u.dtype) ? 2 : 1)};
                       p.expect(p.b.binary(u.op, p.in(u.dtype, dims, u.x), p.in(u.dtype, dims, u.y)), u.want, u.tolerance);
                     }});
  cases.push_back({"compare", [](Program& p) {
                     const Value x = p.in(DType::F32, {3}, {1, 2, kNan}), y = p.in(DType::F32, {3}, {1, 3, 1});
                     p.expect(p.b.compare(x, y, Comparison::EQ), {1, 0, 0});
                     p.expect(p.b.compare(x, y, Comparison::NE), {0, 1, 1});
                     p.expect(p.b.compare(x, y, Comparison::GE), {1, 0, 0});
                     p.expect(p.b.compare(x, y, Comparison::LT), {0, 1, 0});
                     const Value u = p.in(DType::U8, {1}, {200}), v = p.in(DType::U8, {1}, {100});
                     p.expect(p.b.compare(u, v, Comparison::GT), {1});
                     const Value s = p.in(DType::S8, {1}, {-56});
                     p.expect(p.b.compare(s, p.in(DType::S8, {1}, {100}), Comparison::LE), {1});
                     const Value t = p.in(DType::Pred, {2}, {1, 0});
                     p.expect(p.b.compare(t, p.in(DType::Pred, {2}, {0, 0}), Comparison::GT), {1, 0});
                     const Value c = p.in(DType::C64, {1}, {1, 2});
                     p.expect(p.b.compare(c, p.in(DType::C64, {1}, {1, 2}), Comparison::EQ), {1});
                   }});
  cases.push_back({"select and clamp", [](Program& p) {
                     const Value x = p.in(DType::F32, {3}, {1, 2, 3}), y = p.in(DType::F32, {3}, {4, 5, 6});
                     p.expect(p.b.select(p.in(DType::Pred, {3}, {1, 0, 1}), x, y), {1, 5, 3});
                     p.expect(p.b.select(p.in(DType::Pred, {}, {0}), x, y), {4, 5, 6});
                     p.expect(p.b.clamp(p.b.constant(DType::F32, 1.5), x, p.b.constant(DType::F32, 2.5)), {1.5, 2, 2.5});
                     p.expect(p.b.clamp(x, y, y), {4, 5, 6});
                   }});
  cases.push_back({"convert", [](Program& p) {
                     const Value x = p.in(DType::F32, {3}, {1.75, -2.5, 0});
                     for (DType t : {DType::S8, DType::S16, DType::S32, DType::S64}) p.expect(p.b.convert(x, t), {1, -2, 0});
                     for (DType t : {DType::F16, DType::BF16, DType::F64, DType::F8E4M3FN, DType::F8E5M2})
                       p.expect(p.b.convert(x, t), {1.75, -2.5, 0});
                     p.expect(p.b.convert(x, DType::Pred), {1, 1, 0});
                     p.expect(p.b.convert(x, DType::C64), {1.75, 0, -2.5, 0, 0, 0});
                     p.expect(p.b.convert(p.in(DType::U8, {1}, {200}), DType::F32), {200});
                     p.expect(p.b.convert(p.in(DType::S32, {1}, {-1}), DType::U32), {4294967295.0});
                     p.expect(p.b.convert(p.in(DType::Pred, {2}, {1, 0}), DType::F32), {1, 0});
                     p.expect(p.b.convert(p.in(DType::C128, {1}, {1, 2}), DType::F64), {1});
                   }});
  cases.push_back({"bitcast_convert", [](Program& p) {
                     p.expect(p.b.bitcast_convert(p.in(DType::F32, {1}, {1}), DType::U32), {1065353216});
                     const Value halves = p.in(DType::U16, {1, 2}, {0, 16256});  // the bytes of 1.0f
                     p.expect(p.b.bitcast_convert(halves, DType::F32), {1});
                     p.expect(p.b.bitcast_convert(p.in(DType::F32, {1}, {1}), DType::U16), {0, 16256});
                     p.expect(p.b.bitcast_convert(p.in(DType::BF16, {1}, {1}), DType::S16), {16256});
                   }});
  return cases;
}

// ---- constants
// ----------------------------------------------------------------------------------------------------------------

std::vector<Case> constant_cases() {
  std::vector<Case> cases;
  for (int t = 0; t < kDTypeCount; ++t) {
    const auto dtype = static_cast<DType>(t);
    cases.push_back(
        {fmt::format("stablehlo.constant.{}", hlo_name(dtype)), [dtype](Program& p) {
           const bool complex = is_complex(dtype);
           auto add = [&](Dims dims, const std::vector<double>& numbers) {  // as a literal
             const Type type{dtype, std::move(dims)};
             const std::string bytes = bytes_of(type, numbers);
             p.expect_bytes(p.b.literal(type, bytes.data()), bytes);
           };
           add({0, 2}, {});
           add({2, 2}, complex ? std::vector<double>{0, 1, 1, 0, 0, 0, 1, 1} : std::vector<double>{0, 1, 1, 0});
           add({2, 3}, complex ? std::vector<double>{1, 1} : std::vector<double>{1});
           std::vector<double> many;
           for (int i = 0; i < (complex ? 60 : 30); ++i) many.push_back(dtype == DType::Pred ? i % 3 == 0 : i % 13);
           add({5, 6}, many);
           if (is_float(dtype) || complex) {
             add({8},
                 complex ? std::vector<double>{-0.0, kInf, -kInf, 1.5, kNan, 0.1, 1e-30, -2, 1e30, 3, 0.25, 7, 9, 11, 13, 15}
                         : std::vector<double>{-0.0, kInf, -kInf, kNan, 0.1, -3.3, 1e-3, 100});
             p.expect(p.b.constant(dtype, 0.1), complex ? std::vector<double>{0.1, 0} : std::vector<double>{0.1});
           }
           if (complex) return;
           const Value low = p.b.lowest(dtype), high = p.b.highest(dtype, {2});
           p.expect_bytes(low, lowest_element(dtype));
           p.expect_bytes(high, highest_element(dtype) + highest_element(dtype));
         }});
  }
  cases.push_back({"iota and index_vector", [](Program& p) {
                     p.expect(p.b.iota({DType::S32, {2, 3}}, 1), {0, 1, 2, 0, 1, 2});
                     p.expect(p.b.iota({DType::BF16, {2, 2}}, 0), {0, 0, 1, 1});
                     p.expect(p.b.iota({DType::C64, {2}}, 0), {0, 0, 1, 0});
                     p.expect(p.b.index_vector(Dims{3, -1, 4}), {3, -1, 4});
                     p.expect(p.b.iota({DType::F32, {0}}, 0), {});
                   }});
  return cases;
}

}  // namespace flambeau::tests
