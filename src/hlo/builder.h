// Builds graphs: one method a StableHLO operation, with its types inferred and checked.
//
// An operand of the wrong type raises BuilderRefusal "[op] expected ..., got ...", with the site (see set_site) in front when
// there is one. Element-wise operations take operands of equal types; broadcasting and conversion are asked for by name.
// Definitions: the StableHLO specification, https://openxla.org/stablehlo/spec.
#pragma once

#include <array>
#include <complex>
#include <functional>
#include <initializer_list>

#include "base/error.h"
#include "hlo/graph.h"

namespace flambeau::hlo {

// An operation that StableHLO does not have for such operands.
class BuilderRefusal : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

enum class Comparison { EQ, NE, GE, GT, LE, LT };
enum class Precision { Default, High, Highest };
// What a reduction combines with. Argument pairs and other bodies go through the general forms.
enum class Reduction { Sum, Product, Max, Min, And, Or };

struct DotDims {
  Dims lhs_batch = {}, rhs_batch = {}, lhs_contracting = {}, rhs_contracting = {};
};
struct GatherDims {
  Dims offset_dims = {}, collapsed_slice_dims = {}, operand_batching_dims = {}, start_indices_batching_dims = {}, start_index_map = {};
  int64_t index_vector_dim = 0;
};
struct ScatterDims {
  Dims update_window_dims = {}, inserted_window_dims = {}, input_batching_dims = {}, scatter_indices_batching_dims = {},
       scatter_dims_to_operand_dims = {};
  int64_t index_vector_dim = 0;
};
struct ConvolutionDims {
  int64_t input_batch = 0, input_feature = 1;
  Dims input_spatial = {};
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  Dims kernel_spatial = {};
  int64_t output_batch = 0, output_feature = 1;
  Dims output_spatial = {};
};
struct Window {  // one entry a dimension (spatial dimension for convolution); empty: 1, no padding, not reversed
  Dims size = {}, strides = {}, base_dilations = {}, window_dilations = {}, padding_low = {}, padding_high = {};
  std::vector<bool> reversal = {};
};
enum class FftKind { FFT, IFFT, RFFT, IRFFT };

class Builder {
 public:
  // Appends to `graph`, which must outlive the builder.
  explicit Builder(Graph& graph) : graph_(&graph), scopes_{&graph.body()} {}

  Graph& graph() { return *graph_; }
  // Nodes built from now on carry this text (op name, user's line).
  void set_site(std::string site) { site_ = std::move(site); }

  // -- constants ------------------------------------------------------------------------------------------------------
  Value constant(DType dtype, double value, Dims dims = {});       // every element; integers must be exact
  Value constant(DType dtype, int64_t value, Dims dims = {});
  Value constant(DType dtype, int value, Dims dims = {}) { return constant(dtype, int64_t{value}, std::move(dims)); }
  Value constant(DType dtype, std::complex<double> value, Dims dims = {});
  Value literal(Type type, const void* elements);                  // dense row-major
  Value index_vector(std::span<const int64_t> values, DType dtype = DType::S64);
  // Bounds of a type: -inf / +inf for floats, the least / greatest integer, false / true.
  Value lowest(DType dtype, Dims dims = {});
  Value highest(DType dtype, Dims dims = {});
  Value iota(Type type, int64_t dimension);

