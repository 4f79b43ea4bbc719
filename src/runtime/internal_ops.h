// Ops that PyTorch's dispatcher does not know: reading and writing views and values made of nothing, which the runtime records;
// layouts and collectives, which src/spmd does.
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"

namespace flambeau::runtime {

extern const ops::Row kZeros;     // (int[] dims, dtype) -> tensor
extern const ops::Row kLiteral;   // (int[] dims, dtype, str bytes) -> tensor
extern const ops::Row kIdentity;  // (tensor, dtype) -> the dense, converted tensor
extern const ops::Row kWrite;     // (base, contents, sizes, strides, offset, dtype) -> the new base

// Layouts on the mesh. Shardings and lists of axes are texts, see below.
extern const ops::Row kShardHint;     // (tensor, str sharding) -> the tensor, laid out so
extern const ops::Row kGatherWeight;  // the same, of a weight that is gathered to be used: cheap to keep apart, costly to keep
extern const ops::Row kManual;        // the row of Manual calls; never lowered by itself

// Collectives inside of a manual computation, over axes of the mesh.
extern const ops::Row kAllReduce;      // (tensor, str axes, str kind: "sum" or "max") -> tensor
extern const ops::Row kAllGather;      // (tensor, str axes, int dim) -> tensor, dim times the axes' size
extern const ops::Row kAllToAll;       // (tensor, str axes, int split_dim, int concat_dim) -> tensor
extern const ops::Row kReduceScatter;  // (tensor, str axes, int dim) -> tensor, dim divided by the axes' size; sums

std::string encode_axes(const std::vector<std::string>& axes);      // "replicate,shard"
std::string encode_sharding(const hlo::Sharding& sharding);          // "replicate,shard;;tensor": dimensions apart by semicolons
hlo::Sharding decode_sharding(std::string_view text, int64_t rank);

// `x`, read bit by bit as elements of `dtype`: a flat array when the types differ.
hlo::Value reinterpret_elements(hlo::Builder& b, hlo::Value x, DType dtype);

}  // namespace flambeau::runtime
