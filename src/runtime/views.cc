#include "runtime/views.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"

namespace flambeau::runtime {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::Value;

constexpr int64_t kMaxCheckedElements = 1'000'000;  // of overlaps_itself
constexpr int64_t kMaxDivisorsTried = 65'536;       // bounds the search for a factorisation of the base

int64_t saturating_multiply(int64_t x, int64_t y) {
  int64_t product;
  return __builtin_mul_overflow(x, y, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t saturating_add(int64_t x, int64_t y) {
  int64_t sum;
  return __builtin_add_overflow(x, y, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

// A dimension of a normalised view: size > 1 and stride > 0, in the view's order.
struct Dim {
  int64_t size, stride;
};

// A dimension of the base, reshaped, and the part of it that the view shows: `count` indices from `start` on, every
// `step`-th. They are dimension `dim` of the normalised view; -1 for a single index that is none of them.
struct Axis {
  int64_t extent, start, count, step;
  int dim;
  bool is_full() const { return count == extent; }
};

struct Decomposition {
  ViewForm form = ViewForm::General;
  std::vector<Dim> dims;
  // All forms but General: elements [begin, begin + length) of the flat base, reshaped to the extents, are sliced along
  // these axes.
  int64_t begin = 0, length = 0;
  std::vector<Axis> axes;
};

// Drops size-1 and stride-0 dimensions.
std::vector<Dim> normalised(const View& view) {
  std::vector<Dim> dims;
  dims.reserve(view.sizes.size());
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] != 1 && view.strides[i] != 0) dims.push_back({view.sizes[i], view.strides[i]});
  }
  return dims;
}

// Merges neighbours that walk through memory as one dimension.
std::vector<Dim> merged(std::span<const Dim> dims) {
  std::vector<Dim> result;
  for (const Dim& dim : dims) {
    if (!result.empty() && result.back().stride == saturating_multiply(dim.size, dim.stride)) {
      result.back() = {result.back().size * dim.size, dim.stride};
    } else {
      result.push_back(dim);
    }
  }
  return result;
}

int64_t elements_shown(std::span<const Dim> dims) {
  int64_t count = 1;
  for (const Dim& dim : dims) count *= dim.size;
  return count;
}

bool is_expanded(const View& view) {
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] > 1 && view.strides[i] == 0) return true;
  }
  return false;
}

std::vector<int> by_descending_stride(std::span<const Dim> dims) {
  std::vector<int> order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int i, int j) {
    return dims[i].stride != dims[j].stride ? dims[i].stride > dims[j].stride : i < j;
  });
  return order;
}

// The axes when view dimension order[i] steps along an axis whose neighbours lie pitches[i] apart, each pitch a divisor of
// the one before and of the dimension's stride. Nothing when a dimension would run over the end of its axis.
std::optional<std::vector<Axis>> fit_axes(std::span<const Dim> dims, std::span<const int> order, std::span<const int64_t> pitches,
                                          int64_t offset, int64_t length) {
  std::vector<Axis> axes;
  axes.reserve(order.size() + 1);
  int64_t above = length;
  for (size_t i = 0; i < order.size(); ++i) {
    const Dim& dim = dims[order[i]];
    int64_t extent = above / pitches[i], start = offset / pitches[i], step = dim.stride / pitches[i];
    if (start + (dim.size - 1) * step >= extent) return std::nullopt;
    axes.push_back({extent, start, dim.size, step, order[i]});
    above = pitches[i];
    offset %= pitches[i];
  }
  if (above > 1) axes.push_back({above, offset, 1, 1, -1});
  return axes;
}

