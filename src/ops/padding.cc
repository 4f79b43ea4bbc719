// Padding that repeats elements (reflection, replication) and patches of planes (im2col, col2im). Each works dimension by
// dimension, by slices and concatenation; gradients and col2im add the pieces up again. float16 and bfloat16 are summed in
// float32.
#include <algorithm>

#include <fmt/ranges.h>

#include "ops/pointwise.h"
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

enum class Fill { Reflection, Replication };
constexpr std::string_view name_of(Fill fill) { return fill == Fill::Reflection ? "reflection_pad" : "replication_pad"; }

// One dimension with what is put before and behind it; negative numbers cut.
struct Sides {
  int64_t dim, low, high;
};

// PyTorch lists the last dimension first.
std::vector<Sides> sides_of(const Dims& padding, int64_t rank) {
  std::vector<Sides> all;
  for (size_t i = 0; i < padding.size() / 2; ++i)
    all.push_back({rank - 1 - static_cast<int64_t>(i), padding[2 * i], padding[2 * i + 1]});
  return all;
}

template <Fill fill>
void check(Value x, const Dims& padding, int64_t n) {
  if (static_cast<int64_t>(padding.size()) != 2 * n) raise<InvalidArgument>("padding size is expected to be {}", 2 * n);
  bool ranks = x.rank() == n + 1 || x.rank() == n + 2;
  for (int64_t d = x.rank() - n - 1; ranks && d < x.rank(); ++d) ranks = x.dim(d) != 0;
  if (!ranks)
    raise<InvalidArgument>(
        "Expected {}D or {}D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but "
        "got: {}",
        n + 1, n + 2, shape_text(x.dims()));
  if (x.dtype() == DType::Pred) refuse_dtype(name_of(fill), x.dtype());
  for (const Sides& s : sides_of(padding, x.rank())) {
    if (fill == Fill::Reflection && std::max(s.low, s.high) >= x.dim(s.dim))
      raise<InvalidArgument>(
          "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding ({}, {}) at "
          "dimension {} of "
          "input {}",
          s.low, s.high, s.dim, shape_text(x.dims()));
    if (x.dim(s.dim) + s.low + s.high < 1)
      raise<InvalidArgument>("input (size {} of dimension {}) is too small. Calculated output size: {}", x.dim(s.dim), s.dim,
                             x.dim(s.dim) + s.low + s.high);
  }
}

// The elements that are put at an end: those beside it, the other way around, or the end itself over and over.
template <Fill fill>
Value extension(Builder& b, Value x, int64_t dim, int64_t count, bool before) {
  int64_t n = x.dim(dim);
  if constexpr (fill == Fill::Reflection) {
    Value beside = before ? b.slice_dim(x, dim, 1, count + 1) : b.slice_dim(x, dim, n - 1 - count, n - 1);
    return b.reverse(beside, {dim});
  }
  Value end = before ? b.slice_dim(x, dim, 0, 1) : b.slice_dim(x, dim, n - 1, n);
  return b.broadcast(end, replaced(x.dims(), dim, count));
}

template <Fill fill>
Value extended(Builder& b, Value x, const Sides& s) {
  std::vector<Value> pieces;
  if (s.low > 0) pieces.push_back(extension<fill>(b, x, s.dim, s.low, true));
  pieces.push_back(b.slice_dim(x, s.dim, std::max<int64_t>(0, -s.low), x.dim(s.dim) - std::max<int64_t>(0, -s.high)));
  if (s.high > 0) pieces.push_back(extension<fill>(b, x, s.dim, s.high, false));
  return pieces.size() == 1 ? pieces[0] : b.concatenate(pieces, s.dim);
}

template <Fill fill, int64_t n>
Value pad(Builder& b, Value x, Dims padding) {
  check<fill>(x, padding, n);
  for (const Sides& s : sides_of(padding, x.rank())) x = extended<fill>(b, x, s);
  return x;
}

// `piece`, at `start` of a dimension of `size`, zeros around it. What lies outside is cut.
Value placed(Builder& b, Value piece, int64_t dim, int64_t start, int64_t size, int64_t stride = 1) {
  Dims none(at(piece.rank()), 0), low = none, high = none, interior = none;
  int64_t length = (piece.dim(dim) - 1) * stride + 1;
  low[at(dim)] = start, high[at(dim)] = size - length - start, interior[at(dim)] = stride - 1;
  return b.pad(piece, b.constant(piece.dtype(), 0), low, high, interior);
}

// The gradient of an extension: its elements go back to those that they repeat.
template <Fill fill>
Value folded(Builder& b, Value grad, const Sides& s, int64_t size) {
  Value total = placed(b, grad, s.dim, -s.low, size);
  auto add = [&](int64_t count, bool before) {
    if (count <= 0) return;
    int64_t end = grad.dim(s.dim);
    Value piece = before ? b.slice_dim(grad, s.dim, 0, count) : b.slice_dim(grad, s.dim, end - count, end);
    if constexpr (fill == Fill::Reflection) {
      piece = placed(b, b.reverse(piece, {s.dim}), s.dim, before ? 1 : size - 1 - count, size);
    } else {
      piece = b.reshape(sum(b, piece, {s.dim}), replaced(piece.dims(), s.dim, 1));
      piece = placed(b, piece, s.dim, before ? 0 : size - 1, size);
    }
    total = b.add(total, piece);
  };
  add(s.low, true);
  add(s.high, false);
  return total;
}

