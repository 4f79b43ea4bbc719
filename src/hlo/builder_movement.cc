#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hlo/builder.h"
#include "hlo/regions.h"

namespace flambeau::hlo {
namespace {

std::string text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }
bool contains(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }
size_t at(int64_t i) { return static_cast<size_t>(i); }

// The entries of `all` at places that are in none of `left_out`.
Dims without(const Dims& all, const Dims& left_out, const Dims& also_left_out = {}) {
  Dims kept;
  for (size_t i = 0; i < all.size(); ++i)
    if (!contains(left_out, static_cast<int64_t>(i)) && !contains(also_left_out, static_cast<int64_t>(i)))
      kept.push_back(all[i]);
  return kept;
}

int64_t index_vector_size(Value indices, int64_t index_vector_dim) {
  return index_vector_dim == indices.rank() ? 1 : indices.dim(index_vector_dim);
}

}  // namespace

Value Builder::broadcast_in_dim(Value x, Dims dims, Dims broadcast_dims) {
  constexpr Op op = Op::BroadcastInDim;
  check_operands(op, {x});
  if (static_cast<int64_t>(broadcast_dims.size()) != x.rank())
    fail(op, fmt::format("expected a place for each dimension of {}, got {}", x.type().to_string(), text(broadcast_dims)));
  check_axes(op, "places", broadcast_dims, static_cast<int64_t>(dims.size()));
  for (size_t i = 0; i < broadcast_dims.size(); ++i) {
    const int64_t size = x.dims()[i];
    if (size != 1 && size != dims[at(broadcast_dims[i])])
      fail(op, fmt::format("expected each dimension of {} to be 1 or as in {}, at places {}, got {} for {}",
                           x.type().to_string(), text(dims), text(broadcast_dims), size, dims[at(broadcast_dims[i])]));
  }
  if (std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d < 0; }))
    fail(op, fmt::format("expected dimensions of at least 0, got {}", text(dims)));
  return emit(op, {x}, Type{x.dtype(), std::move(dims)}, {{"broadcast_dimensions", std::move(broadcast_dims)}});
}

Value Builder::broadcast(Value x, Dims dims) {
  constexpr Op op = Op::BroadcastInDim;
  check_operands(op, {x});
  if (x.dims() == dims) return x;
  const auto rank = static_cast<int64_t>(dims.size());
  if (x.rank() > rank)
    fail(op,
         fmt::format("expected at most {} dimensions to broadcast to {}, got {}", rank, text(dims), x.type().to_string()));
  Dims places(at(x.rank()));
  for (int64_t i = 0; i < x.rank(); ++i) places[at(i)] = rank - x.rank() + i;
  return broadcast_in_dim(x, std::move(dims), std::move(places));
}

Value Builder::reshape(Value x, Dims dims) {
  constexpr Op op = Op::Reshape;
  check_operands(op, {x});
  if (x.dims() == dims) return x;
  Type type{x.dtype(), std::move(dims)};
  if (std::any_of(type.dims.begin(), type.dims.end(), [](int64_t d) { return d < 0; }) || type.elements() != x.elements())
    fail(op, fmt::format("expected dimensions of {} elements in all, got {} from {}", x.elements(), text(type.dims),
                         x.type().to_string()));
  return emit(op, {x}, std::move(type));
}

Value Builder::transpose(Value x, Dims permutation) {
  constexpr Op op = Op::Transpose;
  check_operands(op, {x});
  if (static_cast<int64_t>(permutation.size()) != x.rank())
    fail(op, fmt::format("expected a permutation of {} dimensions, got {}", x.rank(), text(permutation)));
  check_axes(op, "dimensions", permutation, x.rank());
  if (std::is_sorted(permutation.begin(), permutation.end())) return x;
  Type type{x.dtype(), {}};
  for (int64_t p : permutation) type.dims.push_back(x.dim(p));
  return emit(op, {x}, std::move(type), {{"permutation", std::move(permutation)}});
}

Value Builder::slice(Value x, Dims start, Dims limit, Dims strides) {
  constexpr Op op = Op::Slice;
  check_operands(op, {x});
  if (strides.empty()) strides.assign(at(x.rank()), 1);
  if (start.size() != x.dims().size() || limit.size() != start.size() || strides.size() != start.size())
    fail(op, fmt::format("expected one start, limit and stride a dimension of {}, got {}, {} and {}", x.type().to_string(),
                         text(start), text(limit), text(strides)));
  Type type{x.dtype(), {}};
  for (size_t i = 0; i < start.size(); ++i) {
    if (start[i] < 0 || start[i] > limit[i] || limit[i] > x.dims()[i] || strides[i] < 1)
      fail(op, fmt::format("expected 0 <= start <= limit <= {} and a stride of at least 1 in dimension {}, got {}:{}:{}",
                           x.dims()[i], i, start[i], limit[i], strides[i]));
    type.dims.push_back((limit[i] - start[i] + strides[i] - 1) / strides[i]);
  }
  return emit(op, {x}, std::move(type),
              {{"start_indices", std::move(start)}, {"limit_indices", std::move(limit)}, {"strides", std::move(strides)}});
}