// Finds a reshape of the base (first of all of it, else of a part of it) of which the view is a stepped slice.
//
// Let the pitch of the outermost axis be p, a divisor of the largest stride. For the axes within, the greatest common divisor
// of p and of the strides so far is the best pitch: whatever fits smaller pitches fits that one. So only p is searched for.
bool find_axes(Decomposition& decomposition, int64_t offset, int64_t base_elements) {
  std::vector<int> order = by_descending_stride(decomposition.dims);
  const Dim& outer = decomposition.dims[order[0]];
  int64_t reach = 0;  // within one step of the outermost axis
  for (size_t i = 1; i < order.size(); ++i) reach += (decomposition.dims[order[i]].size - 1) * decomposition.dims[order[i]].stride;

  std::vector<int64_t> pitches(order.size());
  auto try_part = [&](int64_t begin, int64_t length) {
    if (begin < 0 || begin > offset || begin + length > base_elements) return false;
    auto axes = fit_axes(decomposition.dims, order, pitches, offset - begin, length);
    if (!axes) return false;
    decomposition.begin = begin;
    decomposition.length = length;
    decomposition.axes = std::move(*axes);
    return true;
  };
  for (bool whole : {true, false}) {
    int64_t last = std::min(outer.stride / (reach + 1), kMaxDivisorsTried);
    for (int64_t step = 1; step <= last; ++step) {
      if (outer.stride % step != 0) continue;
      pitches[0] = outer.stride / step;
      for (size_t i = 1; i < order.size(); ++i) pitches[i] = std::gcd(pitches[i - 1], decomposition.dims[order[i]].stride);
      if (whole) {
        if (base_elements % pitches[0] == 0 && try_part(0, base_elements)) return true;
        continue;
      }
      int64_t length = ((outer.size - 1) * step + 1) * pitches[0];
      if (try_part(offset / pitches[0] * pitches[0], length) || try_part(std::min(offset, base_elements - length), length)) {
        return true;
      }
    }
  }
  return false;
}

// Axes that are the base's own dimensions, where the view allows it: no reshape, and shardings carry over.
std::optional<std::vector<Axis>> own_axes(std::span<const Dim> dims, int64_t offset, const Dims& base_dims) {
  std::vector<Axis> axes(base_dims.size());
  Dims pitches(base_dims.size());
  int64_t pitch = 1;
  for (size_t j = base_dims.size(); j-- > 0;) {
    pitches[j] = pitch;
    axes[j] = {base_dims[j], offset / pitch % base_dims[j], 1, 1, -1};
    pitch *= base_dims[j];
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    size_t j = 0;
    while (j < axes.size() && pitches[j] > dims[i].stride) ++j;
    while (j < axes.size() && axes[j].extent == 1) ++j;  // size-1 dimensions share their pitch with the next
    if (j == axes.size() || axes[j].dim >= 0 || dims[i].stride % pitches[j] != 0) return std::nullopt;
    axes[j].count = dims[i].size;
    axes[j].step = dims[i].stride / pitches[j];
    axes[j].dim = static_cast<int>(i);
    if (axes[j].start + (axes[j].count - 1) * axes[j].step >= axes[j].extent) return std::nullopt;
  }
  return axes;
}

void check_reach(const View& view, int64_t base_elements) {
  bool valid = view.sizes.size() == view.strides.size() && view.offset >= 0;
  for (size_t i = 0; valid && i < view.sizes.size(); ++i) valid = view.sizes[i] >= 0 && view.strides[i] >= 0;
  if (!valid || view.extent() > base_elements) {
    raise<InvalidArgument>(
        "[view] expected a view within the storage's {} elements, got sizes [{}], strides [{}], storage offset {}; "
        "use non-negative numbers of equal count that stay within it",
        base_elements, fmt::join(view.sizes, ", "), fmt::join(view.strides, ", "), view.offset);
  }
}

