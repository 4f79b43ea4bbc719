// What the chips of each TPU generation are called, what they can do at best, and how they are joined: one table of published figures, for
// a run's MFU and for plans.
//
// A chip is what one rents and what a pod's shape counts. A device is what a program is partitioned over and what holds an
// array's shard. They are the same but on v7x, whose chips are two devices of half a chip each. A core (TensorCore) is
// neither: the two cores of a v4 or v5p chip work as one device.
//
// Figures are what specification sheets say, not what a program reaches. ICI (inter-chip interconnect) joins the chips of a
// slice; DCN (data-centre network) joins the hosts, and so slices.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace flambeau::targets {

enum class Generation { V4, V5e, V5p, V6e, V7x };

// Of a chip, or of a device. Per second, and in bytes and operations: 459e12, not 459.
struct Peak {
  double bf16_flops = 0;     // of matrix products: a multiplication and an addition are two
  double hbm_bytes = 0;      // of memory, before the system takes its part
  double hbm_bandwidth = 0;  // bytes, read and written together
  double ici_bandwidth = 0;  // bytes sent over all links; as many are received at the same time
  double dcn_bandwidth = 0;  // bytes sent, of what its host can send
  double host_bandwidth = 0;  // bytes moved to its host's memory or back, over PCIe
};

struct Chip {
  Generation generation;
  std::string_view name;         // "v5p": how names of pods begin
  std::array<std::string_view, 4> other_names;  // in the same place: "v5litepod", "trillium"
  std::string_view libtpu_name;  // "v5": how libtpu's names of topologies begin
  std::string_view device_kind;  // "TPU v5": what libtpu calls its devices
  int64_t devices = 0;           // of a chip
  int64_t counted = 0;           // what a name such as v5p-2048 counts: so many a chip

  Peak peak;                   // of a chip
  int64_t device_memory = 0;   // bytes a program may use of one DEVICE's memory: what libtpu says of the largest slice
  int64_t on_chip_memory = 0;  // bytes of one DEVICE's own memory in which the compiler keeps values of loops
  int64_t links = 0;           // of ICI, of a chip inside a torus: two in each dimension
  int64_t dimensions = 0;      // of the torus
  int64_t largest_slice = 0;   // chips
  int64_t most_chips = 0;      // of all slices of one program together; 0: no figure is published

  Peak device_peak() const;         // of one device: a chip's, divided by its devices
  double link_bandwidth() const;    // bytes a second of one link, in one direction
};

std::span<const Chip> chips();  // oldest first
const Chip& chip_of(Generation generation);
// The chip of the name of a pod, in small letters: "v5p", "trillium". Null where there is none.
const Chip* chip_named(std::string_view name);
// The chip whose devices a plugin calls so: "TPU v5 lite", "TPU v5e", "TPU7x"; null where it is none of these.
const Chip* chip_of_kind(std::string_view device_kind);

// A device's peak FLOPs a second in dense bfloat16 products, by what its plugin calls it: TPUs and GPUs that the tables have.
std::optional<double> peak_flops(std::string_view device_kind);

}  // namespace flambeau::targets
