// An order among values of a program that nothing else orders.
#include "ops/tables.h"

namespace flambeau::ops {

namespace {

std::vector<Value> optimization_barrier(Builder& b, const std::vector<Value>& values) { return b.optimization_barrier(values); }

constexpr Row kRows[] = {
    own_row("flambeau::optimization_barrier", lower<&optimization_barrier>(), "(Tensor[] tensors) -> Tensor[]"),
};

}  // namespace

std::span<const Row> order_rows() { return kRows; }

}  // namespace flambeau::ops
