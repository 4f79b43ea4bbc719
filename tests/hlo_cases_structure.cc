// Cases for data movement, regions and contractions.
#include <cmath>

#include "hlo_cases.h"

namespace flambeau::tests {

using namespace hlo;

std::vector<Case> movement_cases() {
  std::vector<Case> cases;
  cases.push_back({"broadcast, reshape, transpose, reverse", [](Program& p) {
                     const Value x = p.in(DType::F32, {2, 3}, {1, 2, 3, 4, 5, 6});
                     p.expect(p.b.broadcast(p.in(DType::F32, {2, 1}, {1, 2}), {2, 2, 3}),
                              {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2});
                     p.expect(p.b.broadcast_in_dim(p.in(DType::S32, {2}, {1, 2}), {2, 2}, {0}), {1, 1, 2, 2});
                     p.expect(p.b.reshape(x, {3, 1, 2}), {1, 2, 3, 4, 5, 6});
                     p.expect(p.b.transpose(x, {1, 0}), {1, 4, 2, 5, 3, 6});
                     p.expect(p.b.reverse(x, {1}), {3, 2, 1, 6, 5, 4});
                     p.expect(p.b.reshape(p.in(DType::F32, {0, 3}, {}), {3, 0}), {});
                   }});
  cases.push_back({"slices, pad, concatenate", [](Program& p) {
                     const Value x = p.in(DType::F32, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
                     p.expect(p.b.slice(x, {0, 1}, {2, 4}, {1, 2}), {2, 4, 6, 8});
                     p.expect(p.b.slice_dim(x, 0, 1, 2), {5, 6, 7, 8});
                     const Value i = p.in(DType::S32, {}, {1}), j = p.in(DType::S32, {}, {2});
                     p.expect(p.b.dynamic_slice(x, std::array{i, j}, {1, 2}), {7, 8});
                     const Value update = p.in(DType::F32, {1, 2}, {-1, -2});
                     p.expect(p.b.dynamic_update_slice(x, update, std::array{i, j}), {1, 2, 3, 4, 5, 6, -1, -2});
                     p.expect(p.b.pad(x, p.b.constant(DType::F32, 9.0), {0, -1}, {1, 0}, {0, 1}),
                              {9, 2, 9, 3, 9, 4, 9, 6, 9, 7, 9, 8, 9, 9, 9, 9, 9, 9});
                     p.expect(p.b.concatenate(std::array{x, update.rank() == 2 ? p.b.slice(x, {0, 0}, {2, 1}) : x}, 1),
                              {1, 2, 3, 4, 1, 5, 6, 7, 8, 5});
                     p.expect(p.b.concatenate(std::array{x, p.in(DType::F32, {0, 4}, {})}, 0), {1, 2, 3, 4, 5, 6, 7, 8});
                   }});
  cases.push_back(
      {"gather", [](Program& p) {
         const Value x = p.in(DType::F32, {3, 2}, {1, 2, 3, 4, 5, 6});
         const Value rows = p.in(DType::S32, {2}, {2, 0});
         p.expect(
             p.b.gather(x, rows,
                        {.offset_dims = {1}, .collapsed_slice_dims = {0}, .start_index_map = {0}, .index_vector_dim = 1},
                        {1, 2}),
             {5, 6, 1, 2});
         const Value columns = p.in(DType::S64, {3, 1}, {1, 0, 1});  // one of each row
         p.expect(p.b.gather(x, columns,
                             {.collapsed_slice_dims = {1},
                              .operand_batching_dims = {0},
                              .start_indices_batching_dims = {0},
                              .start_index_map = {1},
                              .index_vector_dim = 1},
                             {1, 1}),
                  {2, 3, 6});
       }});
  cases.push_back(
      {"scatter", [](Program& p) {
         const Value x = p.in(DType::F32, {3, 2}, {1, 2, 3, 4, 5, 6});
         const Value rows = p.in(DType::S32, {2, 1}, {2, 2});
         const Value updates = p.in(DType::F32, {2, 2}, {10, 20, 30, 40});
         const ScatterDims dims{.update_window_dims = {1},
                                .inserted_window_dims = {0},
                                .scatter_dims_to_operand_dims = {0},
                                .index_vector_dim = 1};
         p.expect(p.b.scatter(x, rows, updates, dims, Reduction::Sum), {1, 2, 3, 4, 45, 66});
         p.expect(p.b.scatter(x, rows, updates, dims, Reduction::Max), {1, 2, 3, 4, 30, 40});
         const Value row = p.in(DType::S32, {1}, {1});
         const ScatterDims one{.update_window_dims = {0},
                               .inserted_window_dims = {0},
                               .scatter_dims_to_operand_dims = {0},
                               .index_vector_dim = 0};
         p.expect(p.b.scatter(x, row, p.in(DType::F32, {2}, {7, 8}), one, std::nullopt, true, true), {1, 2, 7, 8, 5, 6});
         const ScatterDims batched{.inserted_window_dims = {1},
                                   .input_batching_dims = {0},
                                   .scatter_indices_batching_dims = {0},
                                   .scatter_dims_to_operand_dims = {1},
                                   .index_vector_dim = 1};
         p.expect(
             p.b.scatter(x, p.in(DType::S32, {3, 1}, {1, 0, 1}), p.in(DType::F32, {3}, {7, 8, 9}), batched, std::nullopt),
             {1, 7, 8, 4, 5, 9});
       }});
  return cases;
}

std::vector<Case> region_cases() {
  std::vector<Case> cases;
  cases.push_back({"sort", [](Program& p) {
                     const Value keys = p.in(DType::F32, {2, 3}, {3, 1, 2, 5, 6, 4}),
                                 values = p.in(DType::S32, {2, 3}, {0, 1, 2, 3, 4, 5});
                     const Value one = p.b.constant(DType::F32, 1);  // used from inside: copied there
                     auto sorted = p.b.sort(std::array{keys, values}, 1, true, [&](Builder& b, std::span<const Value> e) {
                       return std::vector{b.compare(b.multiply(e[0], one), e[1], Comparison::LT)};
                     });
                     p.expect(sorted[0], {1, 2, 3, 4, 5, 6});
                     p.expect(sorted[1], {1, 2, 0, 5, 3, 4});
                   }});
  cases.push_back({"reduce", [](Program& p) {
                     const Value x = p.in(DType::F32, {2, 3}, {1, 2, 3, 4, 5, 6});
                     p.expect(p.b.reduce(x, {1}, Reduction::Sum), {6, 15});
                     p.expect(p.b.reduce(x, {0}, Reduction::Product), {4, 10, 18});
                     p.expect(p.b.reduce(x, {1, 0}, Reduction::Max), {6});
                     p.expect(p.b.reduce(p.in(DType::S32, {2}, {3, -5}), {0}, Reduction::Min), {-5});
                     p.expect(p.b.reduce(p.in(DType::Pred, {2}, {1, 0}), {0}, Reduction::And), {0});
                     p.expect(p.b.reduce(p.in(DType::Pred, {2}, {1, 0}), {0}, Reduction::Or), {1});
                     p.expect(p.b.reduce(p.in(DType::U8, {2}, {7, 14}), {0}, Reduction::And), {6});
                     p.expect(p.b.reduce(p.in(DType::F32, {2, 0}, {}), {1}, Reduction::Sum), {0, 0});
                     // The greatest and where it is.
                     auto greatest = p.b.reduce(std::array{x, p.b.iota({DType::S32, {2, 3}}, 1)},
                                                std::array{p.b.lowest(DType::F32), p.b.constant(DType::S32, 0)}, {1},
                                                [](Builder& b, std::span<const Value> e) {
                                                  const Value keep = b.compare(e[0], e[2], Comparison::GE);
                                                  return std::vector{b.select(keep, e[0], e[2]), b.select(keep, e[1], e[3])};
                                                });
                     p.expect(greatest[0], {3, 6});
                     p.expect(greatest[1], {2, 2});
                   }});
  cases.push_back(
      {"windows", [](Program& p) {
         const Value x = p.in(DType::F32, {4}, {1, 3, 2, 4});
         p.expect(p.b.reduce_window(x, {.size = {2}, .strides = {2}}, Reduction::Max), {3, 4});
         p.expect(p.b.reduce_window(x, {.size = {4}, .padding_low = {3}, .padding_high = {0}}, Reduction::Sum),
                  {1, 4, 6, 10});
         p.expect(p.b.reduce_window(x, {.size = {2}, .base_dilations = {2}, .window_dilations = {2}}, Reduction::Sum),
                  {4, 0, 5, 0, 6});
         const Value source = p.in(DType::F32, {2}, {10, 20});
         p.expect(
             p.b.select_and_scatter(x, source, p.b.constant(DType::F32, 0), {.size = {2}, .strides = {2}}, Comparison::GE),
             {0, 10, 0, 20});
       }});
  cases.push_back({"loops", [](Program& p) {
                     const Value x = p.in(DType::F32, {2}, {1, 2}), step = p.in(DType::F32, {2}, {0.5, 0.25});
                     auto sum = p.b.for_loop(4, std::array{x}, [&](Builder& b, std::span<const Value> c) {
                       const Value i = b.broadcast(b.convert(c[0], DType::F32), {2});
                       return std::vector{b.add(c[1], b.multiply(i, step))};  // `step` comes from outside
                     });
                     p.expect(sum[0], {4, 3.5});
                     auto doubled = p.b.while_loop(
                         std::array{x},
                         [](Builder& b, std::span<const Value> c) {
                           return std::vector{
                               b.compare(b.reduce(c[0], {0}, Reduction::Max), b.constant(DType::F32, 100), Comparison::LT)};
                         },
                         [](Builder& b, std::span<const Value> c) { return std::vector{b.add(c[0], c[0])}; });
                     p.expect(doubled[0], {64, 128});
                     auto nested = p.b.for_loop(3, std::array{x}, [&](Builder& b, std::span<const Value> c) {
                       return b.for_loop(2, c.subspan(1), [&](Builder& inner, std::span<const Value> d) {
                         return std::vector{inner.add(d[1], inner.add(step, c[1]))};  // from two levels up and one
                       });
                     });
                     p.expect(nested[0], {40, 60.5});
                   }});
  cases.push_back(
      {"branches", [](Program& p) {
         const Value x = p.in(DType::F32, {2}, {1, 2}), y = p.in(DType::F32, {2}, {10, 20});
         for (double flag : {0.0, 1.0}) {
           auto r = p.b.if_else(
               p.in(DType::Pred, {}, {flag}), [&](Builder& b) { return std::vector{b.add(x, y), x}; },
               [&](Builder& b) { return std::vector{b.subtract(x, y), y}; });
           p.expect(r[0], flag ? std::vector<double>{11, 22} : std::vector<double>{-9, -18});
           p.expect(r[1], flag ? std::vector<double>{1, 2} : std::vector<double>{10, 20});
         }
         for (double index : {0.0, 1.0, 7.0}) {
           const Builder::Thunk thunks[] = {[&](Builder&) { return std::vector{x}; },
                                            [&](Builder& b) { return std::vector{b.multiply(x, y)}; },
                                            [&](Builder& b) { return std::vector{b.constant(DType::F32, 5.0, {2})}; }};
           p.expect(p.b.switch_case(p.in(DType::S32, {}, {index}), thunks)[0], index == 0   ? std::vector<double>{1, 2}
                                                                               : index == 1 ? std::vector<double>{10, 40}
                                                                                            : std::vector<double>{5, 5});
         }
       }});
  return cases;
}

std::vector<Case> contraction_cases() {
  std::vector<Case> cases;
  const DotDims matmul{.lhs_contracting = {1}, .rhs_contracting = {0}};
  cases.push_back(
      {"dot_general", [matmul](Program& p) {
         const Value x = p.in(DType::F32, {2, 2}, {1, 2, 3, 4}), y = p.in(DType::F32, {2, 2}, {5, 6, 7, 8});
         p.expect(p.b.dot_general(x, y, matmul), {19, 22, 43, 50});
         p.expect(p.b.dot_general(x, p.b.transpose(y, {1, 0}), matmul), {17, 23, 39, 53});
         p.expect(p.b.dot_general(x, y, matmul, {}, Precision::Default), {19, 22, 43, 50}, 1e-2);
         p.expect(p.b.dot_general(x, y, matmul, {}, Precision::High), {19, 22, 43, 50}, 1e-4);
         const Value batches = p.in(DType::F64, {2, 1, 2}, {1, 2, 3, 4});
         p.expect(p.b.dot_general(batches, batches,
                                  {.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contracting = {2}, .rhs_contracting = {2}}),
                  {5, 25});
         const Value narrow = p.in(DType::BF16, {2, 2}, {1, 2, 3, 4});
         p.expect(p.b.dot_general(narrow, narrow, matmul, DType::F32), {7, 10, 15, 22});
         p.expect(p.b.dot_general(p.in(DType::S32, {1, 2}, {3, 4}), p.in(DType::S32, {2, 1}, {5, 6}), matmul), {39});
         p.expect(p.b.dot_general(p.in(DType::C64, {1}, {1, 1}), p.in(DType::C64, {1}, {2, 3}), {}), {-1, 5});
         p.expect(p.b.dot_general(p.in(DType::F32, {2, 0}, {}), p.in(DType::F32, {0, 2}, {}), matmul), {0, 0, 0, 0});
       }});
  for (DType t : {DType::F8E4M3FN, DType::F8E5M2})
    cases.push_back({"dot_general." + std::string(hlo_name(t)), [matmul, t](Program& p) {
                       const Value x = p.in(t, {1, 2}, {1, 2}), y = p.in(t, {2, 1}, {0.5, 3});
                       p.expect(p.b.dot_general(x, y, matmul, DType::F32), {6.5});
                     }});
  cases.push_back({"convolution", [](Program& p) {
                     const Value x = p.in(DType::F32, {1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
                     const Value k = p.in(DType::F32, {1, 1, 2, 2}, {1, 0, 0, 1});
                     const ConvolutionDims nchw{.input_spatial = {2, 3}, .kernel_spatial = {2, 3}, .output_spatial = {2, 3}};
                     p.expect(p.b.convolution(x, k, nchw, {}), {6, 8, 12, 14});
                     p.expect(
                         p.b.convolution(x, k, nchw, {.strides = {2, 2}, .padding_low = {1, 1}, .padding_high = {0, 0}}),
                         {1, 3, 7, 14});
                     p.expect(p.b.convolution(x, k, nchw, {.window_dilations = {2, 2}, .reversal = {true, true}}), {10});
                     const Value two = p.in(DType::F32, {1, 3, 2}, {1, 10, 2, 20, 3, 30});  // rows, features last
                     const ConvolutionDims nwc{.input_batch = 0,
                                               .input_feature = 2,
                                               .input_spatial = {1},
                                               .kernel_output_feature = 2,
                                               .kernel_input_feature = 1,
                                               .kernel_spatial = {0},
                                               .output_batch = 0,
                                               .output_feature = 2,
                                               .output_spatial = {1}};
                     p.expect(p.b.convolution(two, p.in(DType::F32, {2, 1, 2}, {1, 1, 1, 2}), nwc, {}, /*feature_groups=*/2),
                              {3, 50, 5, 80});
                     const Value pair = p.in(DType::F32, {2, 1, 2}, {1, 2, 3, 4});
                     const ConvolutionDims ncw{.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
                     p.expect(p.b.convolution(pair, p.in(DType::F32, {2, 1, 1}, {1, 10}), ncw, {}, 1, /*batch_groups=*/2),
                              {1, 2, 30, 40});
                     // A gradient: the input dilated, padding that cuts, features in the batch's place.
                     const ConvolutionDims exchanged{.input_batch = 1,
                                                     .input_feature = 0,
                                                     .input_spatial = {2},
                                                     .kernel_output_feature = 1,
                                                     .kernel_input_feature = 0,
                                                     .kernel_spatial = {2},
                                                     .output_batch = 1,
                                                     .output_feature = 0,
                                                     .output_spatial = {2}};
                     const Window dilated{.base_dilations = {2}, .padding_low = {1}, .padding_high = {-1}};
                     p.expect(p.b.convolution(pair, p.in(DType::F32, {2, 1, 1}, {1, 10}), exchanged, dilated), {0, 31, 0});
                   }});
  for (DType t : {DType::BF16, DType::F16})
    cases.push_back({"convolution." + std::string(hlo_name(t)), [t](Program& p) {
                       const ConvolutionDims ncw{.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
                       const Value x = p.in(t, {1, 1, 3}, {256, 1, 1}), k = p.in(t, {1, 1, 3}, {1, 1, 1});
                       p.expect(p.b.convolution(x, k, ncw, {}, 1, 1, DType::F32), {258});
                     }});
  cases.push_back({"linear algebra", [](Program& p) {
                     const Value x = p.in(DType::F32, {2, 2}, {4, 2, 2, 10});
                     const Value l = p.b.cholesky(x, true);
                     p.expect(p.b.select(p.b.compare(p.b.iota({DType::S32, {2, 2}}, 0), p.b.iota({DType::S32, {2, 2}}, 1),
                                                     Comparison::GE),
                                         l, p.b.constant(DType::F32, 0.0, {2, 2})),
                              {2, 0, 1, 3}, 1e-6);
                     const Value a = p.in(DType::F32, {2, 2}, {2, 0, 1, 4}), y = p.in(DType::F32, {2, 1}, {2, 9});
                     p.expect(p.b.triangular_solve(a, y, true, true, false, false), {1, 2}, 1e-6);
                     p.expect(p.b.triangular_solve(a, y, true, true, false, true), {-0.125, 2.25}, 1e-6);
                   }});
  cases.push_back({"fft", [](Program& p) {
                     const Value x = p.in(DType::F32, {4}, {1, 2, 3, 4});
                     const Value f = p.b.fft(x, FftKind::RFFT, {4});
                     p.expect(f, {10, 0, -2, 2, -2, 0}, 1e-6);
                     p.expect(p.b.fft(f, FftKind::IRFFT, {4}), {1, 2, 3, 4}, 1e-6);
                     const Value c = p.in(DType::C64, {2}, {1, 0, 2, 0});
                     p.expect(p.b.fft(c, FftKind::FFT, {2}), {3, 0, -1, 0}, 1e-6);
                     p.expect(p.b.fft(c, FftKind::IFFT, {2}), {1.5, 0, -0.5, 0}, 1e-6);
                   }});
  cases.push_back({"optimization_barrier and zero-element values", [](Program& p) {
                     const Value x = p.in(DType::F32, {2}, {1, 2}), y = p.in(DType::F32, {0, 3}, {});
                     auto held = p.b.optimization_barrier(std::array{x, y});
                     p.expect(held[0], {1, 2});
                     p.expect(p.b.add(held[1], y), {});
                   }});
  return cases;
}

}  // namespace flambeau::tests
