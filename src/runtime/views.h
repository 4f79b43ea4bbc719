// Strided reads and writes over dense arrays, decomposed into StableHLO operations.
//
// A storage holds a dense row-major array (the base). A tensor over it is a View: sizes, strides and offset in elements of the
// base. A read makes the dense array that the view shows of the base; a write makes the new base of the old one and new dense
// contents. Views are normalised first (size-1 dimensions dropped, dimensions that are contiguous with each other
// merged, stride-0 dimensions set aside and broadcast at the end), then the cheapest form that fits is taken:
//
//   read:  the base itself; a reshape; a transpose; a contiguous range; a stepped slice of a reshape (strides that divide
//          each other), transposed; otherwise one gather with computed indices
//   write: replace; dynamic_update_slice of a reshape; a slice-wise merge; otherwise one scatter with unique indices
//
// Where the base's own dimensions serve as the reshape (narrow, select, stepped slices of an untransposed base) they are used
// as they are, so that a sharded base keeps its sharding. The form does not depend on them: the count of elements decides it.
#pragma once

#include <cstdint>
#include <optional>

#include "hlo/builder.h"

namespace flambeau::runtime {

struct View {
  hlo::Dims sizes, strides;
  int64_t offset = 0;
  friend bool operator==(const View&, const View&) = default;

  static View contiguous(hlo::Dims sizes);
  bool is_contiguous() const;  // row-major and dense from `offset` on; empty views are
  int64_t elements() const;
  int64_t extent() const;  // one more than the largest element index that it reaches; 0 when empty
};

// The form that a decomposition takes; part of what tests and statistics see. Stride-0 dimensions do not change it, but in Reshape.
enum class ViewForm {
  Whole,      // every element in order: the base itself, reshaped when its dimensions differ
  Reshape,    // the same, expanded along stride-0 dimensions
  Transpose,  // every element once, in another order
  Range,      // neighbouring elements in order
  Slice,      // a stepped slice of the base reshaped, transposed
  General,    // gather, scatter
};

// Which form a read (write) of `view` over a base of `base_elements` elements takes. Dimension-free for the first three.
// Raises what read_view (write_view) would.
ViewForm read_form(const View& view, int64_t base_elements);
ViewForm write_form(const View& view, int64_t base_elements);

// The dense array [view.sizes] that `view` shows of `base` (any dense shape with enough elements; its row-major order counts).
// InvalidArgument when the view reaches outside of the base.
hlo::Value read_view(hlo::Builder& b, hlo::Value base, const View& view);

// `base` with the elements that `view` shows replaced by `contents` ([view.sizes], same dtype); has base's shape.
// InvalidArgument with PyTorch's message when the view overlaps itself (see overlaps_itself).
hlo::Value write_view(hlo::Builder& b, hlo::Value base, const View& view, hlo::Value contents);

// When `view` shows a dense base in another order of dimensions: the view of the dense contents [view.sizes] that has their elements in
// the base's order. None where it shows something else, or nothing.
std::optional<View> memory_order(const View& view);

// Whether two index tuples of the view may reach the same element; exact for sizes up to a million elements, else as PyTorch's
// at::has_internal_overlap decides (true only when sure).
bool overlaps_itself(const View& view);

}  // namespace flambeau::runtime
