// The parts of the device's kernels.
#pragma once

#include <span>

#include "ops/op.h"

namespace flambeau::device {

// Ops that make, view, copy and read tensors (tensor_ops.cc).
void register_ops();

// Ops of our own: their schemas and shapes, kernels for the CPU and gradients (own_ops.cc). May be called again.
void register_own_ops();
// The schemas and shapes of rows that bring one (definitions.cc).
void define_rows(std::span<const ops::Row> rows);

// Every row of the op table, with its in-place and out forms, and those of kernels (dispatch.cc).
void register_table();
// Some rows alone. One that this PyTorch does not fit is left out, and said at log level debug.
void register_rows(std::span<const ops::Row> rows);

// Ops composed of others (composites.cc).
void register_composites();

// Ops whose results are as long as the data says (data_dependent.cc).
void register_data_dependent();

// Scaled dot product attention (attention.cc).
void register_attention();

// Batch norm, which writes running statistics (batch_norm.cc).
void register_batch_norm();

// What nn.MultiheadAttention and nn.TransformerEncoder call in eval mode (transformer.cc).
void register_transformer();

// torch.autocast's policies (autocast.cc).
void register_autocast();

}  // namespace flambeau::device
