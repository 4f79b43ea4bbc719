// factors_of: which dimensions of an operation's operands and results belong together.
#include <algorithm>

#include "base/error.h"
#include "plan/analytic/propagate.h"

namespace flambeau::plan {
namespace {

using hlo::Dims;
using hlo::Node;
using hlo::Op;
using hlo::Value;

bool contains(const Dims& dims, int64_t d) { return std::ranges::find(dims, d) != dims.end(); }

class Factors {
 public:
  explicit Factors(const Node& node) : node_(node) {}

  std::vector<Factor> take() {
    switch (node_.op) {
      case Op::Constant: case Op::Iota: case Op::PartitionId: case Op::Return: case Op::Convolution: case Op::ReduceWindow:
      case Op::SelectAndScatter: case Op::Cholesky: case Op::TriangularSolve: case Op::Fft: case Op::While: case Op::Case:
      case Op::If: case Op::ManualComputation: case Op::AllReduce: case Op::AllGather: case Op::ReduceScatter: case Op::AllToAll:
      case Op::CollectivePermute: break;
      case Op::BroadcastInDim: broadcast(); break;
      case Op::Reshape: reshape(); break;
      case Op::Transpose: transpose(); break;
      case Op::Slice: case Op::DynamicSlice: case Op::Pad: of_equal_sizes({0}); break;
      case Op::DynamicUpdateSlice: of_equal_sizes({0, 1}); break;
      case Op::Concatenate: alike({std::get<int64_t>(*node_.find("dimension"))}); break;
      case Op::Sort: alike({std::get<int64_t>(*node_.find("dimension"))}); break;
      case Op::Reverse: alike(dims_of(node_, "dimensions")); break;
      case Op::Gather: gather(); break;
      case Op::Scatter: scatter(); break;
      case Op::DotGeneral: dot(); break;
      case Op::Reduce: reduce(); break;
      case Op::CustomCall:
        if (node_.operands.size() == 1 && node_.results[0].type() == node_.operands[0].type()) alike({});
        break;
      case Op::OptimizationBarrier:
        for (size_t i = 0; i < node_.operands.size(); ++i)
          for (int64_t d = 0; d < node_.operands[i].rank(); ++d) add({in(i, d), out(i, d)});
        break;
      default: alike({}); break;
    }
    return std::move(factors_);
  }

 private:
  Place in(size_t operand, int64_t dim) const { return {node_.operands[operand], static_cast<size_t>(dim), static_cast<int>(operand)}; }
  Place out(size_t result, int64_t dim) const { return {node_.results[result], static_cast<size_t>(dim)}; }
  void add(Factor factor) { factors_.push_back(std::move(factor)); }

  // All operands and results of the result's rank, dimension by dimension.
  void alike(const Dims& except) {
    for (int64_t d = 0; d < node_.results[0].rank(); ++d) {
      if (contains(except, d)) continue;
      Factor factor;
      for (size_t i = 0; i < node_.operands.size(); ++i)
        if (node_.operands[i].rank() == node_.results[0].rank()) factor.push_back(in(i, d));
      for (size_t i = 0; i < node_.results.size(); ++i) factor.push_back(out(i, d));
      add(std::move(factor));
    }
  }

  // Operands by the result's dimensions, where all sizes are equal.
  void of_equal_sizes(std::initializer_list<size_t> operands) {
    for (int64_t d = 0; d < node_.results[0].rank(); ++d) {
      Factor factor;
      for (const size_t i : operands)
        if (node_.operands[i].dim(d) == node_.results[0].dim(d)) factor.push_back(in(i, d));
      if (factor.empty()) continue;
      factor.push_back(out(0, d));
      add(std::move(factor));
    }
  }

  void broadcast() {
    const Dims& dims = dims_of(node_, "broadcast_dimensions");
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto d = static_cast<int64_t>(i);
      if (node_.operands[0].dim(d) == node_.results[0].dim(dims[i])) add({in(0, d), out(0, dims[i])});
    }
  }

  void transpose() {
    const Dims& permutation = dims_of(node_, "permutation");
    for (size_t i = 0; i < permutation.size(); ++i) add({in(0, permutation[i]), out(0, static_cast<int64_t>(i))});
  }

  // Runs of dimensions with equal products belong together; of such a run, the major dimensions do.
  void reshape() {
    const Dims &from = node_.operands[0].dims(), &to = node_.results[0].dims();
    for (size_t a = 0, b = 0; a < from.size() && b < to.size();) {
      if (from[a] == 1) { ++a; continue; }
      if (to[b] == 1) { ++b; continue; }
      add({in(0, static_cast<int64_t>(a)), out(0, static_cast<int64_t>(b))});
      int64_t left = from[a++], right = to[b++];
      while (left != right) {
        if (left < right && a < from.size()) left *= from[a++];
        else if (b < to.size()) right *= to[b++];
        else return;
      }
    }
  }

