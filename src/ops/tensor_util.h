// Small pieces that lowerings share: lists of dimensions, reductions that keep their place, constants in bulk.
#pragma once

#include "ops/check.h"
#include "ops/promotion.h"

namespace flambeau::ops {

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

// 0, 1, ..., n - 1
Dims range(int64_t n);
int64_t element_count(const Dims& dims);
// `dims` without the entry at `dim`; with `size` there instead; 0..rank-1 without `dim`.
Dims erased(Dims dims, int64_t dim);
Dims replaced(Dims dims, int64_t dim, int64_t size);
Dims others(int64_t rank, int64_t dim);

// "[2, 3]" and "2x3"
std::string shape_text(const Dims& dims);
std::string matrix_text(const Dims& dims);

// `x` has the dimensions of `dims` but `reduced`; back to `dims` by repeating.
Value spread(Builder& b, Value x, const Dims& dims, const Dims& reduced);
// `x` (a vector) along dimension `dim` of `dims`.
Value along(Builder& b, Value x, const Dims& dims, int64_t dim);

Value zeros(Builder& b, DType dtype, const Dims& dims);
Value filled(Builder& b, DType dtype, double value, const Dims& dims);
// x op number
Value times(Builder& b, Value x, double number);
Value plus(Builder& b, Value x, double number);
Value compare_with(Builder& b, Value x, double number, hlo::Comparison direction);

Value sum(Builder& b, Value x, const Dims& dims);
// As PyTorch: of nothing it is NaN.
Value mean(Builder& b, Value x, const Dims& dims);

// A rank-0 tensor as a vector of one, for ops with a dimension argument; anything else as it is.
Value at_least_1d(Builder& b, Value x);

// `indices` are of S32 or S64 (PyTorch's words otherwise, with `op` in front).
void require_index(std::string_view op, Value indices);
// check() that 0 <= index < size (-size <= index with `wrap`).
void check_index(Builder& b, Value index, int64_t size, std::string message, bool wrap = false, Raises raises = Raises::IndexError);
// index < 0 counts from the end.
Value wrap_index(Builder& b, Value index, int64_t size);
// `x` with dimension `dim` replaced by the dimensions of `index`. An index out of range is clamped.
Value take_rows(Builder& b, Value x, int64_t dim, Value index);
// Elements of `x` [d0.. n ..dk] at index [d0.. m ..dk] along `dim`; other dimensions agree. An index out of range is
// clamped.
Value take_along(Builder& b, Value x, int64_t dim, Value index);

// bool[N] arrives as a list of 0 and 1.
bool wanted(const Dims& mask, size_t i);

}  // namespace flambeau::ops