// The decomposition by the number of the base's elements alone, so that it says nothing about how they are shaped.
Decomposition decompose(const View& view, int64_t base_elements) {
  check_reach(view, base_elements);
  Decomposition decomposition;
  int64_t elements = view.elements();
  if (elements == 0) {
    decomposition.form = base_elements == 0 ? ViewForm::Whole : ViewForm::Range;
    decomposition.axes = {{base_elements, 0, 0, 1, -1}};
    decomposition.length = base_elements;
    return decomposition;
  }
  std::vector<Dim> apart = normalised(view);
  std::vector<Dim> together = merged(apart);
  if (together.empty() || (together.size() == 1 && together[0].stride == 1)) {
    int64_t count = together.empty() ? 1 : together[0].size;
    bool whole = count == base_elements;
    decomposition.form = !whole ? ViewForm::Range : is_expanded(view) ? ViewForm::Reshape : ViewForm::Whole;
    decomposition.axes = {{base_elements, view.offset, count, 1, together.empty() ? -1 : 0}};
    decomposition.length = base_elements;
    decomposition.dims = std::move(together);
    return decomposition;
  }
  // Unmerged dimensions keep the base's own; merged ones also fit where a dimension was split unevenly with the base.
  decomposition.dims = std::move(apart);
  bool found = find_axes(decomposition, view.offset, base_elements);
  if (!found) {
    bool differs = together.size() != decomposition.dims.size();
    decomposition.dims = std::move(together);
    found = differs && find_axes(decomposition, view.offset, base_elements);
  }
  if (found) {
    decomposition.form = elements_shown(decomposition.dims) == base_elements ? ViewForm::Transpose : ViewForm::Slice;
  }
  return decomposition;
}

// The decomposition for a base of a known shape: in its own dimensions where that goes.
Decomposition decompose(const View& view, const Value& base) {
  Decomposition decomposition = decompose(view, base.elements());
  if (decomposition.form == ViewForm::General || view.elements() == 0) return decomposition;
  std::vector<Dim> dims = normalised(view);
  if (auto axes = own_axes(dims, view.offset, base.dims())) {
    decomposition.dims = std::move(dims);
    decomposition.axes = std::move(*axes);
    decomposition.begin = 0;
    decomposition.length = base.elements();
  }
  return decomposition;
}

void refuse_overlap(const View& view) {
  if (overlaps_itself(view)) {
    raise<InvalidArgument>(
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
        "Please clone() the tensor before performing the operation.");
  }
}

// ---- building ---------------------------------------------------------------------------------------------------------------

Value transpose(Builder& b, Value x, const Dims& permutation) {
  return std::is_sorted(permutation.begin(), permutation.end()) ? x : b.transpose(x, permutation);
}

Dims inverse(const Dims& permutation) {
  Dims result(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) result[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
  return result;
}

template <class F>
Dims collect(std::span<const Axis> axes, F field) {
  Dims result(axes.size());
  std::transform(axes.begin(), axes.end(), result.begin(), field);
  return result;
}

Dims sizes_of(std::span<const Dim> dims) {
  Dims result(dims.size());
  std::transform(dims.begin(), dims.end(), result.begin(), [](const Dim& dim) { return dim.size; });
  return result;
}

// The view's dimensions in the order in which the axes have them.
Dims axis_order(const Decomposition& decomposition) {
  Dims order;
  for (const Axis& axis : decomposition.axes) {
    if (axis.dim >= 0) order.push_back(axis.dim);
  }
  return order;
}

// The planned part of the base, shaped as the axes want it.
Value shape_base(Builder& b, Value base, const Decomposition& decomposition) {
  if (decomposition.length != base.elements()) {
    base = b.slice(b.reshape(base, {base.elements()}), {decomposition.begin}, {decomposition.begin + decomposition.length});
  }
  return b.reshape(base, collect(decomposition.axes, std::mem_fn(&Axis::extent)));
}

// From the normalised view's contents to the view's: size-1 dimensions come back, stride-0 ones are filled.
Value denormalise(Builder& b, Value x, const View& view) {
  if (!is_expanded(view)) return b.reshape(x, view.sizes);
  Dims kept_sizes, kept;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] > 1 && view.strides[i] == 0) continue;
    kept_sizes.push_back(view.sizes[i]);
    kept.push_back(static_cast<int64_t>(i));
  }
  return b.broadcast_in_dim(b.reshape(x, kept_sizes), view.sizes, kept);
}

