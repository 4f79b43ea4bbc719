// Matrix products. float16 and bfloat16 multiply into float32 and are rounded once, after the bias is added.
#include <algorithm>

#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using hlo::DotDims;

void require_rank(std::string_view name, Value x, int64_t rank, std::string_view kind) {
  if (x.rank() != rank)
    raise<InvalidArgument>("{} must be a {}, got a tensor of shape {}", name, kind, shape_text(x.dims()));
}

void require_same_dtype(Value x, Value y, std::string_view what = "expected m1 and m2 to have the same dtype") {
  if (x.dtype() != y.dtype())
    raise<InvalidArgument>("{}, but got: {} != {}", what, torch_name(x.dtype()), torch_name(y.dtype()));
  if (x.dtype() == DType::Pred) raise<NotImplemented>("\"addmm_impl_cpu_\" not implemented for 'Bool'");
}

// The product in the type that it accumulates in. DotDims: batch of both, then what is contracted of both.
Value product(Builder& b, Value x, Value y, const DotDims& dims) {
  return b.dot_general(x, y, dims, compute_type(x.dtype()));
}

Value matrices(Builder& b, Value x, Value y) {
  require_rank("self", x, 2, "matrix");
  require_rank("mat2", y, 2, "matrix");
  if (x.dim(1) != y.dim(0))
    raise<InvalidArgument>("mat1 and mat2 shapes cannot be multiplied ({} and {})", matrix_text(x.dims()),
                           matrix_text(y.dims()));
  require_same_dtype(x, y);
  return product(b, x, y, {{}, {}, {1}, {0}});
}

Value batches(Builder& b, Value x, Value y) {
  require_rank("batch1", x, 3, "3D tensor");
  require_rank("batch2", y, 3, "3D tensor");
  if (x.dim(0) != y.dim(0) || x.dim(2) != y.dim(1))
    raise<InvalidArgument>("Expected size for first two dimensions of batch2 tensor to be: [{}, {}] but got: [{}, {}].",
                           x.dim(0), x.dim(2), y.dim(0), y.dim(1));
  require_same_dtype(x, y, "expected scalar types of batch1 and batch2 to be the same");
  return product(b, x, y, {{0}, {0}, {2}, {1}});
}

// beta * self + alpha * product, in the type of `product`, then as `out`. beta = 0 ignores self, also its NaNs.
Value combine(Builder& b, Value self, Value product, const Scalar& beta, const Scalar& alpha, DType out) {
  auto scaled = [&](Value x, const Scalar& s) { return s.is(1) ? x : b.multiply(x, scalar_like(b, x, s)); };
  Value result = scaled(product, alpha);
  if (!beta.is(0)) {
    if (broadcast_dims(self.dims(), product.dims()) != product.dims())
      raise<InvalidArgument>(
          "The expanded size of the tensor must match the existing size.  Target sizes: {}.  Tensor sizes: {}",
          shape_text(product.dims()), shape_text(self.dims()));
    Value bias = scaled(convert(b, self, product.dtype()), beta);
    if (!beta.known) {
      Value none = compare_with(b, scalar_like(b, bias, beta), 0, hlo::Comparison::EQ);
      bias = b.select(none, zeros(b, bias.dtype(), bias.dims()), bias);
    }
    result = b.add(b.broadcast(bias, product.dims()), result);
  }
  return convert(b, result, out);
}

void require_self_dtype(Value self, DType dtype) {
  if (self.dtype() != dtype)
    raise<InvalidArgument>("self and mat2 must have the same dtype, but got {} and {}", torch_name(self.dtype()),
                           torch_name(dtype));
}

