// Functions of one or two reals, and rounding.
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

using hlo::Comparison;
using hlo::Op;

Value is_nan(Builder& b, Value x) {
  if (!is_float(x.dtype()) && !is_complex(x.dtype())) return b.constant(DType::Pred, 0, x.dims());
  return b.compare(x, x, Comparison::NE);
}

Value truncate(Builder& b, Value x) {
  return b.select(b.compare(x, constant_like(b, x, 0), Comparison::LT), b.ceil(x), b.floor(x));
}

Value polynomial(Builder& b, Value x, std::span<const double> coefficients) {
  Value sum = constant_like(b, x, coefficients[0]);
  for (double c : coefficients.subspan(1)) sum = b.add(b.multiply(sum, x), constant_like(b, x, c));
  return sum;
}

namespace {

Value square(Builder& b, Value x) { return b.multiply(x, x); }
Value less(Builder& b, Value x, double bound) { return compare_with(b, x, bound, Comparison::LT); }

// ---- the error function ----------------------------------------------------------------------------------------------------

// erf and erfc in double precision: S. Moshier's Cephes library, ndtr.c.
constexpr double kErfT[] = {9.60497373987051638749E0, 9.00260197203842689217E1, 2.23200534594684319226E3, 7.00332514112805075473E3,
                            5.55923013010394962768E4};
constexpr double kErfU[] = {1.0, 3.35617141647503099647E1, 5.21357949780152679795E2, 4.59432382970980127987E3,
                            2.26290000613890934246E4, 4.92673942608635921086E4};
constexpr double kErfcP[] = {2.46196981473530512524E-10, 5.64189564831068821977E-1, 7.46321056442269912687E0,
                             4.86371970985681366614E1, 1.96520832956077098242E2, 5.26445194995477358631E2,
                             9.34528527171957607540E2, 1.02755188689515710272E3, 5.57535335369399327526E2};
constexpr double kErfcQ[] = {1.0, 1.32281951154744992508E1, 8.67072140885989742329E1, 3.54937778887819891062E2,
                             9.75708501743205489753E2, 1.82390916687909736289E3, 2.24633760818710981792E3,
                             1.65666309194161350182E3, 5.57535340817727675546E2};
constexpr double kErfcR[] = {5.64189583547755073984E-1, 1.27536670759978104416E0, 5.01905042251180477414E0,
                             6.16021097993053585195E0, 7.40974269950448939160E0, 2.97886665372100240670E0};
constexpr double kErfcS[] = {1.0, 2.26052863220117276590E0, 9.39603524938001434673E0, 1.20489539808096656605E1,
                             1.70814450747565897222E1, 9.60896809063285878198E0, 3.36907645100081516050E0};
// erf in single precision: the rational approximation that Eigen and XLA use, on [-3.83, 3.83].
constexpr double kErfAlpha[] = {0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145,
                                1.128379143519084};
constexpr double kErfBeta[] = {-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667,
                               0.11098505178285362, 0.49746925110067538, 1.0};
constexpr double kErfOne = 3.832506856900711;  // from here on erf rounds to 1

Value ratio(Builder& b, Value x, std::span<const double> numerator, std::span<const double> denominator) {
  return b.divide(polynomial(b, x, numerator), polynomial(b, x, denominator));
}

Value erf_small(Builder& b, Value x) { return b.multiply(x, ratio(b, square(b, x), kErfT, kErfU)); }  // |x| < 1

// erfc(|x|) for |x| >= 1. exp(-x^2) is taken apart, x = h + (x - h) with h^2 exact, or large x would lose digits.
Value erfc_large(Builder& b, Value magnitude) {
  Value head = b.convert(b.convert(magnitude, DType::BF16), magnitude.dtype());
  Value tail = b.multiply(b.subtract(magnitude, head), b.add(magnitude, head));
  Value density = b.multiply(b.exp(b.negate(square(b, head))), b.exp(b.negate(tail)));
  Value quotient = b.select(less(b, magnitude, 8), ratio(b, magnitude, kErfcP, kErfcQ), ratio(b, magnitude, kErfcR, kErfcS));
  Value result = b.multiply(density, quotient);
  // Where the density is 0 the quotient may be inf / inf.
  return b.select(less(b, magnitude, 30), result, b.select(is_nan(b, magnitude), magnitude, constant_like(b, magnitude, 0)));
}

Value erfc(Builder& b, Value x) {
  Value magnitude = b.abs(x), one = constant_like(b, x, 1);
  Value large = erfc_large(b, magnitude);
  large = b.select(less(b, x, 0), b.subtract(constant_like(b, x, 2), large), large);
  return b.select(less(b, magnitude, 1), b.subtract(one, erf_small(b, x)), large);
}

// "Approximating the erfinv function", M. Giles, GPU Computing Gems (2010): erfinv(x) = x P(w), w = -log((1-x)(1+x)).
constexpr double kSingleCentre[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                    -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
constexpr double kSingleTail[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                                  -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
constexpr double kDoubleCentre[] = {
    -3.6444120640178196996e-21, -1.685059138182016589e-19,  1.2858480715256400167e-18,  1.115787767802518096e-17,
    -1.333171662854620906e-16,  2.0972767875968561637e-17,  6.6376381343583238325e-15,  -4.0545662729752068639e-14,
    -8.1519341976054721522e-14, 2.6335093153082322977e-12,  -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09,   -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
    -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352,   -0.00074070253416626697512,
    -0.0060336708714301490533,  0.24015818242558961693,     1.6536545626831027356};
constexpr double kDoubleMiddle[] = {
    2.2137376921775787049e-09,  9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
    1.5027403968909827627e-06,  -4.013867526981545969e-06, 2.9234449089955446044e-06,  1.2475304481671778723e-05,
    -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05,  -0.0003550375203628474796,
    0.00095328937973738049703,  -0.0016882755560235047313, 0.0024914420961078508066,   -0.0037512085075692412107,
    0.005370914553590063617,    1.0052589676941592334,     3.0838856104922207635};
constexpr double kDoubleTail[] = {-2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
                                  -3.7894654401267369937e-09, 7.6157012080783393804e-09,  -1.4960026627149240478e-08,
                                  2.9147953450901080826e-08,  -6.7711997758452339498e-08, 2.2900482228026654717e-07,
                                  -9.9298272942317002539e-07, 4.5260625972231537039e-06,  -1.9681778105531670567e-05,
                                  7.5995277030017761139e-05,  -0.00021503011930044477347, -0.00013871931833623122026,
                                  1.0103004648645343977,      4.8499064014085844221};

}  // namespace

Value erf(Builder& b, Value x) {
  if (x.dtype() == DType::F64) {
    Value magnitude = b.abs(x);
    Value large = b.multiply(b.sign(x), b.subtract(constant_like(b, x, 1), erfc_large(b, magnitude)));
    return b.select(less(b, magnitude, 1), erf_small(b, x), large);
  }
  Value inside = b.clamp(b.constant(x.dtype(), -kErfOne), x, b.constant(x.dtype(), kErfOne));
  return b.multiply(inside, ratio(b, square(b, inside), kErfAlpha, kErfBeta));
}

Value inverse_erf(Builder& b, Value x) {
  Value one = constant_like(b, x, 1);
  Value w = b.negate(b.log(b.multiply(b.subtract(one, x), b.add(one, x))));
  auto below = [&](double limit) { return compare_with(b, w, limit, Comparison::LT); };
  Value root = b.sqrt(w);
  Value p;
  if (x.dtype() == DType::F64) {
    Value outer = b.select(below(16), polynomial(b, plus(b, root, -3.25), kDoubleMiddle),
                           polynomial(b, plus(b, root, -5), kDoubleTail));
    p = b.select(below(6.25), polynomial(b, plus(b, w, -3.125), kDoubleCentre), outer);
  } else {
    p = b.select(below(5), polynomial(b, plus(b, w, -2.5), kSingleCentre), polynomial(b, plus(b, root, -3), kSingleTail));
  }
  return b.multiply(p, x);
}

namespace {

// The polynomials have no value at the ends, where w is infinite.
Value erfinv(Builder& b, Value x) {
  Value infinity = b.multiply(x, constant_like(b, x, std::numeric_limits<double>::infinity()));
  return b.select(compare_with(b, b.abs(x), 1, Comparison::EQ), infinity, inverse_erf(b, x));
}

// ---- one real ---------------------------------------------------------------------------------------------------------------

template <Op op>
Value apply(Builder& b, Value x) { return b.unary(op, x); }

Value exp2(Builder& b, Value x) { return b.power(constant_like(b, x, 2), x); }
Value log2(Builder& b, Value x) { return times(b, b.log(x), std::numbers::log2e); }
Value log10(Builder& b, Value x) { return times(b, b.log(x), std::numbers::log10e); }
Value reciprocal(Builder& b, Value x) { return b.divide(constant_like(b, x, 1), x); }
// sin(pi x) / (pi x), and 1 at 0.
Value sinc(Builder& b, Value x) {
  Value angle = times(b, x, std::numbers::pi), one = constant_like(b, x, 1);
  return b.select(compare_with(b, x, 0, Comparison::EQ), one, b.divide(b.sin(angle), angle));
}
// sqrt(1 - x^2) without cancellation.
Value cosine_of_arcsine(Builder& b, Value x) {
  Value one = constant_like(b, x, 1);
  return b.sqrt(b.multiply(b.subtract(one, x), b.add(one, x)));
}
Value asin(Builder& b, Value x) { return b.atan2(x, cosine_of_arcsine(b, x)); }
Value acos(Builder& b, Value x) { return b.atan2(cosine_of_arcsine(b, x), x); }
Value atan(Builder& b, Value x) { return b.atan2(x, constant_like(b, x, 1)); }
// exp(x) / 2, finite as long as the result is.
Value half_exp(Builder& b, Value x) {
  Value root = b.exp(times(b, x, 0.5));
  return b.multiply(times(b, root, 0.5), root);
}
Value cosh(Builder& b, Value x);
Value sinh(Builder& b, Value x) {
  if (is_complex(x.dtype())) {
    Value re = b.real(x), im = b.imag(x);
    return b.complex(b.multiply(sinh(b, re), b.cos(im)), b.multiply(cosh(b, re), b.sin(im)));
  }
  Value e = b.expm1(x);
  Value small = times(b, b.add(e, b.divide(e, plus(b, e, 1))), 0.5);
  return b.select(less(b, b.abs(x), 1), small, b.subtract(half_exp(b, x), half_exp(b, b.negate(x))));
}
Value cosh(Builder& b, Value x) {
  if (is_complex(x.dtype())) {
    Value re = b.real(x), im = b.imag(x);
    return b.complex(b.multiply(cosh(b, re), b.cos(im)), b.multiply(sinh(b, re), b.sin(im)));
  }
  return b.add(half_exp(b, x), half_exp(b, b.negate(x)));
}
// From here on x^2 is not representable or 1 + x^2 is x^2.
double large_argument(Value x) { return x.dtype() == DType::F64 ? 1e8 : 1e4; }
Value asinh(Builder& b, Value x) {
  Value m = b.abs(x), s = square(b, m);
  Value small = b.log1p(b.add(m, b.divide(s, plus(b, b.sqrt(plus(b, s, 1)), 1))));
  Value large = plus(b, b.log(m), std::numbers::ln2);
  return b.multiply(b.sign(x), b.select(less(b, m, large_argument(x)), small, large));
}
Value acosh(Builder& b, Value x) {
  Value t = plus(b, x, -1);
  Value small = b.log1p(b.add(t, b.sqrt(b.multiply(t, plus(b, x, 1)))));
  return b.select(less(b, x, large_argument(x)), small, plus(b, b.log(x), std::numbers::ln2));
}
Value atanh(Builder& b, Value x) { return times(b, b.subtract(b.log1p(x), b.log1p(b.negate(x))), 0.5); }

// A row of a function of reals; of complex numbers too where the function is written for them.
enum class Of { Reals, Complex };
template <auto F, Of of = Of::Reals>
Value real(Builder& b, Value x) {
  if (of == Of::Reals && is_complex(x.dtype())) raise<NotImplemented>("not implemented for '{}'", torch_name(x.dtype()));
  return real_function(b, x, [&](Value v) { return F(b, v); });
}
template <auto F>
constexpr Entry complex_too() { return lower<&real<F, Of::Complex>>(); }
template <Op op>
constexpr Entry real_op() { return complex_too<&apply<op>>(); }

// ---- functions that keep integers ------------------------------------------------------------------------------------------------

Value negate(Builder& b, Value x) {
  if (x.dtype() == DType::Pred)
    raise<InvalidArgument>("Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the "
                           "`~` or `logical_not()` operator instead.");
  if (is_unsigned_integer(x.dtype())) return b.subtract(constant_like(b, x, 0), x);
  return b.negate(x);
}

// Of a complex number its magnitude, a real.
Value abs(Builder& b, Value x) {
  refuse_bool("abs", x.dtype());
  return is_unsigned_integer(x.dtype()) ? x : b.abs(x);
}

Value sign(Builder& b, Value x) {
  if (is_complex(x.dtype()))
    raise<NotImplemented>("Unlike NumPy, torch.sign is not intended to support complex numbers. Please use torch.sgn instead.");
  if (x.dtype() == DType::Pred) return x;
  if (is_unsigned_integer(x.dtype())) return b.minimum(x, constant_like(b, x, 1));
  if (!is_float(x.dtype())) return b.sign(x);
  return b.select(is_nan(b, x), constant_like(b, x, 0), b.sign(x));  // PyTorch: (x > 0) - (x < 0)
}

Value sgn(Builder& b, Value x) {
  if (is_complex(x.dtype())) return b.sign(x);
  return sign(b, x);
}

template <auto F>
Value rounding(Builder& b, Value x) {
  refuse_bool("round", x.dtype());
  if (is_complex(x.dtype())) raise<NotImplemented>("rounding is not supported for complex inputs");
  return is_integer(x.dtype()) ? x : F(b, x);
}

Value round_decimals(Builder& b, Value x, int64_t decimals) {
  require_float("round_cpu", x.dtype());
  refuse_complex("round_cpu", x.dtype());
  return real_function(b, x, [&](Value v) {
    if (decimals == 0) return b.unary(Op::RoundNearestEven, v);
    double power = std::pow(10.0, std::abs(static_cast<double>(decimals)));
    Value p = constant_like(b, v, power);
    if (decimals < 0) return b.multiply(b.unary(Op::RoundNearestEven, b.divide(v, p)), p);
    return b.divide(b.unary(Op::RoundNearestEven, b.multiply(v, p)), p);
  });
}

Value frac(Builder& b, Value x) {
  require_float("frac_cpu", x.dtype());
  refuse_complex("frac_cpu", x.dtype());
  return b.subtract(x, truncate(b, x));
}

Value nan_to_num(Builder& b, Value x, std::optional<double> nan, std::optional<double> posinf, std::optional<double> neginf) {
  if (is_complex(x.dtype())) {
    auto part = [&](Value v) { return nan_to_num(b, v, nan, posinf, neginf); };
    return b.complex(part(b.real(x)), part(b.imag(x)));
  }
  if (!is_float(x.dtype())) return x;
  Value infinity = constant_like(b, x, std::numeric_limits<double>::infinity());
  // The greatest finite number: the one before infinity, whose bits are one less.
  DType bits = byte_size(x.dtype()) == 8 ? DType::S64 : byte_size(x.dtype()) == 4 ? DType::S32 : DType::S16;
  Value below = b.subtract(b.bitcast_convert(b.constant(x.dtype(), std::numeric_limits<double>::infinity()), bits), b.constant(bits, 1));
  Value greatest = b.broadcast(b.bitcast_convert(below, x.dtype()), x.dims());
  Value high = posinf ? constant_like(b, x, *posinf) : greatest;
  Value low = neginf ? constant_like(b, x, *neginf) : b.negate(greatest);
  Value y = b.select(is_nan(b, x), constant_like(b, x, nan.value_or(0)), x);
  y = b.select(b.compare(x, infinity, Comparison::EQ), high, y);
  return b.select(b.compare(x, b.negate(infinity), Comparison::EQ), low, y);
}

// ---- complex numbers ---------------------------------------------------------------------------------------------------------------

Value angle(Builder& b, Value x) {
  if (is_complex(x.dtype())) return b.atan2(b.imag(x), b.real(x));
  return real_function(b, x, [&](Value v) {
    Value half_turn = b.select(less(b, v, 0), constant_like(b, v, std::numbers::pi), constant_like(b, v, 0));
    return b.select(is_nan(b, v), v, half_turn);
  });
}

Value conj_physical(Builder& b, Value x) { return is_complex(x.dtype()) ? b.complex(b.real(x), b.negate(b.imag(x))) : x; }

Value complex_of(Builder& b, Value re, Value im) {
  if (re.dtype() != im.dtype())
    raise<InvalidArgument>("Expected object of scalar type {} but got scalar type {} for second argument", torch_name(re.dtype()),
                           torch_name(im.dtype()));
  if (re.dtype() != DType::F32 && re.dtype() != DType::F64)
    raise<InvalidArgument>("Expected both inputs to be Half, Float or Double tensors but got {} and {}", torch_name(re.dtype()), torch_name(im.dtype()));
  auto v = align(b, {Operand{re}, Operand{im}}, re.dtype());
  return b.complex(v[0], v[1]);
}
Value polar(Builder& b, Value magnitude, Value angle) {
  Value both = complex_of(b, magnitude, angle);
  Value length = b.real(both), at = b.imag(both);
  return b.complex(b.multiply(length, b.cos(at)), b.multiply(length, b.sin(at)));
}

// ---- two reals ------------------------------------------------------------------------------------------------------------------

template <auto F>
Value real2(Builder& b, Operand x, Operand y) {
  DType result = float_result(result_type({x, y}));
  if (is_complex(result)) raise<NotImplemented>("not implemented for '{}'", torch_name(result));
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) { return F(b, p, q); }, x, y);
}

Value atan2(Builder& b, Value y, Value x) { return b.atan2(y, x); }

Value hypot_values(Builder& b, Value x, Value y) {
  Value p = b.abs(x), q = b.abs(y);
  Value high = b.maximum(p, q), low = b.minimum(p, q);
  Value h = b.multiply(high, b.sqrt(plus(b, square(b, b.divide(low, high)), 1)));
  Value zero = constant_like(b, x, 0), infinity = constant_like(b, x, std::numeric_limits<double>::infinity());
  h = b.select(b.compare(high, zero, Comparison::EQ), zero, h);
  Value infinite = b.logical_or(b.compare(p, infinity, Comparison::EQ), b.compare(q, infinity, Comparison::EQ));
  return b.select(infinite, infinity, h);
}

Value hypot(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  require_float("hypot_cpu", result);
  refuse_complex("hypot_cpu", result);
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) { return hypot_values(b, p, q); }, x, y);
}