Value read_axes(Builder& b, Value base, const Decomposition& decomposition) {
  Value x = shape_base(b, base, decomposition);
  if (!std::all_of(decomposition.axes.begin(), decomposition.axes.end(), std::mem_fn(&Axis::is_full))) {
    x = b.slice(x, collect(decomposition.axes, std::mem_fn(&Axis::start)),
                collect(decomposition.axes, [](const Axis& a) { return a.start + (a.count - 1) * a.step + 1; }),
                collect(decomposition.axes, std::mem_fn(&Axis::step)));
  }
  Dims order = axis_order(decomposition), sizes(order.size());
  for (size_t i = 0; i < order.size(); ++i) sizes[i] = decomposition.dims[static_cast<size_t>(order[i])].size;
  return transpose(b, b.reshape(x, sizes), inverse(order));
}

// Evenly divided steps become axes of their own, of which one index is taken: then an update needs no mask.
std::vector<Axis> split_steps(std::span<const Axis> axes) {
  std::vector<Axis> result;
  for (const Axis& axis : axes) {
    if (axis.step > 1 && axis.extent % axis.step == 0) {
      result.push_back({axis.extent / axis.step, axis.start / axis.step, axis.count, 1, axis.dim});
      result.push_back({axis.step, axis.start % axis.step, 1, 1, -1});
    } else {
      result.push_back(axis);
    }
  }
  return result;
}

// `x` (the extents) with the indices that the axes name replaced by `update` (the counts).
Value update_axes(Builder& b, Value x, Value update, std::span<const Axis> axes) {
  if (std::all_of(axes.begin(), axes.end(), std::mem_fn(&Axis::is_full))) return update;
  if (std::all_of(axes.begin(), axes.end(), [](const Axis& a) { return a.step == 1; })) {
    std::vector<Value> starts;
    for (const Axis& axis : axes) starts.push_back(b.constant(x.elements() > INT32_MAX ? DType::S64 : DType::S32, axis.start));
    return b.dynamic_update_slice(x, update, starts);
  }
  Dims low = collect(axes, std::mem_fn(&Axis::start));
  Dims high = collect(axes, [](const Axis& a) { return a.extent - 1 - (a.start + (a.count - 1) * a.step); });
  Dims interior = collect(axes, [](const Axis& a) { return a.step - 1; });
  Value mask = b.pad(b.constant(DType::Pred, 1, update.dims()), b.constant(DType::Pred, 0), low, high, interior);
  return b.select(mask, b.pad(update, b.constant(x.dtype(), 0), low, high, interior), x);
}

Value write_axes(Builder& b, Value base, Value contents, Decomposition decomposition) {
  Dims base_dims = base.dims();
  decomposition.axes = split_steps(decomposition.axes);
  Value update = transpose(b, b.reshape(contents, sizes_of(decomposition.dims)), axis_order(decomposition));
  update = b.reshape(update, collect(decomposition.axes, std::mem_fn(&Axis::count)));
  Value part = update_axes(b, shape_base(b, base, decomposition), update, decomposition.axes);
  if (decomposition.length == base.elements()) return b.reshape(part, base_dims);
  Value flat = b.reshape(base, {base.elements()});
  Value begin = b.constant(base.elements() > INT32_MAX ? DType::S64 : DType::S32, decomposition.begin);
  return b.reshape(b.dynamic_update_slice(flat, b.reshape(part, {decomposition.length}), std::span(&begin, 1)), base_dims);
}

// What a gather and a scatter share: the flat index of each run of neighbouring elements.
struct Runs {
  Dims order;        // the view's dimensions, the one along a run last
  Dims sizes;        // in that order
  int64_t length;    // of a run; 1 where no dimension has stride 1
  Value indices;     // [sizes without the run's, 1]
  int64_t rank;      // of indices, less one
};

