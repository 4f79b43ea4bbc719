// Reading the messages of xla/service/hlo.proto and xla/xla_data.proto, field by field. Internal to src/compiled.
//
// Messages that stand alone (shapes, literals, replica groups, dimension numbers) are read here; those that refer to each
// other (instructions, computations, the module) in parse.cc.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/wire.h"
#include "compiled/module.h"

namespace flambeau::compiled {

// Calls `visit(reader)` at each field of the message; InvalidArgument when its wire format is broken.
template <class Visit>
void for_each_field(std::string_view message, std::string_view what, Visit&& visit) {
  ProtoReader reader(message);
  while (reader.next()) visit(reader);
  if (reader.broken())
    raise<InvalidArgument>("[compiled.parse] expected a serialized {}, got one that is broken or cut short", what);
}

// Appends the integers of a repeated field, packed or not.
void take_integers(const ProtoReader& field, std::vector<int64_t>& integers);

Shape parse_shape(std::string_view message);
std::optional<int64_t> parse_integer_literal(std::string_view message);
std::vector<int64_t> parse_dot_contracting(std::string_view message);  // of the left operand
void parse_convolution_dims(std::string_view message, ConvolutionDims& dims);
std::vector<WindowDim> parse_window(std::string_view message);

// The forms in which a module says a collective's groups.
void add_replica_group(std::string_view message, ReplicaGroups& groups);  // ReplicaGroup, one of several
ReplicaGroups parse_collective_device_list(std::string_view message);     // CollectiveDeviceListProto
ReplicaGroups parse_iota_replica_groups(std::string_view message);        // IotaReplicaGroupListProto
ReplicaGroups parse_mesh_axes_replica_groups(std::string_view message);   // MeshAxesReplicaGroupListProto

// a * b and a + b of sizes; InvalidArgument where the result needs more than 62 bits.
int64_t checked_product(int64_t a, int64_t b);
int64_t checked_sum(int64_t a, int64_t b);

}  // namespace flambeau::compiled
