// What the partitioner makes of one operation of a recorded program: a device's share of the work, and what is sent.
//
// The rules are what libtpu's partitioner was seen to do with such programs (docs/planning.md compares the sums):
//   * an axis splits a matrix product along one of its indices; where it splits what is summed, parts are added up over
//     devices at once, in float32 where operands are bfloat16: scattered where the result is split by that axis, whole
//     elsewhere
//   * operands that lie otherwise than their operation wants are gathered or exchanged
//   * sums of products of large operands that are scattered go around a ring, piece by piece while the next piece is
//     computed ("windowed einsum"): collective-permutes, one more than there are devices
#pragma once

#include <string_view>
#include <vector>

#include "plan/analytic/propagate.h"

namespace flambeau::plan {

struct Transfer {
  std::string_view kind;  // as CollectiveGroup has it
  AxisSet axes = 0;
  DType dtype = DType::F32;
  double bytes = 0;  // of all `count`, each of the larger of operand and result, one device
  double count = 1;
};

struct Share {
  double flops = 0;         // of matrix products
  double kernel_bytes = 0;  // of HBM, as a kernel says; 0: it says nothing, or is none
  std::vector<Transfer> transfers;
};

// The transfers of a product's sum that go around a ring; null where none do.
const Transfer* ring_of(const Share& share);

// The bodies of loops and manual computations are not part of it.
Share share_of(const Layouts& layouts, const hlo::Node& node);

}  // namespace flambeau::plan
