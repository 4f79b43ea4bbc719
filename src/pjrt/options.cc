// CompileOptions as a serialized xla.CompileOptionsProto (xla/pjrt/proto/compile_options.proto), by hand: linking
// protocol buffers and XLA's messages for one would pin us to a version of both.
#include <type_traits>

#include "base/error.h"
#include "base/hash.h"
#include "base/wire.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

// xla.DeviceAssignmentProto: for each partition the devices of its replicas.
std::string device_assignment(const CompileOptions& options) {
  ProtoWriter message;
  message.integer(1, options.num_replicas).integer(2, options.num_partitions);
  for (int partition = 0; partition < options.num_partitions; ++partition) {
    ProtoWriter ids;
    for (int replica = 0; replica < options.num_replicas; ++replica) {
      ids.varint(
          static_cast<uint64_t>(options.device_ids[static_cast<size_t>(replica * options.num_partitions + partition)]));
    }
    message.bytes(3, ProtoWriter().bytes(1, ids.str()).str());
  }
  return message.str();
}

// xla.ExecutableBuildOptionsProto
std::string build_options(const CompileOptions& options) {
  ProtoWriter message;
  message.integer(1, -1);  // device_ordinal: none, the assignment says it
  message.integer(4, options.num_replicas).integer(5, options.num_partitions);
  if (options.num_partitions > 1) message.integer(6, true);  // use_spmd_partitioning
  if (!options.portable && !options.device_ids.empty()) message.bytes(9, device_assignment(options));
  if (options.num_partitions > 1 && options.use_shardy) message.integer(19, true);  // use_shardy_partitioner
  return message.str();
}

// An entry of CompileOptionsProto.env_option_overrides: {1 name, 2 xla.OptionOverrideProto}.
template <class Value>
std::string override_entry(std::string_view name, const Value& value) {
  ProtoWriter option;
  if constexpr (std::is_same_v<Value, bool>) {
    option.integer(2, value);
  } else if constexpr (std::is_same_v<Value, int64_t>) {
    option.integer(3, value);
  } else if constexpr (std::is_same_v<Value, double>) {
    option.real(4, value);
  } else {
    option.bytes(1, value);
  }
  return ProtoWriter().bytes(1, name).bytes(2, option.str()).str();
}

}  // namespace

std::string CompileOptions::to_proto() const {
  const auto count = static_cast<size_t>(num_replicas) * static_cast<size_t>(num_partitions);
  if (num_replicas < 1 || num_partitions < 1) {
    raise<InvalidArgument>("[pjrt.compile] expected at least one replica and one partition, got {} and {}", num_replicas,
                           num_partitions);
  }
  if (portable && count != 1) {
    raise<InvalidArgument>("[pjrt.compile] expected one device for a portable program, got {} replicas x {} partitions",
                           num_replicas, num_partitions);
  }
  if (!device_ids.empty() && device_ids.size() != count) {
    raise<InvalidArgument>("[pjrt.compile] expected {} device ids ({} replicas x {} partitions), got {}", count,
                           num_replicas, num_partitions, device_ids.size());
  }
  ProtoWriter message;
  message.bytes(3, build_options(*this));
  if (portable) message.integer(4, true);
  // XLA may otherwise keep more digits than a program's types say, and results change with fusion.
  CompileFlags flags = overrides;
  flags.insert(preferences.begin(), preferences.end());
  flags.try_emplace("xla_allow_excess_precision", false);
  for (const auto& [name, value] : flags) {
    message.bytes(7, std::visit([&](const auto& v) { return override_entry(name, v); }, value));
  }
  return message.str();
}

uint64_t CompileOptions::hash() const { return hash_string(to_proto()); }

}  // namespace flambeau::pjrt
