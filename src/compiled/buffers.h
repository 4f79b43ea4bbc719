// Where a compiled program's values lie in memory and from when to when, as XLA's reports say ("buffer assignment" and "live
// ranges", pjrt::TopologyResult has them).
//
// The texts may be anything; parse_buffers raises InvalidArgument for what contradicts itself. Times are positions in the
// schedule, where a loop's body is written out once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flambeau::compiled {

// A value within an allocation. Values that lie at the same offset at the same time are one piece of memory: a loop's state,
// an update in place.
struct BufferValue {
  std::string name;   // as value_name gives it
  std::string shape;  // with its layout: "f32[320,32]{0,1:T(8,128)}"
  int64_t offset = 0, size = 0;
  int64_t first = -1, last = -1;  // it is needed from `first` to `last`, both included; -1: not said
};

struct Allocation {
  enum class Use { Parameter, Constant, Temporary, ThreadLocal, Other };  // Other: results, and what is not said

  Use use = Use::Other;
  int64_t size = 0;
  int64_t color = 0;       // the memory: 0 is HBM, 4 and 5 (what is offloaded) the host's, others are on the chip
  int64_t parameter = -1;  // its number
  std::vector<BufferValue> values;

  bool on_host() const { return (color == 4 || color == 5) && use != Use::ThreadLocal; }
  bool in_hbm() const { return color == 0 && use != Use::ThreadLocal; }  // a fusion's own memory comes and goes
};

struct Buffers {
  std::vector<Allocation> allocations;
  int64_t schedule_length = 0;

  int64_t hbm_bytes() const;
  int64_t host_bytes() const;
};

Buffers parse_buffers(std::string_view buffer_assignment, std::string_view live_ranges);

// The bytes of the elements of an array that is written "f32[6,32]{...}"; 0 for tuples and what is no shape.
int64_t bytes_of_shape(std::string_view text);

}  // namespace flambeau::compiled
