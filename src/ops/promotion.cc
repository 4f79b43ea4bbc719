#include "ops/promotion.h"

#include <algorithm>

namespace flambeau::ops {

namespace {

int category(DType t) { return is_complex(t) ? 3 : is_float(t) ? 2 : is_integer(t) ? 1 : 0; }
bool is_float8(DType t) { return t == DType::F8E4M3FN || t == DType::F8E5M2; }
bool is_barebones(DType t) { return t == DType::U16 || t == DType::U32 || t == DType::U64; }

DType promote_integers(DType a, DType b) {
  if (is_barebones(a) || is_barebones(b))
    raise<InvalidArgument>("Promotion for uint16, uint32, uint64 types is not supported, attempted to promote {} and {}",
                           torch_name(a), torch_name(b));
  if (a == DType::U8) std::swap(a, b);
  if (b == DType::U8) return a == DType::S8 ? DType::S16 : a;  // no 8-bit type holds both
  return byte_size(a) > byte_size(b) ? a : b;
}

DType promote_floats(DType a, DType b) {
  if (byte_size(a) == byte_size(b)) return DType::F32;  // float16 and bfloat16
  return byte_size(a) > byte_size(b) ? a : b;
}

// `higher` wins unless `lower` is of a higher category.
std::optional<DType> combine(std::optional<DType> higher, std::optional<DType> lower) {
  if (!higher || !lower) return higher ? higher : lower;
  if (is_complex(*higher)) return higher;
  if (is_float(*higher)) {
    if (!is_complex(*lower)) return higher;
    if (is_float8(*higher)) raise<InvalidArgument>("Unknown Complex ScalarType for {}", torch_name(*higher));
    return *higher == DType::F64 ? DType::C128 : DType::C64;
  }
  if (is_complex(*lower)) return lower;
  if (*higher == DType::Pred || is_float(*lower)) return promote_types(*higher, *lower);
  return higher;
}

}  // namespace

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  if (is_float8(a) || is_float8(b))
    raise<InvalidArgument>("Promotion for Float8 Types is not supported, attempted to promote {} and {}", torch_name(a), torch_name(b));
  if (category(a) < category(b)) std::swap(a, b);
  if (is_barebones(b) || (is_barebones(a) && category(b) == 0)) {
    if (is_float(a)) return a;
    promote_integers(a, b);  // refuses
  }
  if (category(a) > category(b)) {
    if (is_complex(a) && b == DType::F64) return DType::C128;
    return a;
  }
  switch (category(a)) {
    case 1: return promote_integers(a, b);
    case 2: return promote_floats(a, b);
    default: return DType::C128;  // two different complex types
  }
}

DType result_type(std::span<const Operand> operands) {
  std::optional<DType> with_dims, zero_dim, wrapped;
  auto add = [](std::optional<DType>& state, DType t) { state = state ? promote_types(*state, t) : t; };
  for (const Operand& x : operands) {
    DType t = x.value.dtype();
    if (x.wrapped) t = is_complex(t) ? DType::C64 : is_float(t) ? kDefaultFloat : t == DType::U64 ? DType::S64 : t;
    add(x.value.rank() > 0 ? with_dims : x.wrapped ? wrapped : zero_dim, t);
  }
  auto result = combine(with_dims, combine(zero_dim, wrapped));
  FLAMBEAU_CHECK(result.has_value(), "a result type needs an operand");
  // A complex result has the precision of the highest class that holds floats.
  auto precision = with_dims && (is_float(*with_dims) || is_complex(*with_dims)) ? with_dims : zero_dim;
  if (precision == DType::F16 && is_complex(*result))
    raise<NotImplemented>("float16 with a complex number would be complex32, which Flambeau does not have");
  return *result;
}

bool can_cast(DType from, DType to) {
  int f = category(from), t = category(to);
  return f <= t;
}

Dims broadcast_dims(const Dims& a, const Dims& b) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  Dims dims = longer;
  for (size_t k = 1; k <= std::min(a.size(), b.size()); ++k) {
    int64_t m = a[a.size() - k], n = b[b.size() - k];
    if (m != n && m != 1 && n != 1)
      raise<InvalidArgument>("The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension {}", m, n,
                             dims.size() - k);
    dims[dims.size() - k] = m == 1 ? n : m;
  }
  return dims;
}

Value convert(Builder& b, Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (is_complex(x.dtype()) && !is_complex(dtype) && dtype != DType::Pred) x = b.real(x);
  if (dtype == DType::Pred) return b.compare(x, b.broadcast(b.constant(x.dtype(), 0), x.dims()), hlo::Comparison::NE);
  if (is_integer(dtype) && is_float(x.dtype()) && (byte_size(dtype) < 4 || dtype == DType::U32)) x = b.convert(x, DType::S64);
  return b.convert(x, dtype);
}

std::vector<Value> align(Builder& b, std::span<const Operand> operands, DType dtype) {
  Dims dims;
  for (const Operand& x : operands) dims = broadcast_dims(dims, x.value.dims());
  std::vector<Value> values;
  for (const Operand& x : operands) values.push_back(b.broadcast(convert(b, x.value, dtype), dims));
  return values;
}

Value constant_like(Builder& b, Value x, double value) { return b.broadcast(b.constant(x.dtype(), value), x.dims()); }

Value scalar_like(Builder& b, Value x, const Scalar& scalar) { return b.broadcast(scalar.as(b, x.dtype()), x.dims()); }

int64_t wrap_dim(int64_t dim, int64_t rank) {
  int64_t n = std::max<int64_t>(rank, 1);
  if (dim < -n || dim >= n)
    raise<OutOfRange>("Dimension out of range (expected to be in range of [{}, {}], but got {})", -n, n - 1, dim);
  return dim < 0 ? dim + n : dim;
}

Dims wrap_dims(const Dims& dims, int64_t rank) {
  Dims wrapped;
  for (int64_t d : dims) {
    int64_t w = wrap_dim(d, rank);
    if (std::find(wrapped.begin(), wrapped.end(), w) != wrapped.end())
      raise<InvalidArgument>("dim {} appears multiple times in the list of dims", w);
    wrapped.push_back(w);
  }
  return wrapped;
}

}  // namespace flambeau::ops
