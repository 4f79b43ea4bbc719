// Compiling for devices that are not there, in a process of its own.
//
// A compiler for a topology may end its process, hang, or take gigabytes, and it says some things only on standard error
// ("Involuntary full rematerialization"). So it runs in a child: the program `topology_compiler`, with a time limit.
// The two talk through files of a folder that is removed afterwards.
//
//   const TopologyResult compiled = compile_apart({.plugin = find_plugin("tpu"), .topology = "v5e:2x4",
//                                                  .program = text, .options = {.num_partitions = 8}});
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pjrt/pjrt.h"

namespace flambeau::pjrt {

struct TopologyJob {
  std::filesystem::path plugin = {};  // its library
  std::string topology = {};          // as Topology::create knows it
  // Also as there. A TPU topology has no wrapped links unless "wrap" (a number for each dimension, 1 where it wraps) says
  // so, and the compiler chooses other collectives then: give the true one.
  Attributes attributes = {};
  std::string program = {};  // StableHLO text
  CompileOptions options = {};
  bool whole = false;  // the whole compilation; else the first phase alone
  std::chrono::seconds time_limit{600};
  int64_t memory_limit = 0;  // bytes of the child's memory; 0: what the machine has
  // Asked every few milliseconds while the child works; it is ended when the answer is no. Empty: yes.
  std::function<bool()> goes_on = {};
};

struct TopologyResult {
  std::string optimized_hlo = {};  // a serialized xla.HloModuleProto
  // XLA's own reports, as text; empty where the compiler wrote none. compiled/buffers.h reads them, and sums up the memory
  // that the program needs.
  std::string buffer_assignment = {};  // every buffer: where it lies, how large it is, whose value it holds
  std::string live_ranges = {};        // from when to when each value is needed
  std::string diagnostics = {};        // what the compiler wrote to standard error
  int device_count = 0;                // of the topology
  std::string device_kind = {};        // "TPU v5 lite"
  int64_t device_memory = 0;           // bytes a program may use of one device; 0 where not told
};

// A program that needs more memory than a device has, with what the compiler told of it before it gave up: its reports and
// module, where it wrote them.
class DoesNotFit : public OutOfMemory {
 public:
  DoesNotFit(const std::string& text, TopologyResult told) : OutOfMemory(text), told_(std::move(told)) {}
  const TopologyResult& told() const { return told_; }

 private:
  TopologyResult told_;
};

// Nobody wants the result any more (TopologyJob::goes_on).
class Cancelled : public Error {
 public:
  using Error::Error;
};

// Compiles in a child and waits; leaves no child and no file behind, whatever happens. DoesNotFit when the program needs too
// much memory; PluginError with the compiler's text when it refuses the program or the topology, and with the end of what it
// wrote when it crashed, ran out of time or took more memory than it may; InvalidArgument for impossible options and when the
// program `topology_compiler` is not beside the running one (FLAMBEAU_TOPOLOGY_COMPILER may name it).
TopologyResult compile_apart(const TopologyJob& job);

// The lines of `diagnostics` that tell of costs which the compiler could not avoid.
std::vector<std::string> remarks(std::string_view diagnostics);

// What `topology_compiler FOLDER` does: the job in the folder. Gives the process's exit code.
int run_topology_job(const std::filesystem::path& folder);

// What TPU's plugin wants of the environment of a process that has no TPU, before it is loaded: no queries, no lock, warnings
// on standard error. Takes flags of XLA away: those that the plugin does not know would end the process.
void prepare_to_compile_for_tpu();

}  // namespace flambeau::pjrt
