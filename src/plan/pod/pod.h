// Which TPU pod a user means, whether there is such a pod, and what libtpu must be told to compile for it.
//
// A slice is a block of chips joined by ICI; several equal slices, joined by the data-centre network, run one program too.
//
// Names. After the generation (v4, v5e or v5litepod, v5p or v5, v6e, tpu7x or v7x; any case; "tpu-" may stand before it)
// comes a shape in chips or a count:
//
//   v5p:8x8x16, v5p-8x8x16   a slice of 8 x 8 x 16 chips
//   v5p-2048                 Google Cloud's accelerator types. The number counts TensorCores: on v4, v5p and tpu7x two a
//                            chip, so these are 1,024 chips; on v5e and v6e one a chip. The shape is the slice of that size
//                            which is most like a cube (v5p-2048: 8x8x16), the default there.
//
// Shapes: those of targets/slices.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/pjrt.h"
#include "targets/slices.h"

namespace flambeau::plan {

using targets::Chip;
using targets::chip_of;
using targets::Generation;

struct Pod {
  Generation generation = Generation::V5e;
  std::vector<int64_t> shape;  // of a slice, in chips
  int64_t slices = 1;

  const Chip& chip() const { return chip_of(generation); }
  int64_t chips_per_slice() const;
  int64_t chips() const { return slices * chips_per_slice(); }
  int64_t devices() const { return chips() * chip().devices; }  // what a mesh must multiply out to
  std::string name() const;         // "v5p:8x8x16": of a slice; parse_pod reads it
  std::string spoken() const;       // "v5p:8x8x16 (1,024 chips)", "2 slices of tpu7x:4x4x4 (128 chips, 256 devices)"

  // For pjrt::Topology and pjrt::TopologyJob. Lists have three elements, whatever the shape.
  std::string topology() const;         // "v5:8x8x16"
  pjrt::Attributes attributes() const;  // "wrap", "chips_per_host_bounds", "num_slices" where there are several, ...
  std::vector<int64_t> wrap() const { return targets::rings_of(shape); }
  std::vector<int64_t> host() const { return targets::host_of(shape); }
  // Of the chip of a device, by its number: chips are counted along the first dimension first, slice by slice.
  std::vector<int64_t> coordinates(int64_t device) const;
  // Bytes a second that each of several devices of one slice, the first among them, can send to the others while the rest of the slice does
  // the same: over the links of the dimensions in which they differ. Of a ring a chip uses two links, of a line without one only
  // the one that its end has; groups that lie between each other share them.
  double ici_bandwidth(std::span<const int64_t> devices) const;
  // libtpu (0.0.52) crashes in its first phase, whatever the program, where there are several slices: compile whole.
  bool has_first_phase() const { return slices == 1; }

  bool operator==(const Pod&) const = default;
};

// InvalidArgument, one line, with the nearest legal names, when there is no such pod. Passing it is enough for libtpu to
// know the topology.
Pod parse_pod(std::string_view text, int64_t slices = 1);

}  // namespace flambeau::plan