Value logaddexp_values(Builder& b, Value x, Value y) {
  Value high = b.maximum(x, y);
  Value sum = b.add(high, b.log1p(b.exp(b.negate(b.abs(b.subtract(x, y))))));
  Value infinite = b.logical_and(b.compare(x, y, Comparison::EQ), b.logical_not(b.is_finite(x)));  // inf - inf
  return b.select(infinite, x, sum);
}

Value logaddexp(Builder& b, Operand x, Operand y) {
  DType result = result_type({x, y});
  require_float("logaddexp_cpu", result);
  if (is_complex(result)) raise<NotImplemented>("[logaddexp] complex numbers are not handled");
  return pointwise(b, compute_type(result), result, [&](Value p, Value q) { return logaddexp_values(b, p, q); }, x, y);
}

Value xlogy_values(Builder& b, Value x, Value y) {
  Value zero = constant_like(b, x, 0);
  Value product = b.select(b.compare(x, zero, Comparison::EQ), zero, b.multiply(x, b.log(y)));
  return b.select(is_nan(b, y), y, product);
}
Value xlogy_scalar(Builder& b, Value x, Scalar y) { return real2<&xlogy_values>(b, {x}, y.operand(b)); }
Value xlogy_scalar_first(Builder& b, Scalar x, Value y) { return real2<&xlogy_values>(b, x.operand(b), {y}); }