Value Builder::slice_dim(Value x, int64_t dimension, int64_t start, int64_t limit, int64_t stride) {
  check_operands(Op::Slice, {x});
  check_axis(Op::Slice, "a dimension", dimension, x.rank());
  Dims starts(at(x.rank()), 0), limits = x.dims(), strides(at(x.rank()), 1);
  starts[at(dimension)] = start;
  limits[at(dimension)] = limit;
  strides[at(dimension)] = stride;
  return slice(x, std::move(starts), std::move(limits), std::move(strides));
}

void Builder::check_starts(Op op, Value x, std::span<const Value> starts) const {
  check_operands(op, {x});
  check_operands(op, starts);
  if (static_cast<int64_t>(starts.size()) != x.rank())
    fail(op, fmt::format("expected one start index a dimension of {}, got {}", x.type().to_string(), starts.size()));
  for (Value start : starts)
    if (start.rank() != 0 || !is_integer(start.dtype()) || start.dtype() != starts[0].dtype())
      fail(op, fmt::format("expected start indices of one rank-0 integer type, got {}", type_list(types_of(starts))));
}

Value Builder::dynamic_slice(Value x, std::span<const Value> starts, Dims sizes) {
  constexpr Op op = Op::DynamicSlice;
  check_starts(op, x, starts);
  if (sizes.size() != x.dims().size())
    fail(op, fmt::format("expected one size a dimension of {}, got {}", x.type().to_string(), text(sizes)));
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] < 0 || sizes[i] > x.dims()[i])
      fail(op, fmt::format("expected a size in [0, {}] in dimension {}, got {}", x.dims()[i], i, sizes[i]));
  std::vector<Value> operands{x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  Type type{x.dtype(), sizes};
  return emit(op, std::move(operands), std::move(type), {{"slice_sizes", std::move(sizes)}});
}

