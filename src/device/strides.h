// The strides that PyTorch gives to an op's results.
//
// Where an op keeps the order in which its inputs lie in memory (x.t() * 2, channels_last), a result is a dense base in that order,
// seen through a permuted view; otherwise, and whenever all inputs are row-major, it is row-major.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "hlo/graph.h"

namespace flambeau::device {

struct StrideRule {
  enum class Kind {
    RowMajor,
    Pointwise,     // as TensorIterator orders the dimensions of all tensor arguments
    Preserve,      // as at::empty_like of the first one
    ChannelsLast,  // row-major, or channels_last where the arguments are
    Index,         // as TensorIterator orders those of x[i, j]
    Halves,        // Pointwise over the halves of the first one (glu)
    Stack,         // ChannelsLast of the concatenation, whose dimension is then split
  };
  Kind kind = Kind::RowMajor;
  std::optional<size_t> memory_format = {};  // the argument that names one instead
  bool of_all = false;                       // ChannelsLast: where all arguments are, not the first one
  bool number = false;                       // Pointwise: a number is a 0-dim tensor among the arguments
};

StrideRule stride_rule(const c10::OperatorHandle& op);

// Whether result_strides() may give anything: some tensor among the arguments has other strides than a row-major one, or a memory
// format is named.
bool may_permute(const StrideRule& rule, std::span<const c10::IValue> arguments);

// By result; empty: row-major. `types` are the results', `arguments` those of the functional form.
std::vector<hlo::Dims> result_strides(const StrideRule& rule, std::span<const c10::IValue> arguments,
                                      std::span<const std::optional<hlo::Type>> types);

}  // namespace flambeau::device
