// A guess of how a compiled step runs on one device, operation after operation: what is computed, what is moved, what is sent
// meanwhile, and when the device waits for it.
//
// No time here was measured on a TPU.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "compiled/analysis.h"
#include "compiled/axes.h"

namespace flambeau::plan {

// What one device can do, at best. Per second.
struct DeviceRates {
  double flops = 0;           // of matrix products
  double hbm_bytes = 0;       // read and written together
  double ici_bytes = 0;       // sent over all links within a slice, while as many are received
  double link_bytes = 0;      // over one link, in one direction; 0: as ici_bytes
  // As ici_bytes, of a collective over some axes of the mesh, by the sum of 2^index of these: it uses the links of the dimensions
  // of the torus along which they lie. Empty: ici_bytes for all.
  std::vector<double> ici_bytes_over = {};
  std::vector<std::string> ici_axes = {};  // then: the axes' names
  double dcn_bytes = 0;       // sent over the data-centre network
  std::vector<std::string> dcn_axes = {};  // axes of the mesh whose devices are in different slices
  double host_bytes = 0;      // moved to the host's memory or back
};

struct CollectiveTime {
  std::vector<size_t> axes;  // of the mesh, along which it runs; empty where that is not told
  double seconds = 0;  // of one run, alone
  double exposed = 0;  // the part of it that the device waits for
};

struct Timeline {
  double step_s = 0;
  std::vector<CollectiveTime> collectives;  // of the analysis's collectives, in their order
};

// Seconds that a collective takes when nothing else is sent: of n devices in a ring, all send (n-1)/n of the larger of operand
// and result, twice that for an all-reduce, and over each kind of network what crosses it.
double collective_seconds(const compiled::Collective& collective, const compiled::MeshAxes& mesh,
                          const DeviceRates& rates);
// The same of a kind and `bytes` over axes of the mesh.
double collective_seconds(std::string_view kind, double bytes, const std::vector<size_t>& axes, const compiled::MeshAxes& mesh,
                          const DeviceRates& rates);

// InvalidArgument for rates that are not positive where they are needed.
Timeline run_timeline(const compiled::Analysis& analysis, const compiled::MeshAxes& mesh, const DeviceRates& rates);

}  // namespace flambeau::plan