template <Fill fill, int64_t n>
Value pad_backward(Builder& b, Value grad, Value x, Dims padding) {
  check<fill>(x, padding, n);
  Dims expected = x.dims();
  for (const Sides& s : sides_of(padding, x.rank())) expected[at(s.dim)] += s.low + s.high;
  if (grad.dims() != expected)
    raise<InvalidArgument>("[{}_backward] expected grad_output of shape {}, got {}", name_of(fill), shape_text(expected),
                           shape_text(grad.dims()));
  if (x.elements() == 0) return zeros(b, x.dtype(), x.dims());
  Value total = convert(b, grad, compute_type(grad.dtype()));
  for (const Sides& s : sides_of(padding, x.rank())) total = folded<fill>(b, total, s, x.dim(s.dim));
  return convert(b, total, x.dtype());
}

// ---- patches ------------------------------------------------------------------------------------------------------------

// Where patches lie on a plane, one number for height and width each.
struct Patches {
  Dims size, dilation, padding, stride, plane;
  Dims counts;  // of patches

  Patches(std::string_view op, const Dims& plane_size, const Dims& kernel, const Dims& dilated, const Dims& padded,
          const Dims& strided)
      : size(two("kernel_size", kernel)),
        dilation(two("dilation", dilated)),
        padding(two("padding", padded)),
        stride(two("stride", strided)),
        plane(two("output_size", plane_size)) {
    auto least = [](const Dims& d) { return *std::min_element(d.begin(), d.end()); };
    if (least(size) < 1 || least(dilation) < 1 || least(stride) < 1 || least(padding) < 0)
      raise<InvalidArgument>(
          "[{}] expected kernel_size, dilation and stride greater than zero and a padding that is not negative", op);
    for (size_t i = 0; i < 2; ++i)
      counts.push_back((plane[i] + 2 * padding[i] - dilation[i] * (size[i] - 1) - 1) / stride[i] + 1);
    if (least(counts) < 1)
      raise<InvalidArgument>(
          "[{}] calculated shape of the array of sliding blocks as ({}), but its components must be at least one", op,
          fmt::join(counts, ", "));
  }
  static Dims two(std::string_view name, const Dims& given) {
    if (given.size() != 2) raise<InvalidArgument>("It is expected {} equals to 2, but got size {}", name, given.size());
    return given;
  }
  int64_t elements() const { return size[0] * size[1]; }
  int64_t count() const { return counts[0] * counts[1]; }
};

// Dimension `dim` (2 or 4) of the input as [places of a patch, patches].
Value spread_out(Builder& b, Value x, int64_t dim, const Patches& p, size_t i) {
  std::vector<Value> pieces;
  for (int64_t k = 0; k < p.size[i]; ++k) {
    int64_t start = k * p.dilation[i];
    Value piece = b.slice_dim(x, dim, start, start + (p.counts[i] - 1) * p.stride[i] + 1, p.stride[i]);
    Dims dims = piece.dims();
    dims.insert(dims.begin() + dim, 1);
    pieces.push_back(b.reshape(piece, dims));
  }
  return b.concatenate(pieces, dim);
}

// The reverse: every element of a patch added to its place.
Value drawn_together(Builder& b, Value x, int64_t dim, const Patches& p, size_t i) {
  Value total;
  for (int64_t k = 0; k < p.size[i]; ++k) {
    Value piece = placed(b, b.reshape(b.slice_dim(x, dim, k, k + 1), erased(x.dims(), dim)), dim, k * p.dilation[i] - p.padding[i],
                         p.plane[i], p.stride[i]);
    total = total ? b.add(total, piece) : piece;
  }
  return total;
}

// The result's dimensions without the batch where the input has none.
Value with_batch_of(Builder& b, Value x, bool batched) {
  return batched ? x : b.reshape(x, {x.dims().begin() + 1, x.dims().end()});
}

Value im2col(Builder& b, Value x, Dims kernel, Dims dilation, Dims padding, Dims stride) {
  if (is_integer(x.dtype())) refuse_dtype("im2col", x.dtype());
  bool batched = x.rank() == 4;
  if ((!batched && x.rank() != 3) || std::any_of(x.dims().end() - 3, x.dims().end(), [](int64_t d) { return d == 0; }))
    raise<InvalidArgument>(
        "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: "
        "{}",
        shape_text(x.dims()));
  if (!batched) x = b.reshape(x, {1, x.dim(0), x.dim(1), x.dim(2)});
  Patches p("im2col", {x.dim(2), x.dim(3)}, kernel, dilation, padding, stride);
  Dims result{x.dim(0), x.dim(1) * p.elements(), p.count()};
  Value y = b.pad(x, b.constant(x.dtype(), 0), {0, 0, p.padding[0], p.padding[1]}, {0, 0, p.padding[0], p.padding[1]});
  y = spread_out(b, spread_out(b, y, 2, p, 0), 4, p, 1);  // [N, C, kernel h, rows, kernel w, columns]
  return with_batch_of(b, b.reshape(b.transpose(y, {0, 1, 2, 4, 3, 5}), result), batched);
}