DType checked_out(Value x, DType out) {
  if (out != x.dtype() && !(compute_type(x.dtype()) == DType::F32 && out == DType::F32))
    raise<InvalidArgument>("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  return out;
}

Value mm(Builder& b, Value x, Value y) { return convert(b, matrices(b, x, y), x.dtype()); }
Value mm_dtype(Builder& b, Value x, Value y, DType out) { return convert(b, matrices(b, x, y), checked_out(x, out)); }
Value bmm(Builder& b, Value x, Value y) { return convert(b, batches(b, x, y), x.dtype()); }
Value bmm_dtype(Builder& b, Value x, Value y, DType out) { return convert(b, batches(b, x, y), checked_out(x, out)); }

Value addmm(Builder& b, Value self, Value x, Value y, const Scalar& beta, const Scalar& alpha) {
  Value p = matrices(b, x, y);
  require_self_dtype(self, x.dtype());
  return combine(b, self, p, beta, alpha, x.dtype());
}
Value addmm_dtype(Builder& b, Value self, Value x, Value y, DType out, const Scalar& beta, const Scalar& alpha) {
  return combine(b, self, matrices(b, x, y), beta, alpha, checked_out(x, out));
}

Value baddbmm(Builder& b, Value self, Value x, Value y, const Scalar& beta, const Scalar& alpha) {
  Value p = batches(b, x, y);
  require_self_dtype(self, x.dtype());
  return combine(b, self, p, beta, alpha, x.dtype());
}
Value baddbmm_dtype(Builder& b, Value self, Value x, Value y, DType out, const Scalar& beta, const Scalar& alpha) {
  return combine(b, self, batches(b, x, y), beta, alpha, checked_out(x, out));
}

// The batch is summed too: one contraction over both.
Value addbmm(Builder& b, Value self, Value x, Value y, const Scalar& beta, const Scalar& alpha) {
  require_rank("batch1", x, 3, "3D tensor");
  require_rank("batch2", y, 3, "3D tensor");
  if (x.dim(0) != y.dim(0) || x.dim(2) != y.dim(1))
    raise<InvalidArgument>("batch1 and batch2 must have same number of batches and matching inner sizes, got {} and {}",
                           shape_text(x.dims()), shape_text(y.dims()));
  require_same_dtype(x, y);
  require_self_dtype(self, x.dtype());
  Value p = product(b, x, y, {{}, {}, {0, 2}, {0, 1}});
  return combine(b, self, p, beta, alpha, x.dtype());
}

Value matrix_vector(Builder& b, std::string_view input, Value matrix, Value vector) {
  if (matrix.rank() != 2 || vector.rank() != 1)
    raise<InvalidArgument>("vector + matrix @ vector expected, got {}, {}, {}", input, matrix.rank(), vector.rank());
  if (matrix.dim(1) != vector.dim(0))
    raise<InvalidArgument>("size mismatch, got input ({}), mat ({}), vec ({})", input, matrix_text(matrix.dims()),
                           vector.dim(0));
  require_same_dtype(matrix, vector, "expected mat and vec to have the same dtype");
  return product(b, matrix, vector, {{}, {}, {1}, {0}});
}

Value mv(Builder& b, Value matrix, Value vector) {
  std::string rows = matrix.rank() > 0 ? fmt::to_string(matrix.dim(0)) : "0";
  return convert(b, matrix_vector(b, rows, matrix, vector), matrix.dtype());
}

Value addmv(Builder& b, Value self, Value matrix, Value vector, const Scalar& beta, const Scalar& alpha) {
  Value p = matrix_vector(b, matrix_text(self.dims()), matrix, vector);
  require_self_dtype(self, matrix.dtype());
  return combine(b, self, p, beta, alpha, matrix.dtype());
}

Value addr(Builder& b, Value self, Value x, Value y, const Scalar& beta, const Scalar& alpha) {
  if (x.rank() != 1 || y.rank() != 1)
    raise<InvalidArgument>("addr: Expected 1-D argument vec1 and vec2, but got {}-D and {}-D", x.rank(), y.rank());
  DType out = result_type({Operand{self}, Operand{x}, Operand{y}});
  DType t = compute_type(out);
  Dims dims{x.dim(0), y.dim(0)};
  if (out == DType::Pred) {
    Value outer = b.logical_and(along(b, x, dims, 0), along(b, y, dims, 1));
    if (alpha.is(0)) outer = zeros(b, out, dims);
    return beta.is(0) ? outer : b.logical_or(outer, b.broadcast(self, dims));
  }
  Value outer = b.multiply(along(b, convert(b, x, t), dims, 0), along(b, convert(b, y, t), dims, 1));
  return combine(b, self, outer, beta, alpha, out);
}

Value inner_product(Builder& b, std::string_view op, Value x, Value y) {
  if (x.rank() != 1 || y.rank() != 1)
    raise<InvalidArgument>("1D tensors expected, but got {}D and {}D tensors", x.rank(), y.rank());
  require_same_dtype(x, y, fmt::format("{} : expected both vectors to have same dtype", op));
  if (x.dim(0) != y.dim(0))
    raise<InvalidArgument>(
        "inconsistent tensor size, expected tensor [{}] and src [{}] to have the same number of elements, but "
        "got {} and {} elements respectively",
        x.dim(0), y.dim(0), x.dim(0), y.dim(0));
  return convert(b, product(b, x, y, {{}, {}, {0}, {0}}), x.dtype());
}

Value dot(Builder& b, Value x, Value y) { return inner_product(b, "dot", x, y); }
Value vdot(Builder& b, Value x, Value y) {
  if (is_complex(x.dtype())) x = b.binary(hlo::Op::Complex, b.real(x), b.negate(b.imag(x)));
  return inner_product(b, "vdot", x, y);
}

// ---- contractions -----------------------------------------------------------------------------------------------------------

// One operand of a contraction: its contracted dimensions in the order of the other's, and those that are left.
struct Side {
  Value value;
  Dims contracted, left;

  Side(Value x, const Dims& dims) : value(x) {
    for (int64_t d : dims) {
      contracted.push_back(wrap_dim(d, x.rank()));
      if (std::count(contracted.begin(), contracted.end(), contracted.back()) > 1)
        raise<InvalidArgument>("[dot_general] expected different dimensions, got {} twice", d);
    }
    for (int64_t d = 0; d < x.rank(); ++d)
      if (std::find(contracted.begin(), contracted.end(), d) == contracted.end()) left.push_back(d);
  }

  Dims sizes(const Dims& dims) const {
    Dims sizes;
    for (int64_t d : dims) sizes.push_back(value.dim(d));
    return sizes;
  }

  // Whether the contracted dimensions stand together, in order, in front of or behind the others: then it is a matrix in memory.
  bool is_matrix() const {
    for (size_t i = 1; i < contracted.size(); ++i)
      if (contracted[i] != contracted[i - 1] + 1) return false;
    return !contracted.empty() && !left.empty() && (contracted.front() == 0 || contracted.back() == value.rank() - 1);
  }

  Side matrix(Builder& b) const {
    const bool front = contracted.front() == 0;
    const int64_t inner = hlo::Type{value.dtype(), sizes(contracted)}.elements(), outer = hlo::Type{value.dtype(), sizes(left)}.elements();
    return {b.reshape(value, front ? Dims{inner, outer} : Dims{outer, inner}), {front ? 0 : 1}};
  }
};

// x and y contracted over x_dims[i] of x and y_dims[i] of y; the result has what is left of x, then what is left of y. float16
// and bfloat16 accumulate in float32 and give their own type, or float32 without having been rounded.
Value dot_general(Builder& b, Value x, Value y, const Dims& x_dims, const Dims& y_dims, std::optional<DType> out) {
  Side left(x, x_dims), right(y, y_dims);
  if (left.sizes(left.contracted) != right.sizes(right.contracted))
    raise<InvalidArgument>("[dot_general] expected contracted dimensions of equal sizes, got {} of {} and {} of {}", shape_text(x_dims),
                           shape_text(x.dims()), shape_text(y_dims), shape_text(y.dims()));
  require_same_dtype(x, y);
  Dims dims = left.sizes(left.left), rest = right.sizes(right.left);
  dims.insert(dims.end(), rest.begin(), rest.end());
  // Dimensions that a mesh splits must stay apart. Without one, a product of matrices is what CPUs are best at.
  if (!b.graph().mesh() && left.is_matrix() && right.is_matrix()) {
    left = left.matrix(b);
    right = right.matrix(b);
  }
  const DType wanted = checked_out(x, out.value_or(x.dtype()));
  // Where a mesh splits what is contracted, each device's part, which it accumulates in float32, is rounded before the parts are
  // added up over the devices: half of the bytes are sent, as by tensor parallelism in PyTorch.
  const DType part = b.graph().mesh() ? wanted : compute_type(x.dtype());
  const Value result = b.dot_general(left.value, right.value, {{}, {}, left.contracted, right.contracted}, part);
  return convert(b, b.reshape(result, dims), wanted);
}

constexpr Row kRows[] = {
    row("aten::mm", lower<&mm>()),           row("aten::mm.dtype", lower<&mm_dtype>()),
    row("aten::bmm", lower<&bmm>()),         row("aten::bmm.dtype", lower<&bmm_dtype>()),
    row("aten::addmm", lower<&addmm>()),     row("aten::addmm.dtype", lower<&addmm_dtype>()),
    row("aten::baddbmm", lower<&baddbmm>()), row("aten::baddbmm.dtype", lower<&baddbmm_dtype>()),
    row("aten::addbmm", lower<&addbmm>()),   row("aten::mv", lower<&mv>()),
    row("aten::addmv", lower<&addmv>()),     row("aten::addr", lower<&addr>()),
    row("aten::dot", lower<&dot>()),         row("aten::vdot", lower<&vdot>()),
    own_row("flambeau::dot_general", lower<&dot_general>(),
            "(Tensor x, Tensor y, int[] x_dims, int[] y_dims, ScalarType? dtype=None) -> Tensor"),
};

}  // namespace

std::span<const Row> matmul_rows() { return kRows; }

}  // namespace flambeau::ops