constexpr Row kRows[] = {
    row("aten::exp", real_op<Op::Exponential>()),
    row("aten::exp2", complex_too<&exp2>()),
    row("aten::expm1", real_op<Op::ExponentialMinusOne>()),
    row("aten::log", real_op<Op::Log>()),
    row("aten::log1p", real_op<Op::LogPlusOne>()),
    row("aten::log2", complex_too<&log2>()),
    row("aten::log10", complex_too<&log10>()),
    row("aten::sqrt", real_op<Op::Sqrt>()),
    row("aten::rsqrt", real_op<Op::Rsqrt>()),
    row("aten::reciprocal", complex_too<&reciprocal>()),
    row("aten::sin", real_op<Op::Sine>()),
    row("aten::cos", real_op<Op::Cosine>()),
    row("aten::tan", real_op<Op::Tan>()),
    row("aten::sinc", complex_too<&sinc>()),
    row("aten::asin", lower<&real<&asin>>()),
    row("aten::acos", lower<&real<&acos>>()),
    row("aten::atan", lower<&real<&atan>>()),
    row("aten::sinh", complex_too<&sinh>()),
    row("aten::cosh", complex_too<&cosh>()),
    row("aten::tanh", real_op<Op::Tanh>()),
    row("aten::asinh", lower<&real<&asinh>>()),
    row("aten::acosh", lower<&real<&acosh>>()),
    row("aten::atanh", lower<&real<&atanh>>()),
    row("aten::sigmoid", real_op<Op::Logistic>()),
    row("aten::erf", lower<&real<&erf>>()),
    row("aten::erfc", lower<&real<&erfc>>()),
    row("aten::erfinv", lower<&real<&erfinv>>()),
    row("aten::neg", lower<&negate>()),
    row("aten::abs", lower<&abs>()),
    row("aten::sign", lower<&sign>()),
    row("aten::sgn", lower<&sgn>()),
    row("aten::ceil", lower<&rounding<&apply<Op::Ceil>>>()),
    row("aten::floor", lower<&rounding<&apply<Op::Floor>>>()),
    row("aten::round", lower<&rounding<&apply<Op::RoundNearestEven>>>()),
    row("aten::round.decimals", lower<&round_decimals>()),
    row("aten::trunc", lower<&rounding<&truncate>>()),
    row("aten::frac", lower<&frac>()),
    row("aten::nan_to_num", lower<&nan_to_num>()),
    row("aten::angle", lower<&angle>()),
    row("aten::conj_physical", lower<&conj_physical>()),
    row("aten::complex", lower<&complex_of>()),
    row("aten::polar", lower<&polar>()),
    row("aten::atan2", lower<&real2<&atan2>>()),
    row("aten::hypot", lower<&hypot>()),
    row("aten::logaddexp", lower<&logaddexp>()),
    row("aten::xlogy.Tensor", lower<&real2<&xlogy_values>>()),
    row("aten::xlogy.Scalar_Other", lower<&xlogy_scalar>()),
    row("aten::xlogy.Scalar_Self", lower<&xlogy_scalar_first>()),
};

}  // namespace

std::span<const Row> math_rows() { return kRows; }

}  // namespace flambeau::ops