  // -- element-wise ---------------------------------------------------------------------------------------------------
  Value unary(Op op, Value x);  // any one-operand Op but Convert and BitcastConvert
  Value binary(Op op, Value x, Value y);  // on Pred + and max become or, * and min become and
  Value abs(Value x) { return unary(Op::Abs, x); }
  Value ceil(Value x) { return unary(Op::Ceil, x); }
  Value cos(Value x) { return unary(Op::Cosine, x); }
  Value exp(Value x) { return unary(Op::Exponential, x); }
  Value expm1(Value x) { return unary(Op::ExponentialMinusOne, x); }
  Value floor(Value x) { return unary(Op::Floor, x); }
  Value is_finite(Value x) { return unary(Op::IsFinite, x); }  // -> Pred
  Value log(Value x) { return unary(Op::Log, x); }
  Value log1p(Value x) { return unary(Op::LogPlusOne, x); }
  Value logistic(Value x) { return unary(Op::Logistic, x); }
  Value negate(Value x) { return unary(Op::Negate, x); }
  Value logical_not(Value x) { return unary(Op::Not, x); }
  Value rsqrt(Value x) { return unary(Op::Rsqrt, x); }
  Value sign(Value x) { return unary(Op::Sign, x); }
  Value sin(Value x) { return unary(Op::Sine, x); }
  Value sqrt(Value x) { return unary(Op::Sqrt, x); }
  Value tanh(Value x) { return unary(Op::Tanh, x); }
  Value real(Value x) { return unary(Op::Real, x); }
  Value imag(Value x) { return unary(Op::Imag, x); }
  Value add(Value x, Value y) { return binary(Op::Add, x, y); }
  Value subtract(Value x, Value y) { return binary(Op::Subtract, x, y); }
  Value multiply(Value x, Value y) { return binary(Op::Multiply, x, y); }
  Value divide(Value x, Value y) { return binary(Op::Divide, x, y); }
  Value remainder(Value x, Value y) { return binary(Op::Remainder, x, y); }
  Value power(Value x, Value y) { return binary(Op::Power, x, y); }
  Value maximum(Value x, Value y) { return binary(Op::Maximum, x, y); }
  Value minimum(Value x, Value y) { return binary(Op::Minimum, x, y); }
  Value logical_and(Value x, Value y) { return binary(Op::And, x, y); }  // bitwise for integers
  Value logical_or(Value x, Value y) { return binary(Op::Or, x, y); }
  Value logical_xor(Value x, Value y) { return binary(Op::Xor, x, y); }
  Value shift_left(Value x, Value y) { return binary(Op::ShiftLeft, x, y); }
  Value shift_right_logical(Value x, Value y) { return binary(Op::ShiftRightLogical, x, y); }
  Value shift_right_arithmetic(Value x, Value y) { return binary(Op::ShiftRightArithmetic, x, y); }
  Value atan2(Value x, Value y) { return binary(Op::Atan2, x, y); }
  Value complex(Value re, Value im) { return binary(Op::Complex, re, im); }
  Value compare(Value x, Value y, Comparison direction);  // -> Pred; floats as IEEE, integers by sign, Pred as unsigned
  Value select(Value condition, Value on_true, Value on_false);
  Value clamp(Value low, Value x, Value high);
  Value convert(Value x, DType dtype);          // nothing when it has it already; as StableHLO: floats truncate towards zero
  Value bitcast_convert(Value x, DType dtype);  // same element size, or the last dimension splits / merges

  // -- movement -------------------------------------------------------------------------------------------------------
  // dims[i] of x becomes dimension broadcast_dims[i] of the result.
  Value broadcast_in_dim(Value x, Dims dims, Dims broadcast_dims);
  // NumPy's rule: x's dimensions are the trailing ones of `dims`; size 1 stretches. Nothing when equal.
  Value broadcast(Value x, Dims dims);
  Value reshape(Value x, Dims dims);  // nothing when equal
  Value transpose(Value x, Dims permutation);
  Value slice(Value x, Dims start, Dims limit, Dims strides = {});
  Value slice_dim(Value x, int64_t dimension, int64_t start, int64_t limit, int64_t stride = 1);
  Value dynamic_slice(Value x, std::span<const Value> starts, Dims sizes);
  Value dynamic_update_slice(Value x, Value update, std::span<const Value> starts);
  Value pad(Value x, Value padding_value, Dims low, Dims high, Dims interior = {});  // low and high may be negative
  Value concatenate(std::span<const Value> xs, int64_t dimension);
  Value reverse(Value x, Dims dimensions);
  Value gather(Value x, Value start_indices, const GatherDims& dims, Dims slice_sizes, bool indices_are_sorted = false);
  // Body: (old, update) -> new. Replace with `update`, or combine with a Reduction.
  Value scatter(Value x, Value indices, Value updates, const ScatterDims& dims, std::optional<Reduction> combine,
                bool indices_are_sorted = false, bool unique_indices = false);

  // -- regions --------------------------------------------------------------------------------------------------------
  using Body = std::function<std::vector<Value>(Builder&, std::span<const Value>)>;
  // Sorts all operands alike along a dimension. `before(b, {x0, y0, x1, y1, ...}) -> {Pred}` on rank-0 values.
  std::vector<Value> sort(std::span<const Value> xs, int64_t dimension, bool stable, const Body& before);
  // Reduces over `dimensions`. A Sum, Product, ... starts from its neutral element.
  Value reduce(Value x, Dims dimensions, Reduction kind);
  // `body(b, {acc0.., x0..}) -> {acc0..}` on rank-0 values.
  std::vector<Value> reduce(std::span<const Value> xs, std::span<const Value> init, Dims dimensions, const Body& body);
  std::vector<Value> reduce_window(std::span<const Value> xs, std::span<const Value> init, const Window& window, const Body& body);
  Value reduce_window(Value x, const Window& window, Reduction kind);
  // `select` on (a, b) -> Pred, `combine` sums.
  Value select_and_scatter(Value x, Value source, Value init, const Window& window, Comparison select);
  // While `condition(b, carry) -> {Pred}` holds, carry = body(b, carry).
  std::vector<Value> while_loop(std::span<const Value> init, const Body& condition, const Body& body);
  // for i in 0..trip_count: carry = body(b, {i, carry...}); i is a rank-0 S32. The body may use outer values.
  std::vector<Value> for_loop(int64_t trip_count, std::span<const Value> init, const Body& body);
  using Thunk = std::function<std::vector<Value>(Builder&)>;
  std::vector<Value> if_else(Value condition, const Thunk& on_true, const Thunk& on_false);
  std::vector<Value> switch_case(Value index, std::span<const Thunk> branches);