Value col2im(Builder& b, Value x, Dims output_size, Dims kernel, Dims dilation, Dims padding, Dims stride) {
  if (is_integer(x.dtype()) || x.dtype() == DType::Pred) refuse_dtype("col2im", x.dtype());
  bool batched = x.rank() == 3;
  if (!batched && x.rank() != 2)
    raise<InvalidArgument>(
        "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, but "
        "got: {}",
        shape_text(x.dims()));
  if (!batched) x = b.reshape(x, {1, x.dim(0), x.dim(1)});
  Patches p("col2im", output_size, kernel, dilation, padding, stride);
  if (x.dim(1) == 0 || x.dim(1) % p.elements() != 0)
    raise<InvalidArgument>(
        "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got input.size(1)={} and "
        "kernel_size=({}).",
        x.dim(1), fmt::join(p.size, ", "));
  if (x.dim(2) != p.count())
    raise<InvalidArgument>(
        "Given output_size=({}), kernel_size=({}), dilation=({}), padding=({}), stride=({}), expected size of input's "
        "dimension 2 to match the "
        "calculated number of sliding blocks {} * {} = {}, but got input.size(2)={}.",
        fmt::join(p.plane, ", "), fmt::join(p.size, ", "), fmt::join(p.dilation, ", "), fmt::join(p.padding, ", "),
        fmt::join(p.stride, ", "), p.counts[0], p.counts[1], p.count(), x.dim(2));
  Value y = convert(b, x, compute_type(x.dtype()));
  y = b.reshape(y, {x.dim(0), x.dim(1) / p.elements(), p.size[0], p.size[1], p.counts[0], p.counts[1]});
  y = drawn_together(b, b.transpose(y, {0, 1, 2, 4, 3, 5}), 4, p, 1);  // [N, C, kernel h, rows, width]
  return with_batch_of(b, convert(b, drawn_together(b, y, 2, p, 0), x.dtype()), batched);
}

// [N, groups, C / groups, ...] with the two exchanged.
Value channel_shuffle(Builder& b, Value x, int64_t groups) {
  if (x.rank() <= 2)
    raise<InvalidArgument>("channel_shuffle expects input with > 2 dims, but got input with sizes {}", shape_text(x.dims()));
  if (groups <= 0)
    raise<InvalidArgument>("Number of groups to divide channels in must be positive. Value of groups:{}", groups);
  if (x.dim(1) % groups != 0)
    raise<InvalidArgument>("Number of channels must be divisible by groups. Got {} channels and {} groups.", x.dim(1),
                           groups);
  Dims split = x.dims(), order = range(x.rank() + 1);
  split[1] /= groups;
  split.insert(split.begin() + 1, groups);
  std::swap(order[1], order[2]);
  return b.reshape(b.transpose(b.reshape(x, split), order), x.dims());
}

constexpr Row kRows[] = {
    row("aten::reflection_pad1d", lower<&pad<Fill::Reflection, 1>>()),
    row("aten::reflection_pad2d", lower<&pad<Fill::Reflection, 2>>()),
    row("aten::reflection_pad3d", lower<&pad<Fill::Reflection, 3>>()),
    row("aten::reflection_pad1d_backward", lower<&pad_backward<Fill::Reflection, 1>>()),
    row("aten::reflection_pad2d_backward", lower<&pad_backward<Fill::Reflection, 2>>()),
    row("aten::reflection_pad3d_backward", lower<&pad_backward<Fill::Reflection, 3>>()),
    row("aten::replication_pad1d", lower<&pad<Fill::Replication, 1>>()),
    row("aten::replication_pad2d", lower<&pad<Fill::Replication, 2>>()),
    row("aten::replication_pad3d", lower<&pad<Fill::Replication, 3>>()),
    row("aten::replication_pad1d_backward", lower<&pad_backward<Fill::Replication, 1>>()),
    row("aten::replication_pad2d_backward", lower<&pad_backward<Fill::Replication, 2>>()),
    row("aten::replication_pad3d_backward", lower<&pad_backward<Fill::Replication, 3>>()),
    row("aten::im2col", lower<&im2col>()),
    row("aten::col2im", lower<&col2im>()),
    row("aten::channel_shuffle", lower<&channel_shuffle>()),
};

}  // namespace

std::span<const Row> padding_rows() { return kRows; }

}  // namespace flambeau::ops