Runs make_runs(Builder& b, const Decomposition& decomposition, int64_t offset, int64_t base_elements) {
  int run = -1;
  for (size_t i = 0; i < decomposition.dims.size(); ++i) {
    bool longer = run < 0 || decomposition.dims[i].size > decomposition.dims[static_cast<size_t>(run)].size;
    if (decomposition.dims[i].stride == 1 && longer) run = static_cast<int>(i);
  }
  Runs runs{.order = {}, .sizes = {}, .length = run < 0 ? 1 : decomposition.dims[static_cast<size_t>(run)].size, .indices = {}, .rank = 0};
  for (size_t i = 0; i < decomposition.dims.size(); ++i) {
    if (static_cast<int>(i) == run) continue;
    runs.order.push_back(static_cast<int64_t>(i));
    runs.sizes.push_back(decomposition.dims[i].size);
  }
  DType dtype = base_elements > INT32_MAX ? DType::S64 : DType::S32;
  Value index = b.constant(dtype, offset, runs.sizes);
  for (size_t i = 0; i < runs.order.size(); ++i) {
    Value stride = b.constant(dtype, decomposition.dims[static_cast<size_t>(runs.order[i])].stride, runs.sizes);
    index = b.add(index, b.multiply(b.iota({dtype, runs.sizes}, static_cast<int64_t>(i)), stride));
  }
  runs.rank = static_cast<int64_t>(runs.sizes.size());
  Dims with_vector = runs.sizes;
  with_vector.push_back(1);
  runs.indices = b.reshape(index, with_vector);
  if (run >= 0) {
    runs.order.push_back(run);
    runs.sizes.push_back(runs.length);
  }
  return runs;
}

Value read_runs(Builder& b, Value base, const Decomposition& decomposition, int64_t offset) {
  Runs runs = make_runs(b, decomposition, offset, base.elements());
  hlo::GatherDims dims{.offset_dims = {}, .collapsed_slice_dims = {}, .operand_batching_dims = {},
                       .start_indices_batching_dims = {}, .start_index_map = {0}, .index_vector_dim = runs.rank};
  (runs.length > 1 ? dims.offset_dims : dims.collapsed_slice_dims) = {runs.length > 1 ? runs.rank : 0};
  Value x = b.gather(b.reshape(base, {base.elements()}), runs.indices, dims, {runs.length});
  return transpose(b, x, inverse(runs.order));
}

Value write_runs(Builder& b, Value base, Value contents, const Decomposition& decomposition, int64_t offset) {
  Runs runs = make_runs(b, decomposition, offset, base.elements());
  hlo::ScatterDims dims{.update_window_dims = {}, .inserted_window_dims = {}, .input_batching_dims = {},
                        .scatter_indices_batching_dims = {}, .scatter_dims_to_operand_dims = {0}, .index_vector_dim = runs.rank};
  (runs.length > 1 ? dims.update_window_dims : dims.inserted_window_dims) = {runs.length > 1 ? runs.rank : 0};
  Value updates = transpose(b, b.reshape(contents, sizes_of(decomposition.dims)), runs.order);
  Value flat = b.reshape(base, {base.elements()});
  return b.reshape(b.scatter(flat, runs.indices, updates, dims, std::nullopt, false, /*unique_indices=*/true), base.dims());
}

// Marks every element that the view reaches; true when one is reached twice.
bool reaches_twice(std::span<const Dim> dims, int64_t elements) {
  std::vector<int64_t> reached{0};
  reached.reserve(static_cast<size_t>(elements));
  for (const Dim& dim : dims) {
    size_t count = reached.size();
    for (int64_t i = 1; i < dim.size; ++i) {
      for (size_t j = 0; j < count; ++j) reached.push_back(reached[j] + i * dim.stride);
    }
  }
  std::sort(reached.begin(), reached.end());
  return std::adjacent_find(reached.begin(), reached.end()) != reached.end();
}

}  // namespace

View View::contiguous(Dims sizes) {
  View view{std::move(sizes), {}, 0};
  view.strides.resize(view.sizes.size());
  int64_t stride = 1;
  for (size_t i = view.sizes.size(); i-- > 0;) {
    view.strides[i] = stride;
    stride = saturating_multiply(stride, std::max<int64_t>(view.sizes[i], 1));  // as PyTorch, so that no stride is 0
  }
  return view;
}

