#include "runtime/internal_ops.h"

#include "runtime/views.h"

namespace flambeau::runtime {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::Value;

Value zeros(Builder& b, const Dims& dims, DType dtype) {
  if (is_complex(dtype)) return b.constant(dtype, std::complex<double>(0, 0), dims);
  if (is_float(dtype)) return b.constant(dtype, 0.0, dims);
  return b.constant(dtype, int64_t{0}, dims);
}

Value literal(Builder& b, const Dims& dims, DType dtype, const std::string& bytes) {
  return b.literal({dtype, dims}, bytes.data());
}

Value identity(Builder& b, Value x, DType dtype) { return b.convert(x, dtype); }

Value write(Builder& b, Value base, Value contents, const Dims& sizes, const Dims& strides, int64_t offset, DType dtype) {
  View view{sizes, strides, offset};
  contents = b.convert(contents, dtype);
  if (base.dtype() == dtype) return write_view(b, base, view, contents);
  Value flat = write_view(b, reinterpret_elements(b, base, dtype), view, contents);
  return b.reshape(reinterpret_elements(b, flat, base.dtype()), base.dims());
}

}  // namespace

Value reinterpret_elements(Builder& b, Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  int64_t bytes = x.elements() * byte_size(x.dtype());
  if (bytes % byte_size(dtype) != 0)
    raise<InvalidArgument>("[view] a storage of {} bytes does not hold whole {} elements", bytes, torch_name(dtype));
  Value flat = b.reshape(x, {x.elements()});
  if (is_complex(flat.dtype())) {  // interleaved real and imaginary parts
    DType part = flat.dtype() == DType::C64 ? DType::F32 : DType::F64;
    Value parts[] = {b.reshape(b.real(flat), {flat.elements(), 1}), b.reshape(b.imag(flat), {flat.elements(), 1})};
    return reinterpret_elements(b, b.reshape(b.concatenate(parts, 1), {2 * flat.elements()}), dtype == part ? part : dtype);
  }
  if (flat.dtype() == DType::Pred) return reinterpret_elements(b, b.convert(flat, DType::U8), dtype);
  if (dtype == DType::Pred)
    return b.compare(reinterpret_elements(b, flat, DType::U8), b.constant(DType::U8, 0, {bytes}), hlo::Comparison::NE);
  if (is_complex(dtype)) {
    DType part = dtype == DType::C64 ? DType::F32 : DType::F64;
    Value pairs = b.reshape(reinterpret_elements(b, flat, part), {bytes / byte_size(dtype), 2});
    int64_t n = pairs.dim(0);
    return b.complex(b.reshape(b.slice_dim(pairs, 1, 0, 1), {n}), b.reshape(b.slice_dim(pairs, 1, 1, 2), {n}));
  }
  int64_t from = byte_size(flat.dtype()), to = byte_size(dtype);
  if (from == to) return b.bitcast_convert(flat, dtype);
  if (from > to) return b.reshape(b.bitcast_convert(flat, dtype), {bytes / to});
  return b.bitcast_convert(b.reshape(flat, {bytes / to, to / from}), dtype);
}

const ops::Row kZeros = ops::row("flambeau::zeros", ops::lower<&zeros>());
const ops::Row kLiteral = ops::row("flambeau::literal", ops::lower<&literal>());
const ops::Row kIdentity = ops::row("flambeau::identity", ops::lower<&identity>());
const ops::Row kWrite = ops::row("flambeau::write", ops::lower<&write>());

}  // namespace flambeau::runtime
