#include "runtime/internal_ops.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "hlo/sharding.h"
#include "ops/promotion.h"
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

Value identity(Builder& b, Value x, DType dtype) { return ops::convert(b, x, dtype); }

Value write(Builder& b, Value base, Value contents, const Dims& sizes, const Dims& strides, int64_t offset, DType dtype) {
  View view{sizes, strides, offset};
  contents = ops::convert(b, contents, dtype);
  if (base.dtype() == dtype) return write_view(b, base, view, contents);
  Value flat = write_view(b, reinterpret_elements(b, base, dtype), view, contents);
  return b.reshape(reinterpret_elements(b, flat, base.dtype()), base.dims());
}

Value shard_hint(Builder& b, Value x, const std::string& sharding) {
  return b.sharding_constraint(x, decode_sharding(sharding, x.rank()));
}

Value unlowerable(Builder&, Value) { FLAMBEAU_CHECK(false, "a manual computation is lowered with its body"); }

// The devices, as positions on the mesh, that differ only along `axes`, each group in the order of the axes, major first.
std::vector<Dims> groups_along(const hlo::Mesh& mesh, const std::vector<std::string>& axes) {
  std::vector<std::string> others;
  for (const hlo::MeshAxis& axis : mesh.axes)
    if (std::find(axes.begin(), axes.end(), axis.name) == axes.end()) others.push_back(axis.name);
  std::vector<Dims> groups(static_cast<size_t>(hlo::axes_size(mesh, others)), Dims(static_cast<size_t>(hlo::axes_size(mesh, axes))));
  for (int64_t p = 0; p < mesh.size(); ++p)
    groups[static_cast<size_t>(hlo::index_along(mesh, others, p))][static_cast<size_t>(hlo::index_along(mesh, axes, p))] = p;
  return groups;
}

std::vector<Dims> groups_of(Builder& b, const std::string& axes) {
  const std::vector<std::string> names = flambeau::split(axes, ',');
  if (std::string fault = hlo::sharding_fault({{}, names}, b.graph().mesh(), 0); !fault.empty())
    raise<InvalidArgument>("[collective] {}", fault);
  return groups_along(*b.graph().mesh(), names);
}

// Unique within the program: every collective has made values of its own.
int64_t channel(Builder& b) { return static_cast<int64_t>(b.graph().value_count()) + 1; }

Value all_reduce(Builder& b, Value x, const std::string& axes, const std::string& kind) {
  const hlo::Reduction reduction = kind == "max" ? hlo::Reduction::Max : hlo::Reduction::Sum;
  return b.all_reduce(x, reduction, groups_of(b, axes), channel(b));
}

Value all_gather(Builder& b, Value x, const std::string& axes, int64_t dim) {
  return b.all_gather(x, dim, groups_of(b, axes), channel(b));
}

Value reduce_scatter(Builder& b, Value x, const std::string& axes, int64_t dim) {
  return b.reduce_scatter(x, hlo::Reduction::Sum, dim, groups_of(b, axes), channel(b));
}

Value all_to_all(Builder& b, Value x, const std::string& axes, int64_t split_dim, int64_t concat_dim) {
  return b.all_to_all(x, split_dim, concat_dim, groups_of(b, axes), channel(b));
}

}  // namespace

std::string encode_axes(const std::vector<std::string>& axes) { return fmt::format("{}", fmt::join(axes, ",")); }

std::string encode_sharding(const hlo::Sharding& sharding) {
  std::string text;
  for (size_t i = 0; i < sharding.dims.size(); ++i) text += (i ? ";" : "") + encode_axes(sharding.dims[i].axes);
  return text;
}

hlo::Sharding decode_sharding(std::string_view text, int64_t rank) {
  hlo::Sharding sharding;
  if (rank > 0)
    for (const std::string& dim : flambeau::split(text, ';')) {
      sharding.dims.emplace_back();
      if (!dim.empty()) sharding.dims.back().axes = flambeau::split(dim, ',');
    }
  return sharding;
}

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
const ops::Row kShardHint = ops::row("flambeau::shard_hint", ops::lower<&shard_hint>());
const ops::Row kGatherWeight = ops::row("flambeau::gather_weight", ops::lower<&shard_hint>());
const ops::Row kManual = ops::row("flambeau::manual", ops::lower<&unlowerable>());
const ops::Row kAllReduce = ops::row("flambeau::all_reduce", ops::lower<&all_reduce>());
const ops::Row kAllGather = ops::row("flambeau::all_gather", ops::lower<&all_gather>());
const ops::Row kAllToAll = ops::row("flambeau::all_to_all", ops::lower<&all_to_all>());
const ops::Row kReduceScatter = ops::row("flambeau::reduce_scatter", ops::lower<&reduce_scatter>());

}  // namespace flambeau::runtime