bool View::is_contiguous() const {
  int64_t stride = 1;
  bool dense = true;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    dense = dense && (sizes[i] == 1 || strides[i] == stride);
    stride = saturating_multiply(stride, sizes[i]);
  }
  return dense;
}

int64_t View::elements() const {
  int64_t count = 1;
  for (int64_t size : sizes) {
    if (size == 0) return 0;
    count = saturating_multiply(count, size);
  }
  return count;
}

int64_t View::extent() const {
  if (elements() == 0) return 0;
  int64_t last = offset;
  for (size_t i = 0; i < sizes.size(); ++i) last = saturating_add(last, saturating_multiply(sizes[i] - 1, strides[i]));
  return saturating_add(last, 1);
}

bool overlaps_itself(const View& view) {
  int64_t elements = view.elements();
  if (elements == 0) return false;
  if (is_expanded(view)) return true;
  std::vector<Dim> dims = merged(normalised(view));
  // When every stride steps over all that the smaller ones reach, no two index tuples meet.
  std::vector<int> order = by_descending_stride(dims);
  int64_t reach = 0;
  bool steps_over = true;
  for (size_t i = order.size(); i-- > 0;) {
    const Dim& dim = dims[static_cast<size_t>(order[i])];
    steps_over = steps_over && dim.stride > reach;
    reach = saturating_add(reach, saturating_multiply(dim.size - 1, dim.stride));
  }
  if (steps_over || elements > kMaxCheckedElements) return false;
  return reaches_twice(dims, elements);
}

std::optional<View> memory_order(const View& view) {
  const View contents = View::contiguous(view.sizes);
  std::vector<size_t> order(view.sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    return view.strides[i] != view.strides[j] ? view.strides[i] > view.strides[j] : i < j;
  });
  View base;
  for (size_t d : order) {
    base.sizes.push_back(view.sizes[d]);
    base.strides.push_back(contents.strides[d]);
  }
  View dense = View::contiguous(base.sizes);
  for (size_t i = 0; i < order.size(); ++i)
    if (base.sizes[i] != 1 && view.strides[order[i]] != dense.strides[i]) return std::nullopt;
  if (view.elements() == 0) return std::nullopt;
  return base;
}

ViewForm read_form(const View& view, int64_t base_elements) {
  if (view.offset == 0 && view.elements() == base_elements && view.is_contiguous()) return ViewForm::Whole;
  return decompose(view, base_elements).form;
}

ViewForm write_form(const View& view, int64_t base_elements) {
  ViewForm form = read_form(view, base_elements);
  if (form == ViewForm::General || is_expanded(view)) refuse_overlap(view);
  return form;
}

Value read_view(Builder& b, Value base, const View& view) {
  Decomposition decomposition = decompose(view, base);
  if (decomposition.form == ViewForm::Whole) return b.reshape(base, view.sizes);
  if (view.elements() == 0) return b.reshape(b.slice(b.reshape(base, {base.elements()}), {0}, {0}), view.sizes);
  Value x = decomposition.form == ViewForm::General ? read_runs(b, base, decomposition, view.offset) : read_axes(b, base, decomposition);
  return denormalise(b, x, view);
}

Value write_view(Builder& b, Value base, const View& view, Value contents) {
  Decomposition decomposition = decompose(view, base);
  if (contents.type() != hlo::Type{base.dtype(), view.sizes}) {
    raise<InvalidArgument>("[view] expected contents {}, got {}; convert or expand them first",
                           hlo::Type{base.dtype(), view.sizes}.to_string(), contents.type().to_string());
  }
  if (decomposition.form == ViewForm::Whole) return b.reshape(contents, base.dims());
  if (view.elements() == 0) return base;
  if (decomposition.form == ViewForm::General || is_expanded(view)) refuse_overlap(view);
  return decomposition.form == ViewForm::General ? write_runs(b, base, contents, decomposition, view.offset)
                                        : write_axes(b, base, contents, std::move(decomposition));
}

}  // namespace flambeau::runtime