  // -- contractions ---------------------------------------------------------------------------------------------------
  // `result` asks for another element type (bf16 x bf16 -> f32). The result of dot_general: batch dims, then lhs's free dims, then rhs's.
  Value dot_general(Value lhs, Value rhs, const DotDims& dims, std::optional<DType> result = {},
                    std::optional<Precision> precision = {});
  Value convolution(Value input, Value kernel, const ConvolutionDims& dims, const Window& window, int64_t feature_groups = 1,
                    int64_t batch_groups = 1, std::optional<DType> result = {}, std::optional<Precision> precision = {});
  Value cholesky(Value x, bool lower);
  Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal, bool transpose_a);
  Value fft(Value x, FftKind kind, Dims length);

  // -- calls and partitioning -----------------------------------------------------------------------------------------
  struct CustomCall {
    std::string target = {};
    std::vector<Type> results = {};
    // FFI attributes (api_version 4): printed as the backend_config dictionary.
    std::vector<Attribute> attributes = {};
    std::string opaque = {};  // when not empty, instead, with
    int opaque_version = 2;   // this api_version, 1 or 2
    bool has_side_effect = false;
    std::vector<std::pair<int64_t, int64_t>> aliases = {};  // (result, operand) that share a buffer
  };
  std::vector<Value> custom_call(std::span<const Value> operands, const CustomCall& call);
  // `x`, put into another kind of memory of its device: "pinned_host", or back to "device". For targets with host memory.
  Value in_memory(Value x, const std::string& kind);
  std::vector<Value> optimization_barrier(std::span<const Value> xs);
  Value sharding_constraint(Value x, const Sharding& sharding);
  // The body sees the local part of each operand along `manual_axes`, and gives local parts of the results.
  std::vector<Value> manual_computation(std::span<const Value> operands, std::span<const Sharding> in, std::span<const Sharding> out,
                                        std::vector<std::string> manual_axes, const Body& body);
  // Collectives inside a manual computation. `groups`: device ids, one row a group, all of one length.
  Value all_reduce(Value x, Reduction kind, const std::vector<Dims>& groups, int64_t channel);
  Value all_gather(Value x, int64_t dimension, const std::vector<Dims>& groups, int64_t channel);
  Value reduce_scatter(Value x, Reduction kind, int64_t dimension, const std::vector<Dims>& groups, int64_t channel);
  Value all_to_all(Value x, int64_t split_dimension, int64_t concat_dimension, const std::vector<Dims>& groups, int64_t channel);
  Value collective_permute(Value x, const std::vector<std::array<int64_t, 2>>& source_target, int64_t channel);
  Value partition_id();  // rank-0 U32

 private:
  // What the methods are made of (builder.cc). They validate, then emit; nothing is appended when they raise.
  class Regions;  // regions under construction
  [[noreturn]] void fail(Op op, std::string_view text) const;
  void check_operands(Op op, std::span<const Value> operands) const;
  void check_operands(Op op, std::initializer_list<Value> operands) const;
  std::vector<Value> emit(Op op, std::vector<Value> operands, std::vector<Type> results, std::vector<Attribute> attributes = {},
                          std::vector<std::unique_ptr<Block>> regions = {});
  Value emit(Op op, std::vector<Value> operands, Type result, std::vector<Attribute> attributes = {});
  Value emit_constant(Literal literal);
  Value combine(Reduction kind, Value x, Value y);
  Body combine_body(Reduction kind) const;
  Value neutral(Op op, Reduction kind, DType dtype);
  void check_reduction(Op op, Reduction kind, DType dtype) const;
  void check_axis(Op op, std::string_view what, int64_t axis, int64_t rank) const;
  void check_axes(Op op, std::string_view what, const Dims& axes, int64_t rank) const;  // in range, each once
  void check_starts(Op op, Value x, std::span<const Value> starts) const;
  Window complete(Op op, Window window, size_t rank) const;  // defaults filled in, sizes checked
  Dims window_result(Op op, const Dims& input, const Window& window) const;
  Sharding check_sharding(Op op, const Sharding& sharding, const Type& type) const;
  int64_t check_groups(Op op, const std::vector<Dims>& groups) const;  // -> size of a group
  std::vector<Attribute> collective_attributes(const std::vector<Dims>& groups, int64_t channel) const;
  static Attribute precision_attribute(DType dtype, std::optional<Precision> precision);

  Graph* graph_;
  std::vector<Block*> scopes_;  // the blocks whose values are visible; nodes are appended to the last
  std::string site_;
};

}  // namespace flambeau::hlo