  void reduce() {
    const Dims& reduced = dims_of(node_, "dimensions");
    const size_t count = node_.results.size();
    for (int64_t d = 0, kept = 0; d < node_.operands[0].rank(); ++d) {
      Factor factor;
      for (size_t i = 0; i < count; ++i) factor.push_back(in(i, d));
      if (!contains(reduced, d)) {
        for (size_t i = 0; i < count; ++i) factor.push_back(out(i, kept));
        ++kept;
      }
      add(std::move(factor));
    }
  }

  void dot() {
    const Dims &lhs_batch = dims_of(node_, "dot_dimension_numbers.lhs_batching_dimensions"),
               &rhs_batch = dims_of(node_, "dot_dimension_numbers.rhs_batching_dimensions"),
               &lhs_contracting = dims_of(node_, "dot_dimension_numbers.lhs_contracting_dimensions"),
               &rhs_contracting = dims_of(node_, "dot_dimension_numbers.rhs_contracting_dimensions");
    int64_t result = 0;
    for (size_t i = 0; i < lhs_batch.size(); ++i) add({in(0, lhs_batch[i]), in(1, rhs_batch[i]), out(0, result++)});
    for (int64_t d = 0; d < node_.operands[0].rank(); ++d)
      if (!contains(lhs_batch, d) && !contains(lhs_contracting, d)) add({in(0, d), out(0, result++)});
    for (int64_t d = 0; d < node_.operands[1].rank(); ++d)
      if (!contains(rhs_batch, d) && !contains(rhs_contracting, d)) add({in(1, d), out(0, result++)});
    for (size_t i = 0; i < lhs_contracting.size(); ++i) add({in(0, lhs_contracting[i]), in(1, rhs_contracting[i])});
  }

  void gather() {
    const Dims &offsets = dims_of(node_, "dimension_numbers.offset_dims"),
               &collapsed = dims_of(node_, "dimension_numbers.collapsed_slice_dims"),
               &batching = dims_of(node_, "dimension_numbers.operand_batching_dims"), &sizes = dims_of(node_, "slice_sizes");
    const int64_t vector_dim = std::get<int64_t>(*node_.find("dimension_numbers.index_vector_dim"));
    size_t window = 0;
    for (int64_t d = 0; d < node_.operands[0].rank(); ++d) {
      if (contains(collapsed, d) || contains(batching, d)) continue;
      const int64_t result = offsets[window++];
      if (sizes[static_cast<size_t>(d)] == node_.operands[0].dim(d)) add({in(0, d), out(0, result)});
    }
    indexed(vector_dim, offsets, batching, dims_of(node_, "dimension_numbers.start_indices_batching_dims"),
            [&](int64_t d) { return out(0, d); }, node_.results[0].rank());
  }

  void scatter() {
    const Dims &windows = dims_of(node_, "scatter_dimension_numbers.update_window_dims"),
               &inserted = dims_of(node_, "scatter_dimension_numbers.inserted_window_dims"),
               &batching = dims_of(node_, "scatter_dimension_numbers.input_batching_dims");
    const int64_t vector_dim = std::get<int64_t>(*node_.find("scatter_dimension_numbers.index_vector_dim"));
    size_t window = 0;
    for (int64_t d = 0; d < node_.operands[0].rank(); ++d) {
      Factor factor{in(0, d), out(0, d)};
      if (!contains(inserted, d) && !contains(batching, d)) {
        const int64_t update = windows[window++];
        if (node_.operands[2].dim(update) != node_.operands[0].dim(d)) continue;
        factor.push_back(in(2, update));
        add(std::move(factor));
      }
    }
    indexed(vector_dim, windows, batching, dims_of(node_, "scatter_dimension_numbers.scatter_indices_batching_dims"),
            [&](int64_t d) { return in(2, d); }, node_.operands[2].rank());
  }

  // Dimensions of operand 1, the indices, but the one of the index vector, are those of `other` that are no windows, in order.
  template <class Other>
  void indexed(int64_t vector_dim, const Dims& windows, const Dims& batching, const Dims& indices_batching,
               const Other& other, int64_t rank) {
    int64_t d = 0;
    for (int64_t result = 0; result < rank; ++result) {
      if (contains(windows, result)) continue;
      if (d == vector_dim) ++d;
      Factor factor{in(1, d), other(result)};
      if (const auto at = std::ranges::find(indices_batching, d); at != indices_batching.end()) {
        const int64_t operand = batching[static_cast<size_t>(at - indices_batching.begin())];
        factor.push_back(in(0, operand));
        if (node_.op == Op::Scatter) factor.push_back(out(0, operand));
      }
      add(std::move(factor));
      ++d;
    }
  }

  const Node& node_;
  std::vector<Factor> factors_;
};

}  // namespace

std::vector<Factor> factors_of(const Node& node) { return Factors(node).take(); }

const Dims& dims_of(const Node& node, std::string_view attribute) {
  const auto* value = node.find(attribute);
  const auto* dims = value ? std::get_if<Dims>(value) : nullptr;
  FLAMBEAU_CHECK(dims, "an operation has the attributes that the builder gives it");
  return *dims;
}

}  // namespace flambeau::plan
