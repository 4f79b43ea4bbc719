#include "hlo/builder.h"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "hlo/elements.h"

namespace flambeau::hlo {
namespace {

// A graph with parameters of the types that the cases need.
struct Fixture {
  Graph g;
  Builder b{g};
  Value p(DType dtype, Dims dims) { return g.add_parameter({dtype, std::move(dims)}); }
  Value f(Dims dims) { return p(DType::F32, std::move(dims)); }
  Value i(Dims dims) { return p(DType::S32, std::move(dims)); }
  Value c(Dims dims) { return p(DType::C64, std::move(dims)); }
  Value pred(Dims dims = {}) { return p(DType::Pred, std::move(dims)); }
};

struct ErrorCase {
  std::function<void(Fixture&)> make;
  std::string message;
};

void expect_errors(std::span<const ErrorCase> cases) {
  for (const ErrorCase& c : cases) {
    Fixture t;
    try {
      c.make(t);
      ADD_FAILURE() << "no error, expected: " << c.message;
    } catch (const InvalidArgument& e) {
      EXPECT_EQ(e.what(), c.message);
    }
    for (const auto& node : t.g.body().nodes)
      EXPECT_EQ(node->op, Op::Constant) << "a failed call leaves no operation behind";
  }
}

const Builder::Body kFirst = [](Builder&, std::span<const Value> p) { return std::vector{p[0]}; };

TEST(BuilderErrors, Operands) {
  const ErrorCase cases[] = {
      {[](Fixture& t) { t.b.add(t.f({2}), Value()); }, "[stablehlo.add] expected a value as operand 1, got none"},
      {[](Fixture& t) {
         Graph other;
         t.b.abs(other.add_parameter({DType::F32, {}}));
       },
       "[stablehlo.abs] expected values of one graph, got one of another graph as operand 0"},
      {[](Fixture& t) {
         t.b.set_site("aten::add (train.py:12)");
         t.b.add(t.f({2}), t.f({3}));
       },
       "aten::add (train.py:12): [stablehlo.add] expected operands of one type, got tensor<2xf32> and tensor<3xf32>"},
      {[](Fixture& t) {
         Value inner;
         try {
           t.b.for_loop(1, std::array{t.f({2})},
                        [&](Builder&, std::span<const Value> p) { return inner = p[1], std::vector{p[0]}; });
         } catch (const InvalidArgument&) {  // yields the counter
         }
         t.b.abs(inner);
       },
       "[stablehlo.abs] expected values that are visible here, got operand 0 (tensor<2xf32>) from an operation that was "
       "removed"},
      {[](Fixture& t) {
         const Value x = t.f({2});
         Value inner;
         t.b.if_else(
             t.pred(), [&](Builder& b) { return std::vector{inner = b.abs(x)}; },
             [&](Builder& b) { return std::vector{b.add(inner, x)}; });
       },
       "[stablehlo.add] expected values that are visible here, got operand 0 (tensor<2xf32>) from inside another region"},
  };
  expect_errors(cases);
}

TEST(BuilderErrors, ElementWise) {
  const ErrorCase cases[] = {
      {[](Fixture& t) { t.b.unary(Op::Convert, t.f({2})); },
       "[stablehlo.convert] expected an operation of one operand; call this one's own method"},
      {[](Fixture& t) { t.b.binary(Op::Compare, t.f({2}), t.f({2})); },
       "[stablehlo.compare] expected an operation of two operands; call this one's own method"},
      {[](Fixture& t) { t.b.abs(t.pred()); },
       "[stablehlo.abs] expected signed integer, float or complex elements, got tensor<i1>"},
      {[](Fixture& t) { t.b.exp(t.i({2})); },
       "[stablehlo.exponential] expected float or complex elements, got tensor<2xi32>"},
      {[](Fixture& t) { t.b.floor(t.c({2})); }, "[stablehlo.floor] expected float elements, got tensor<2xcomplex<f32>>"},
      {[](Fixture& t) { t.b.logical_not(t.f({})); }, "[stablehlo.not] expected i1 or integer elements, got tensor<f32>"},
      {[](Fixture& t) { t.b.subtract(t.pred(), t.pred()); },
       "[stablehlo.subtract] expected integer, float or complex elements, got tensor<i1>"},
      {[](Fixture& t) { t.b.maximum(t.c({}), t.c({})); },
       "[stablehlo.maximum] expected i1, integer or float elements, got tensor<complex<f32>>"},
      {[](Fixture& t) { t.b.shift_left(t.f({}), t.f({})); },
       "[stablehlo.shift_left] expected integer elements, got tensor<f32>"},
      {[](Fixture& t) { t.b.complex(t.p(DType::BF16, {}), t.p(DType::BF16, {})); },
       "[stablehlo.complex] expected f32 or f64 parts, got tensor<bf16>"},
      {[](Fixture& t) { t.b.compare(t.f({2}), t.i({2}), Comparison::EQ); },
       "[stablehlo.compare] expected operands of one type, got tensor<2xf32> and tensor<2xi32>"},
      {[](Fixture& t) { t.b.compare(t.c({}), t.c({}), Comparison::LT); },
       "[stablehlo.compare] expected EQ or NE for complex elements, got LT"},
      {[](Fixture& t) { t.b.select(t.pred(), t.f({2}), t.f({3})); },
       "[stablehlo.select] expected alternatives of one type, got tensor<2xf32> and tensor<3xf32>"},
      {[](Fixture& t) { t.b.select(t.pred({3}), t.f({2}), t.f({2})); },
       "[stablehlo.select] expected a condition of type tensor<i1> or tensor<2xi1>, got tensor<3xi1>"},
      {[](Fixture& t) { t.b.clamp(t.i({}), t.f({2}), t.f({})); },
       "[stablehlo.clamp] expected bounds of type tensor<f32> or tensor<2xf32>, got tensor<i32>"},
      {[](Fixture& t) { t.b.clamp(t.c({}), t.c({}), t.c({})); },
       "[stablehlo.clamp] expected elements with an order, got tensor<complex<f32>>"},
      {[](Fixture& t) { t.b.bitcast_convert(t.pred(), DType::U8); },
       "[stablehlo.bitcast_convert] expected two number types, both complex or neither, got i1 and ui8"},
      {[](Fixture& t) { t.b.bitcast_convert(t.p(DType::U8, {3}), DType::F32); },
       "[stablehlo.bitcast_convert] expected a last dimension of 4 to merge into f32, got tensor<3xui8>"},
  };
  expect_errors(cases);
}

TEST(BuilderErrors, Constants) {
  const ErrorCase cases[] = {
      {[](Fixture& t) { t.b.constant(DType::S32, 1.5); }, "[stablehlo.constant] expected a value that i32 holds, got 1.5"},
      {[](Fixture& t) { t.b.constant(DType::S64, std::numeric_limits<double>::quiet_NaN()); },
       "[stablehlo.constant] expected a value that i64 holds, got nan"},
      {[](Fixture& t) { t.b.constant(DType::S64, 9223372036854775808.0); },
       "[stablehlo.constant] expected a value that i64 holds, got 9.223372036854776e+18"},
      {[](Fixture& t) { t.b.constant(DType::U64, -1.0); }, "[stablehlo.constant] expected a value that ui64 holds, got -1"},
      {[](Fixture& t) { t.b.constant(DType::U8, 256); }, "[stablehlo.constant] expected a value that ui8 holds, got 256"},
      {[](Fixture& t) { t.b.constant(DType::Pred, 2); }, "[stablehlo.constant] expected a value that i1 holds, got 2"},
      {[](Fixture& t) { t.b.constant(DType::F32, std::complex<double>(1, -2)); },
       "[stablehlo.constant] expected a value that f32 holds, got 1-2i"},
      {[](Fixture& t) { t.b.constant(DType::F32, 1.0, {-1}); },
       "[stablehlo.constant] expected dimensions of at least 0, got tensor<-1xf32>"},
      {[](Fixture& t) { t.b.index_vector(Dims{1, 300}, DType::U8); },
       "[stablehlo.constant] expected a value that ui8 holds, got 300"},
      {[](Fixture& t) { t.b.index_vector(Dims{1}, DType::F32); },
       "[stablehlo.constant] expected an integer type for indices, got f32"},
      {[](Fixture& t) { t.b.lowest(DType::C64); }, "[stablehlo.constant] expected a type with an order, got complex<f32>"},
      {[](Fixture& t) { t.b.highest(DType::C64); }, "[stablehlo.constant] expected a type with an order, got complex<f32>"},
      {[](Fixture& t) { t.b.iota({DType::F32, {2}}, 1); }, "[stablehlo.iota] expected a dimension in [0, 1), got 1"},
      {[](Fixture& t) { t.b.iota({DType::Pred, {2}}, 0); }, "[stablehlo.iota] expected a number type, got i1"},
      {[](Fixture& t) { t.b.iota({DType::S32, {-2}}, 0); },
       "[stablehlo.iota] expected dimensions of at least 0, got tensor<-2xi32>"},
  };
  expect_errors(cases);
  Graph g;
  EXPECT_THROW(g.add_parameter({DType::F32, {-1}}), InvalidArgument);
  EXPECT_THROW(g.set_results({Value()}), InvalidArgument);
  EXPECT_THROW(g.set_results({}, {{}}), InvalidArgument);
}

TEST(BuilderErrors, Movement) {
  const ErrorCase cases[] = {
      {[](Fixture& t) { t.b.broadcast_in_dim(t.f({2}), {2}, {}); },
       "[stablehlo.broadcast_in_dim] expected a place for each dimension of tensor<2xf32>, got []"},
      {[](Fixture& t) { t.b.broadcast_in_dim(t.f({2}), {2}, {1}); },
       "[stablehlo.broadcast_in_dim] expected places in [0, 1), got 1"},
      {[](Fixture& t) { t.b.broadcast_in_dim(t.f({2, 2}), {2, 2}, {1, 1}); },
       "[stablehlo.broadcast_in_dim] expected places that differ, got [1, 1]"},
      {[](Fixture& t) { t.b.broadcast_in_dim(t.f({2}), {3}, {0}); },
       "[stablehlo.broadcast_in_dim] expected each dimension of tensor<2xf32> to be 1 or as in [3], at places [0], got 2 "
       "for 3"},
      {[](Fixture& t) { t.b.broadcast_in_dim(t.f({}), {-3}, {}); },
       "[stablehlo.broadcast_in_dim] expected dimensions of at least 0, got [-3]"},
      {[](Fixture& t) { t.b.broadcast(t.f({2, 2}), {2}); },
       "[stablehlo.broadcast_in_dim] expected at most 1 dimensions to broadcast to [2], got tensor<2x2xf32>"},
      {[](Fixture& t) { t.b.reshape(t.f({2, 3}), {5}); },
       "[stablehlo.reshape] expected dimensions of 6 elements in all, got [5] from tensor<2x3xf32>"},
      {[](Fixture& t) { t.b.reshape(t.f({6}), {-2, -3}); },
       "[stablehlo.reshape] expected dimensions of 6 elements in all, got [-2, -3] from tensor<6xf32>"},
      {[](Fixture& t) { t.b.transpose(t.f({2, 3}), {1}); },
       "[stablehlo.transpose] expected a permutation of 2 dimensions, got [1]"},
      {[](Fixture& t) { t.b.transpose(t.f({2, 3}), {1, 1}); },
       "[stablehlo.transpose] expected dimensions that differ, got [1, 1]"},
      {[](Fixture& t) { t.b.slice(t.f({4}), {0}, {5}); },
       "[stablehlo.slice] expected 0 <= start <= limit <= 4 and a stride of at least 1 in dimension 0, got 0:5:1"},
      {[](Fixture& t) { t.b.slice(t.f({4}), {0}, {4}, {0}); },
       "[stablehlo.slice] expected 0 <= start <= limit <= 4 and a stride of at least 1 in dimension 0, got 0:4:0"},
      {[](Fixture& t) { t.b.slice(t.f({4}), {}, {4}); },
       "[stablehlo.slice] expected one start, limit and stride a dimension of tensor<4xf32>, got [], [4] and [1]"},
      {[](Fixture& t) { t.b.slice_dim(t.f({4}), 1, 0, 1); }, "[stablehlo.slice] expected a dimension in [0, 1), got 1"},
      {[](Fixture& t) { t.b.dynamic_slice(t.f({4}), {}, {1}); },
       "[stablehlo.dynamic_slice] expected one start index a dimension of tensor<4xf32>, got 0"},
      {[](Fixture& t) { t.b.dynamic_slice(t.f({4}), std::array{t.f({})}, {1}); },
       "[stablehlo.dynamic_slice] expected start indices of one rank-0 integer type, got (tensor<f32>)"},
      {[](Fixture& t) { t.b.dynamic_slice(t.f({4}), std::array{t.i({})}, {5}); },
       "[stablehlo.dynamic_slice] expected a size in [0, 4] in dimension 0, got 5"},
      {[](Fixture& t) { t.b.dynamic_slice(t.f({4}), std::array{t.i({})}, {}); },
       "[stablehlo.dynamic_slice] expected one size a dimension of tensor<4xf32>, got []"},
      {[](Fixture& t) { t.b.dynamic_update_slice(t.f({4}), t.f({5}), std::array{t.i({})}); },
       "[stablehlo.dynamic_update_slice] expected an update that fits into tensor<4xf32>, got tensor<5xf32>"},
      {[](Fixture& t) { t.b.pad(t.f({4}), t.i({}), {0}, {0}); },
       "[stablehlo.pad] expected a padding value of type tensor<f32>, got tensor<i32>"},
      {[](Fixture& t) { t.b.pad(t.f({4}), t.f({}), {0, 0}, {0}); },
       "[stablehlo.pad] expected one low, high and interior padding a dimension of tensor<4xf32>, got [0, 0], [0] and [0]"},
      {[](Fixture& t) { t.b.pad(t.f({4}), t.f({}), {0}, {0}, {-1}); },
       "[stablehlo.pad] expected interior padding of at least 0, got [-1]"},
      {[](Fixture& t) { t.b.pad(t.f({4}), t.f({}), {-3}, {-2}); },
       "[stablehlo.pad] expected padding that leaves at least 0 in dimension 0, got -3 + 4 + -2"},
      {[](Fixture& t) { t.b.concatenate({}, 0); }, "[stablehlo.concatenate] expected at least one operand, got none"},
      {[](Fixture& t) { t.b.concatenate(std::array{t.f({2, 3}), t.f({2, 4})}, 0); },
       "[stablehlo.concatenate] expected operands that differ in dimension 0 only, got tensor<2x3xf32> and tensor<2x4xf32>"},
      {[](Fixture& t) { t.b.concatenate(std::array{t.f({}), t.f({})}, 0); },
       "[stablehlo.concatenate] expected a dimension in [0, 0), got 0"},
      {[](Fixture& t) { t.b.reverse(t.f({2}), {0, 0}); }, "[stablehlo.reverse] expected dimensions that differ, got [0, 0]"},
  };
  expect_errors(cases);
}

TEST(BuilderErrors, GatherAndScatter) {
  const GatherDims rows{.offset_dims = {1}, .collapsed_slice_dims = {0}, .start_index_map = {0}, .index_vector_dim = 1};
  const ScatterDims into{
      .update_window_dims = {1}, .inserted_window_dims = {0}, .scatter_dims_to_operand_dims = {0}, .index_vector_dim = 1};
  auto gather = [=](auto change, Dims sizes = {1, 2}, DType index = DType::S32) {
    return [=](Fixture& t) {
      GatherDims dims = rows;
      change(dims);
      t.b.gather(t.f({3, 2}), t.p(index, {5}), dims, sizes);
    };
  };
  auto scatter = [=](auto change, Dims updates = {5, 2}, DType index = DType::S32, std::optional<Reduction> combine = {}) {
    return [=](Fixture& t) {
      ScatterDims dims = into;
      change(dims);
      t.b.scatter(t.f({3, 2}), t.p(index, {5}), t.f(updates), dims, combine);
    };
  };
  auto same = [](auto&) {};
  const ErrorCase cases[] = {
      {gather(same, {1, 2}, DType::F32), "[stablehlo.gather] expected integer indices, got tensor<5xf32>"},
      {gather([](auto& d) { d.index_vector_dim = 2; }), "[stablehlo.gather] expected index_vector_dim in [0, 1], got 2"},
      {gather(same, {1}), "[stablehlo.gather] expected one slice size a dimension of tensor<3x2xf32>, got [1]"},
      {gather(same, {2, 2}), "[stablehlo.gather] expected a slice size of at most 1 in dimension 0, got 2"},
      {gather(same, {1, 3}), "[stablehlo.gather] expected a slice size of at most 2 in dimension 1, got 3"},
      {gather([](auto& d) { d.start_index_map = {0, 1}; }),
       "[stablehlo.gather] expected 1 entries in start_index_map, one an element of an index vector of tensor<5xi32>, got "
       "[0, 1]"},
      {gather([](auto& d) { d.start_index_map = {2}; }), "[stablehlo.gather] expected start_index_map in [0, 2), got 2"},
      {gather([](auto& d) { d.offset_dims = {0, 1}; }), "[stablehlo.gather] expected 1 ascending offset_dims, got [0, 1]"},
      {gather([](auto& d) { d.offset_dims = {2}; }), "[stablehlo.gather] expected offset_dims in [0, 2), got 2"},
      {gather([](auto& d) { d.collapsed_slice_dims = {0, 0}; }),
       "[stablehlo.gather] expected collapsed_slice_dims and operand_batching_dims that differ, got [0, 0]"},
      {gather(
           [](auto& d) { d.collapsed_slice_dims = {}, d.operand_batching_dims = {0}, d.start_indices_batching_dims = {0}; }),
       "[stablehlo.gather] expected batching dimensions of equal sizes, got [0] of tensor<3x2xf32> and [0] of "
       "tensor<5xi32>"},
      {scatter(same, {5, 2}, DType::F32), "[stablehlo.scatter] expected integer indices, got tensor<5xf32>"},
      {[=](Fixture& t) { t.b.scatter(t.f({3, 2}), t.i({5}), t.i({5, 2}), into, {}); },
       "[stablehlo.scatter] expected updates of f32 elements, got tensor<5x2xi32>"},
      {scatter([](auto& d) { d.index_vector_dim = -1; }), "[stablehlo.scatter] expected index_vector_dim in [0, 1], got -1"},
      {scatter([](auto& d) { d.scatter_dims_to_operand_dims = {}; }),
       "[stablehlo.scatter] expected 1 entries in scatter_dims_to_operand_dims, one an element of an index vector of "
       "tensor<5xi32>, got []"},
      {scatter(
           [](auto& d) { d.inserted_window_dims = {}, d.input_batching_dims = {0}, d.scatter_indices_batching_dims = {0}; }),
       "[stablehlo.scatter] expected batching dimensions of equal sizes, got [0] of tensor<3x2xf32> and [0] of "
       "tensor<5xi32>"},
      {scatter(same, {5, 3}),
       "[stablehlo.scatter] expected updates of scatter dimensions [5] and window dimensions (ascending update_window_dims) "
       "of at most [2], got "
       "tensor<5x3xf32> with update_window_dims [1]"},
      {scatter(same, {5, 2}, DType::S32, Reduction::And),
       "[stablehlo.scatter] expected i1 or integer elements to combine by and / or, got f32"},
  };
  expect_errors(cases);
}

TEST(BuilderErrors, Regions) {
  const ErrorCase cases[] = {
      {[](Fixture& t) { t.b.sort({}, 0, true, kFirst); }, "[stablehlo.sort] expected at least one operand, got none"},
      {[](Fixture& t) { t.b.sort(std::array{t.f({2}), t.f({3})}, 0, true, kFirst); },
       "[stablehlo.sort] expected operands of equal dimensions, got tensor<2xf32> and tensor<3xf32>"},
      {[](Fixture& t) { t.b.sort(std::array{t.f({2})}, 0, true, kFirst); },
       "[stablehlo.sort] expected the order to give (tensor<i1>), got (tensor<f32>)"},
      {[](Fixture& t) {
         const Value outer = t.f({});
         t.b.sort(std::array{t.f({2})}, 0, true,
                  [&](Builder& b, std::span<const Value> p) { return std::vector{b.compare(p[0], outer, Comparison::LT)}; });
       },
       "[stablehlo.sort] expected a body that uses its parameters and constants only, got one that uses a tensor<f32> from "
       "outside; pass it as an operand"},
      {[](Fixture& t) { t.b.reduce(t.f({2}), {1}, Reduction::Sum); },
       "[stablehlo.reduce] expected dimensions in [0, 1), got 1"},
      {[](Fixture& t) { t.b.reduce(t.f({2}), {0}, Reduction::Or); },
       "[stablehlo.reduce] expected i1 or integer elements to combine by and / or, got f32"},
      {[](Fixture& t) { t.b.reduce(t.c({2}), {0}, Reduction::Max); },
       "[stablehlo.reduce] expected elements with an order to combine by max / min, got complex<f32>"},
      {[](Fixture& t) { t.b.reduce(std::array{t.f({2})}, {}, {0}, kFirst); },
       "[stablehlo.reduce] expected one initial value an operand and at least one, got 0 for 1"},
      {[](Fixture& t) { t.b.reduce(std::array{t.f({2})}, std::array{t.i({})}, {0}, kFirst); },
       "[stablehlo.reduce] expected an initial value of type tensor<f32>, got tensor<i32>"},
      {[](Fixture& t) { t.b.reduce(std::array{t.f({2}), t.f({3})}, std::array{t.f({}), t.f({})}, {0}, kFirst); },
       "[stablehlo.reduce] expected operands of equal dimensions, got tensor<2xf32> and tensor<3xf32>"},
      {[](Fixture& t) {
         t.b.reduce(std::array{t.f({2})}, std::array{t.f({})}, {0},
                    [](Builder&, std::span<const Value> p) { return std::vector(p.begin(), p.end()); });
       },
       "[stablehlo.reduce] expected the body to give (tensor<f32>), got (tensor<f32>, tensor<f32>)"},
      {[](Fixture& t) { t.b.reduce_window(t.f({4}), {.size = {2, 2}}, Reduction::Sum); },
       "[stablehlo.reduce_window] expected 1 sizes of the window, one a dimension, got 2"},
      {[](Fixture& t) { t.b.reduce_window(t.f({4}), {.size = {2}, .strides = {0}}, Reduction::Sum); },
       "[stablehlo.reduce_window] expected sizes, strides and dilations of at least 1, got [0]"},
      {[](Fixture& t) { t.b.reduce_window(t.f({4}), {.size = {2}, .padding_low = {-5}}, Reduction::Sum); },
       "[stablehlo.reduce_window] expected padding that leaves at least 0 in dimension 0, got -5 + 4 + 0"},
      {[](Fixture& t) { t.b.reduce_window(t.f({4}), {.size = {2}, .reversal = {true}}, Reduction::Sum); },
       "[stablehlo.reduce_window] expected a window that is not reversed"},
      {[](Fixture& t) { t.b.reduce_window({}, {}, {}, kFirst); },
       "[stablehlo.reduce_window] expected one initial value an operand and at least one, got 0 for 0"},
      {[](Fixture& t) {
         t.b.reduce_window(std::array{t.f({4}), t.f({5})}, std::array{t.f({}), t.f({})}, {.size = {2}}, kFirst);
       },
       "[stablehlo.reduce_window] expected operands of equal dimensions, got tensor<4xf32> and tensor<5xf32>"},
      {[](Fixture& t) { t.b.reduce_window(std::array{t.f({4})}, std::array{t.i({})}, {.size = {2}}, kFirst); },
       "[stablehlo.reduce_window] expected an initial value of type tensor<f32>, got tensor<i32>"},
      {[](Fixture& t) {
         t.b.select_and_scatter(t.f({4}), t.f({4}), t.f({}), {.size = {2}, .strides = {2}}, Comparison::GE);
       },
       "[stablehlo.select_and_scatter] expected a source of type tensor<2xf32>, one element a window, got tensor<4xf32>"},
      {[](Fixture& t) {
         t.b.select_and_scatter(t.f({4}), t.f({2}), t.i({}), {.size = {2}, .strides = {2}}, Comparison::GE);
       },
       "[stablehlo.select_and_scatter] expected an initial value of type tensor<f32>, got tensor<i32>"},
      {[](Fixture& t) {
         t.b.select_and_scatter(t.f({4}), t.f({2}), t.f({}), {.size = {2}, .window_dilations = {2}}, Comparison::GE);
       },
       "[stablehlo.select_and_scatter] expected a window without dilation and reversal"},
      {[](Fixture& t) { t.b.while_loop({}, kFirst, kFirst); },
       "[stablehlo.while] expected at least one carried value, got none"},
      {[](Fixture& t) { t.b.while_loop(std::array{t.f({})}, kFirst, kFirst); },
       "[stablehlo.while] expected the condition to give (tensor<i1>), got (tensor<f32>)"},
      {[](Fixture& t) { t.b.for_loop(3, std::array{t.f({2})}, kFirst); },
       "[stablehlo.while] expected the body to give (tensor<i32>, tensor<2xf32>), got (tensor<i32>, tensor<i32>)"},
      {[](Fixture& t) { t.b.for_loop(-1, {}, kFirst); }, "[stablehlo.while] expected a trip count in [0, 2^31), got -1"},
      {[](Fixture& t) { t.b.if_else(t.pred({1}), {}, {}); },
       "[stablehlo.if] expected a condition of type tensor<i1>, got tensor<1xi1>"},
      {[](Fixture& t) {
         const Value x = t.f({}), y = t.i({});
         t.b.if_else(t.pred(), [&](Builder&) { return std::vector{x}; }, [&](Builder&) { return std::vector{y}; });
       },
       "[stablehlo.if] expected both branches to give (tensor<f32>), got (tensor<i32>)"},
      {[](Fixture& t) { t.b.switch_case(t.p(DType::S64, {}), {}); },
       "[stablehlo.case] expected an index of type tensor<i32>, got tensor<i64>"},
      {[](Fixture& t) { t.b.switch_case(t.i({}), {}); }, "[stablehlo.case] expected at least one branch, got none"},
      {[](Fixture& t) {
         const Value x = t.f({}), y = t.i({});
         const Builder::Thunk branches[] = {[&](Builder&) { return std::vector{x}; },
                                            [&](Builder&) { return std::vector{y}; }};
         t.b.switch_case(y, branches);
       },
       "[stablehlo.case] expected all branches to give (tensor<f32>), got (tensor<i32>)"},
  };
  expect_errors(cases);
}

TEST(BuilderErrors, Contractions) {
  const DotDims matmul{.lhs_contracting = {1}, .rhs_contracting = {0}};
  const ConvolutionDims ncw{.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
  const ErrorCase cases[] = {
      {[=](Fixture& t) { t.b.dot_general(t.f({2, 3}), t.i({3, 2}), matmul); },
       "[stablehlo.dot_general] expected operands of one element type, got tensor<2x3xf32> and tensor<3x2xi32>"},
      {[=](Fixture& t) { t.b.dot_general(t.f({2, 3}), t.f({2, 3}), matmul); },
       "[stablehlo.dot_general] expected batch and contracting dimensions of equal sizes, got batch [] x [] and contracting "
       "[1] x [0] of tensor<2x3xf32> and tensor<2x3xf32>"},
      {[=](Fixture& t) { t.b.dot_general(t.f({2}), t.f({2}), matmul); },
       "[stablehlo.dot_general] expected batch and contracting dimensions of lhs in [0, 1), got 1"},
      {[=](Fixture& t) {
         t.b.dot_general(t.f({2, 2}), t.f({2, 2}),
                         {.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contracting = {1}, .rhs_contracting = {0}});
       },
       "[stablehlo.dot_general] expected batch and contracting dimensions of rhs that differ, got [0, 0]"},
      {[=](Fixture& t) { t.b.convolution(t.f({1, 1, 4}), t.f({1, 1}), ncw, {}); },
       "[stablehlo.convolution] expected an input and a kernel of one element type and one rank of at least 2, got "
       "tensor<1x1x4xf32> and tensor<1x1xf32>"},
      {[=](Fixture& t) { t.b.convolution(t.f({1, 1, 4}), t.f({1, 1, 2}), {}, {}); },
       "[stablehlo.convolution] expected 1 spatial dimensions of the input, got []"},
      {[=](Fixture& t) { t.b.convolution(t.f({1, 1, 4}), t.f({1, 1, 2}), {.input_spatial = {1}}, {}); },
       "[stablehlo.convolution] expected dimensions of the input that differ, got [0, 1, 1]"},
      {[=](Fixture& t) { t.b.convolution(t.f({1, 1, 4}), t.f({1, 1, 2}), ncw, {.size = {3}}); },
       "[stablehlo.convolution] expected a window as large as the kernel, [2], got [3]"},
      {[=](Fixture& t) { t.b.convolution(t.f({1, 1, 4}), t.f({1, 1, 2}), ncw, {}, 2, 2); },
       "[stablehlo.convolution] expected feature_groups and batch_groups of at least 1, one of them 1, got 2 and 2"},
      {[=](Fixture& t) { t.b.convolution(t.f({1, 4, 4}), t.f({2, 3, 2}), ncw, {}, 2); },
       "[stablehlo.convolution] expected sizes that 2 feature groups and 1 batch groups divide, and a kernel of 4 / 2 input "
       "features, got tensor<1x4x4xf32> and "
       "tensor<2x3x2xf32>"},
      {[](Fixture& t) { t.b.cholesky(t.f({2, 3}), true); },
       "[stablehlo.cholesky] expected square matrices, got tensor<2x3xf32>"},
      {[](Fixture& t) { t.b.cholesky(t.i({2, 2}), true); },
       "[stablehlo.cholesky] expected float or complex elements, got tensor<2x2xi32>"},
      {[](Fixture& t) { t.b.triangular_solve(t.f({2, 2}), t.f({3, 2}), true, true, false, false); },
       "[stablehlo.triangular_solve] expected square matrices and rows of as many, got tensor<2x2xf32> and tensor<3x2xf32>"},
      {[](Fixture& t) { t.b.triangular_solve(t.f({2, 2}), t.i({2, 2}), true, true, false, false); },
       "[stablehlo.triangular_solve] expected operands of one float or complex element type, got tensor<2x2xf32> and "
       "tensor<2x2xi32>"},
      {[](Fixture& t) { t.b.fft(t.f({4}), FftKind::FFT, {4}); },
       "[stablehlo.fft] expected complex elements for FFT, got tensor<4xf32>"},
      {[](Fixture& t) { t.b.fft(t.c({4}), FftKind::RFFT, {4}); },
       "[stablehlo.fft] expected f32 or f64 elements for RFFT, got tensor<4xcomplex<f32>>"},
      {[](Fixture& t) { t.b.fft(t.c({4}), FftKind::IRFFT, {4}); },
       "[stablehlo.fft] expected 1 to 3 lengths of the last dimensions (the last halved, plus 1), got [4] for "
       "tensor<4xcomplex<f32>>"},
      {[](Fixture& t) { t.b.fft(t.c({4}), FftKind::FFT, {}); },
       "[stablehlo.fft] expected 1 to 3 lengths of the last dimensions, got [] for tensor<4xcomplex<f32>>"},
  };
  expect_errors(cases);
}

TEST(BuilderErrors, CallsAndPartitioning) {
  const Sharding a{.dims = {{.axes = {"a"}}}};
  const Sharding none{.dims = {{}}};
  auto meshed = [](auto make) {
    return [=](Fixture& t) {
      t.g.set_mesh({{{"a", 2}, {"b", 2}}});
      make(t);
    };
  };
  const ErrorCase cases[] = {
      {[](Fixture& t) { t.b.custom_call({}, {}); }, "[stablehlo.custom_call] expected the name of a target, got none"},
      {[](Fixture& t) { t.b.custom_call({}, {.target = "f", .attributes = {{"a", true}}, .opaque = "x"}); },
       "[stablehlo.custom_call] expected FFI attributes or an opaque text, got both"},
      {[](Fixture& t) { t.b.custom_call({}, {.target = "f", .attributes = {{"a", DType::F32}}}); },
       "[stablehlo.custom_call] expected FFI attributes that are bool, int64, double, text or a list of numbers, got "
       "another kind as 'a'"},
      {[](Fixture& t) {
         t.b.custom_call(std::array{t.f({2})}, {.target = "f", .results = {{DType::F32, {3}}}, .aliases = {{0, 0}}});
       },
       "[stablehlo.custom_call] expected aliases of a result and an operand of one type, each result once, got result 0 and "
       "operand 0"},
      {[=](Fixture& t) { t.b.sharding_constraint(t.f({2}), a); },
       "[sdy.sharding_constraint] expected a graph with a mesh, got one without; call set_mesh first"},
      {meshed([=](Fixture& t) { t.b.sharding_constraint(t.f({}), a); }),
       "[sdy.sharding_constraint] expected a sharding of 0 dimensions, got <@mesh, [{\"a\"}]>"},
      {meshed([=](Fixture& t) { t.b.manual_computation(std::array{t.f({2})}, {}, {}, {"a"}, kFirst); }),
       "[sdy.manual_computation] expected one sharding an operand, got 0 for 1"},
      {meshed([=](Fixture& t) { t.b.manual_computation(std::array{t.f({2})}, std::array{a}, {}, {"a"}, kFirst); }),
       "[sdy.manual_computation] expected one sharding a result, got 0 for 1"},
      {meshed(
           [=](Fixture& t) { t.b.manual_computation(std::array{t.f({3})}, std::array{a}, std::array{a}, {"a"}, kFirst); }),
       "[sdy.manual_computation] expected dimension 0 of tensor<3xf32> to split into 2 equal parts, got sharding <@mesh, "
       "[{\"a\"}]>"},
      {meshed([=](Fixture& t) {
         const Sharding both{.dims = {{.axes = {"b", "a"}}}};
         t.b.manual_computation(std::array{t.f({4})}, std::array{both}, std::array{both}, {"a"}, kFirst);
       }),
       "[sdy.manual_computation] expected manual axes in front of the others in each dimension, got <@mesh, [{\"b\", "
       "\"a\"}]>"},
      {meshed([=](Fixture& t) {
         t.b.manual_computation(std::array{t.f({2})}, std::array{none}, std::array{none}, {"c"}, kFirst);
       }),
       "[sdy.manual_computation] expected axes of the mesh, got \"c\" in <@mesh, [], replicated={\"c\"}>"},
      {meshed([=](Fixture& t) {
         const Value outer = t.f({2});
         t.b.manual_computation(std::array{t.f({2})}, std::array{none}, std::array{none}, {"a"},
                                [&](Builder& b, std::span<const Value> p) { return std::vector{b.add(p[0], outer)}; });
       }),
       "[sdy.manual_computation] expected a body that uses its parameters and constants only, got one that uses a "
       "tensor<2xf32> from outside; pass it as an operand"},
      {[](Fixture& t) { t.b.all_reduce(t.f({2}), Reduction::Sum, {}, 1); },
       "[stablehlo.all_reduce] expected at least one group of devices, got none"},
      {[](Fixture& t) { t.b.all_gather(t.f({2}), 0, {{0, 1}, {2}}, 1); },
       "[stablehlo.all_gather] expected groups of one size, got 2 and 1 devices"},
      {[](Fixture& t) { t.b.all_gather(t.f({2}), 0, {{0, 0}}, 1); },
       "[stablehlo.all_gather] expected each device in one group, got 0 again or below 0"},
      {[](Fixture& t) { t.b.reduce_scatter(t.f({3}), Reduction::Sum, 0, {{0, 1}}, 1); },
       "[stablehlo.reduce_scatter] expected dimension 0 of tensor<3xf32> to split into 2 equal parts"},
      {[](Fixture& t) { t.b.all_to_all(t.f({3}), 0, 0, {{0, 1}}, 1); },
       "[stablehlo.all_to_all] expected dimension 0 of tensor<3xf32> to split into 2 equal parts"},
      {[](Fixture& t) { t.b.collective_permute(t.f({3}), {{0, 1}, {2, 1}}, 1); },
       "[stablehlo.collective_permute] expected each device at most once as source and once as target, got 2 -> 1"},
  };
  expect_errors(cases);
}

TEST(Builder, WhatChangesNothingIsNotBuilt) {
  Fixture t;
  const Value x = t.f({2, 3});
  EXPECT_EQ(t.b.convert(x, DType::F32), x);
  EXPECT_EQ(t.b.bitcast_convert(x, DType::F32), x);
  EXPECT_EQ(t.b.reshape(x, {2, 3}), x);
  EXPECT_EQ(t.b.broadcast(x, {2, 3}), x);
  EXPECT_EQ(t.b.transpose(x, {0, 1}), x);
  EXPECT_EQ(t.b.concatenate(std::array{x}, 0), x);
  EXPECT_EQ(t.b.reverse(x, {}), x);
  EXPECT_EQ(t.b.reduce(x, {}, Reduction::Sum), x);
  EXPECT_TRUE(t.b.optimization_barrier({}).empty());
  EXPECT_EQ(t.g.node_count(), 0u);
}

TEST(Builder, Constants) {
  Fixture t;
  auto bits = [&](Value v) { return decode_bits(v.dtype(), constant_literal(v)->bytes.data()); };
  EXPECT_EQ(bits(t.b.constant(DType::U64, 18446744073709549568.0)), 18446744073709549568u);
  EXPECT_EQ(bits(t.b.constant(DType::F32, int64_t{16777217})), bits(t.b.constant(DType::F32, 16777216.0)));
  EXPECT_EQ(bits(t.b.constant(DType::F64, int64_t{16777217})), bits(t.b.constant(DType::F64, 16777217.0)));
  EXPECT_EQ(bits(t.b.constant(DType::Pred, true)), 1u);
  EXPECT_EQ(constant_literal(t.b.constant(DType::C64, 2.0))->bytes.size(), 8u);
  EXPECT_EQ(constant_literal(t.b.constant(DType::F32, 2.0, {0, 4}))->bytes.size(), 0u);
  const float same[] = {3, 3, 3, 3}, zeros[] = {0.0f, -0.0f};
  EXPECT_TRUE(constant_literal(t.b.literal({DType::F32, {4}}, same))->is_splat());
  EXPECT_FALSE(constant_literal(t.b.literal({DType::F32, {2}}, zeros))->is_splat());  // equal numbers, other bits
  const uint8_t truths[] = {2, 0};
  EXPECT_EQ(constant_literal(t.b.literal({DType::Pred, {2}}, truths))->bytes, std::string("\1\0", 2));
}

TEST(Builder, ClosedRegionsTakeConstantsAlong) {
  Fixture t;
  const Value two = t.b.convert(t.b.constant(DType::S32, 2), DType::F32);
  auto r = t.b.reduce(std::array{t.f({4})}, std::array{t.b.constant(DType::F32, 0)}, {0},
                      [&](Builder& b, std::span<const Value> p) {
                        return std::vector{b.add(b.multiply(p[0], two), b.multiply(p[1], two))};
                      });
  const Block& body = *t.g.definition(r[0])->regions[0];
  ASSERT_EQ(body.nodes.size(), 5u);  // the constant and its conversion once, then the body
  EXPECT_EQ(body.nodes[0]->op, Op::Constant);
  EXPECT_EQ(body.nodes[1]->op, Op::Convert);
  EXPECT_EQ(body.nodes[2]->operands[1], body.nodes[1]->results[0]);
}

}  // namespace
}  // namespace flambeau::hlo
