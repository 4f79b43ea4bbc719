// The rows of each file of ops. A new file declares its table here and adds it to the list in op.cc.
#pragma once

#include <span>

#include "ops/op.h"

namespace flambeau::ops {

// element by element
std::span<const Row> arithmetic_rows();
std::span<const Row> math_rows();
std::span<const Row> activation_rows();
std::span<const Row> logic_rows();
// making and moving
std::span<const Row> creation_rows();
std::span<const Row> shape_rows();
// reductions and scans
std::span<const Row> reduction_rows();
std::span<const Row> extremum_rows();
// neural networks
std::span<const Row> matmul_rows();
std::span<const Row> convolution_rows();
std::span<const Row> loss_rows();
std::span<const Row> norm_rows();
std::span<const Row> batch_norm_rows();
std::span<const Row> pooling_rows();
std::span<const Row> rnn_rows();
std::span<const Row> padding_rows();
std::span<const Row> upsample_rows();
std::span<const Row> dense_attention_rows();
std::span<const Row> block_attention_rows();
std::span<const Row> kernel_attention_rows();  // not in the list: see ops/kernel_call.h
std::span<const Row> indexing_rows();
std::span<const Row> scatter_rows();
std::span<const Row> mask_rows();
std::span<const Row> sorting_rows();
std::span<const Row> random_rows();
std::span<const Row> stochastic_round_rows();
std::span<const Row> order_rows();
std::span<const Row> optim_rows();
std::span<const Row> amp_rows();

}  // namespace flambeau::ops