Value Builder::dynamic_update_slice(Value x, Value update, std::span<const Value> starts) {
  constexpr Op op = Op::DynamicUpdateSlice;
  check_starts(op, x, starts);
  check_operands(op, {update});
  bool fits = update.dtype() == x.dtype() && update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dim(i) <= x.dim(i);
  if (!fits)
    fail(op, fmt::format("expected an update that fits into {}, got {}", x.type().to_string(), update.type().to_string()));
  std::vector<Value> operands{x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return emit(op, std::move(operands), x.type());
}

Value Builder::pad(Value x, Value padding_value, Dims low, Dims high, Dims interior) {
  constexpr Op op = Op::Pad;
  check_operands(op, {x, padding_value});
  if (interior.empty()) interior.assign(at(x.rank()), 0);
  if (padding_value.type() != Type{x.dtype(), {}})
    fail(op, fmt::format("expected a padding value of type {}, got {}", Type{x.dtype(), {}}.to_string(),
                         padding_value.type().to_string()));
  if (low.size() != x.dims().size() || high.size() != low.size() || interior.size() != low.size())
    fail(op, fmt::format("expected one low, high and interior padding a dimension of {}, got {}, {} and {}",
                         x.type().to_string(), text(low), text(high), text(interior)));
  Type type{x.dtype(), {}};
  for (size_t i = 0; i < low.size(); ++i) {
    if (interior[i] < 0) fail(op, fmt::format("expected interior padding of at least 0, got {}", text(interior)));
    const int64_t d = x.dims()[i];
    type.dims.push_back(low[i] + d + std::max<int64_t>(d - 1, 0) * interior[i] + high[i]);
    if (type.dims.back() < 0)
      fail(op,
           fmt::format("expected padding that leaves at least 0 in dimension {}, got {} + {} + {}", i, low[i], d, high[i]));
  }
  return emit(op, {x, padding_value}, std::move(type),
              {{"edge_padding_low", std::move(low)},
               {"edge_padding_high", std::move(high)},
               {"interior_padding", std::move(interior)}});
}

Value Builder::concatenate(std::span<const Value> xs, int64_t dimension) {
  constexpr Op op = Op::Concatenate;
  check_operands(op, xs);
  if (xs.empty()) fail(op, "expected at least one operand, got none");
  Type type = xs[0].type();
  check_axis(op, "a dimension", dimension, type.rank());
  for (Value x : xs.subspan(1)) {
    bool fits = x.dtype() == type.dtype && x.rank() == type.rank();
    for (int64_t i = 0; fits && i < x.rank(); ++i) fits = i == dimension || x.dim(i) == type.dims[at(i)];
    if (!fits)
      fail(op, fmt::format("expected operands that differ in dimension {} only, got {} and {}", dimension,
                           xs[0].type().to_string(), x.type().to_string()));
    type.dims[at(dimension)] += x.dim(dimension);
  }
  if (xs.size() == 1) return xs[0];
  return emit(op, {xs.begin(), xs.end()}, std::move(type), {{"dimension", dimension}});
}

Value Builder::reverse(Value x, Dims dimensions) {
  constexpr Op op = Op::Reverse;
  check_operands(op, {x});
  check_axes(op, "dimensions", dimensions, x.rank());
  if (dimensions.empty()) return x;
  return emit(op, {x}, x.type(), {{"dimensions", std::move(dimensions)}});
}

Value Builder::gather(Value x, Value start_indices, const GatherDims& dims, Dims slice_sizes, bool indices_are_sorted) {
  constexpr Op op = Op::Gather;
  check_operands(op, {x, start_indices});
  const int64_t indices_rank = start_indices.rank();
  if (!is_integer(start_indices.dtype()))
    fail(op, fmt::format("expected integer indices, got {}", start_indices.type().to_string()));
  if (dims.index_vector_dim < 0 || dims.index_vector_dim > indices_rank)
    fail(op, fmt::format("expected index_vector_dim in [0, {}], got {}", indices_rank, dims.index_vector_dim));
  if (static_cast<int64_t>(slice_sizes.size()) != x.rank())
    fail(op, fmt::format("expected one slice size a dimension of {}, got {}", x.type().to_string(), text(slice_sizes)));
  check_axes(op, "start_index_map", dims.start_index_map, x.rank());
  Dims removed = dims.collapsed_slice_dims;
  removed.insert(removed.end(), dims.operand_batching_dims.begin(), dims.operand_batching_dims.end());
  check_axes(op, "collapsed_slice_dims and operand_batching_dims", removed, x.rank());
  if (const int64_t n = index_vector_size(start_indices, dims.index_vector_dim);
      n != static_cast<int64_t>(dims.start_index_map.size()))
    fail(op, fmt::format("expected {} entries in start_index_map, one an element of an index vector of {}, got {}", n,
                         start_indices.type().to_string(), text(dims.start_index_map)));
  for (size_t i = 0; i < slice_sizes.size(); ++i) {
    const bool collapsed = contains(removed, static_cast<int64_t>(i));
    if (slice_sizes[i] < 0 || slice_sizes[i] > x.dims()[i] || (collapsed && slice_sizes[i] > 1))
      fail(op, fmt::format("expected a slice size of at most {} in dimension {}, got {}", collapsed ? 1 : x.dims()[i], i,
                           slice_sizes[i]));
  }
  check_axes(op, "start_indices_batching_dims", dims.start_indices_batching_dims, indices_rank);
  bool batches_match = dims.operand_batching_dims.size() == dims.start_indices_batching_dims.size();
  for (size_t i = 0; batches_match && i < dims.operand_batching_dims.size(); ++i)
    batches_match = x.dim(dims.operand_batching_dims[i]) == start_indices.dim(dims.start_indices_batching_dims[i]);
  if (!batches_match || contains(dims.start_indices_batching_dims, dims.index_vector_dim))
    fail(op, fmt::format("expected batching dimensions of equal sizes, got {} of {} and {} of {}",
                         text(dims.operand_batching_dims), x.type().to_string(), text(dims.start_indices_batching_dims),
                         start_indices.type().to_string()));

  const Dims batch = without(start_indices.dims(), {dims.index_vector_dim});
  const Dims offset = without(slice_sizes, removed);
  const auto rank = static_cast<int64_t>(batch.size() + offset.size());
  check_axes(op, "offset_dims", dims.offset_dims, rank);
  if (dims.offset_dims.size() != offset.size() || !std::is_sorted(dims.offset_dims.begin(), dims.offset_dims.end()))
    fail(op, fmt::format("expected {} ascending offset_dims, got {}", offset.size(), text(dims.offset_dims)));
  Type type{x.dtype(), {}};
  auto next_batch = batch.begin(), next_offset = offset.begin();
  for (int64_t i = 0; i < rank; ++i) type.dims.push_back(contains(dims.offset_dims, i) ? *next_offset++ : *next_batch++);
  return emit(op, {x, start_indices}, std::move(type),
              {{"dimension_numbers.offset_dims", dims.offset_dims},
               {"dimension_numbers.collapsed_slice_dims", dims.collapsed_slice_dims},
               {"dimension_numbers.operand_batching_dims", dims.operand_batching_dims},
               {"dimension_numbers.start_indices_batching_dims", dims.start_indices_batching_dims},
               {"dimension_numbers.start_index_map", dims.start_index_map},
               {"dimension_numbers.index_vector_dim", dims.index_vector_dim},
               {"slice_sizes", std::move(slice_sizes)},
               {"indices_are_sorted", indices_are_sorted}});
}

Value Builder::scatter(Value x, Value indices, Value updates, const ScatterDims& dims, std::optional<Reduction> combine_kind,
                       bool indices_are_sorted, bool unique_indices) {
  constexpr Op op = Op::Scatter;
  check_operands(op, {x, indices, updates});
  if (updates.dtype() != x.dtype())
    fail(op, fmt::format("expected updates of {} elements, got {}", hlo_name(x.dtype()), updates.type().to_string()));
  if (!is_integer(indices.dtype())) fail(op, fmt::format("expected integer indices, got {}", indices.type().to_string()));
  if (dims.index_vector_dim < 0 || dims.index_vector_dim > indices.rank())
    fail(op, fmt::format("expected index_vector_dim in [0, {}], got {}", indices.rank(), dims.index_vector_dim));
  if (combine_kind) check_reduction(op, *combine_kind, x.dtype());
  check_axes(op, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims, x.rank());
  if (const int64_t n = index_vector_size(indices, dims.index_vector_dim);
      n != static_cast<int64_t>(dims.scatter_dims_to_operand_dims.size()))
    fail(op,
         fmt::format("expected {} entries in scatter_dims_to_operand_dims, one an element of an index vector of {}, got {}",
                     n, indices.type().to_string(), text(dims.scatter_dims_to_operand_dims)));
  Dims removed = dims.inserted_window_dims;
  removed.insert(removed.end(), dims.input_batching_dims.begin(), dims.input_batching_dims.end());
  check_axes(op, "inserted_window_dims and input_batching_dims", removed, x.rank());
  check_axes(op, "scatter_indices_batching_dims", dims.scatter_indices_batching_dims, indices.rank());
  bool batches_match = dims.input_batching_dims.size() == dims.scatter_indices_batching_dims.size();
  for (size_t i = 0; batches_match && i < dims.input_batching_dims.size(); ++i)
    batches_match = x.dim(dims.input_batching_dims[i]) == indices.dim(dims.scatter_indices_batching_dims[i]);
  if (!batches_match || contains(dims.scatter_indices_batching_dims, dims.index_vector_dim))
    fail(op, fmt::format("expected batching dimensions of equal sizes, got {} of {} and {} of {}",
                         text(dims.input_batching_dims), x.type().to_string(), text(dims.scatter_indices_batching_dims),
                         indices.type().to_string()));

  const Dims batch = without(indices.dims(), {dims.index_vector_dim});
  const Dims window = without(x.dims(), removed);  // upper bounds of the update's window dimensions
  check_axes(op, "update_window_dims", dims.update_window_dims, updates.rank());
  bool fits = dims.update_window_dims.size() == window.size() && updates.dims().size() == batch.size() + window.size() &&
              std::is_sorted(dims.update_window_dims.begin(), dims.update_window_dims.end()) &&
              without(updates.dims(), dims.update_window_dims) == batch;
  for (size_t i = 0; fits && i < window.size(); ++i) fits = updates.dim(dims.update_window_dims[i]) <= window[i];
  if (!fits)
    fail(op, fmt::format("expected updates of scatter dimensions {} and window dimensions (ascending update_window_dims) of "
                         "at most {}, got "
                         "{} with update_window_dims {}",
                         text(batch), text(window), updates.type().to_string(), text(dims.update_window_dims)));

  Regions regions(*this);
  const Type element{x.dtype(), {}};
  regions.add(op, std::array{element, element}, [&](Builder& b, std::span<const Value> p) {
    return std::vector{combine_kind ? b.combine(*combine_kind, p[0], p[1]) : p[1]};
  });
  return emit(op, {x, indices, updates}, std::vector{x.type()},
              {{"scatter_dimension_numbers.update_window_dims", dims.update_window_dims},
               {"scatter_dimension_numbers.inserted_window_dims", dims.inserted_window_dims},
               {"scatter_dimension_numbers.input_batching_dims", dims.input_batching_dims},
               {"scatter_dimension_numbers.scatter_indices_batching_dims", dims.scatter_indices_batching_dims},
               {"scatter_dimension_numbers.scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims},
               {"scatter_dimension_numbers.index_vector_dim", dims.index_vector_dim},
               {"indices_are_sorted", indices_are_sorted},
               {"unique_indices", unique_indices}},
              regions.release())
      .front();
}

}  // namespace flambeau::hlo
