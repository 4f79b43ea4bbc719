// Kernels that programs call: code for one operation that is not StableHLO.
//
// Who records an op asks here, by the kernel's name, with the target and the types of the operands on one device. The answer says how the
// kernel is called, as texts for ops::call_kernel; or in one line why there is none, and then the caller uses the StableHLO *twin*, an op of
// the table that takes and gives the same. What a kernel is depends on the target (targets::KernelForm):
//
//   Mosaic   a child process lowers it, once for a request; a cache of the user keeps it (python_child.h), and programs carry it
//   Ffi      a function of this process, which is registered with the plugin when the engine starts
//
// Kernels: flash_attention.cc. A new one has an entry in the list of registry.cc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/graph.h"
#include "pjrt/pjrt.h"
#include "targets/target.h"

namespace flambeau::kernels {

struct Request {
  std::string_view name;              // of the kernel: "flash_attention"
  std::vector<hlo::Type> operands;    // on one device
  std::vector<int64_t> options = {};  // what the kernel's own file says
};

// The calls of a kernel by name ("forward", "dq"): texts for ops::call_kernel.
using Calls = std::map<std::string, std::string, std::less<>>;

struct Answer {
  std::shared_ptr<const Calls> calls;  // null: there is no kernel
  std::string why_not;                 // then, in one line
};

struct Entry {
  std::string_view name;
  targets::KernelForm form;
  std::string_view twin;  // the op of the table: "flambeau::causal_attention"
  Answer (*find)(const Request&);
  void* handler = nullptr;  // Ffi: an XLA_FFI_Handler*, which calls name as "flambeau.<name>"
};

// All kernels.
std::vector<Entry> entries();
// One more. To be called before the engine starts.
void add(const Entry& entry);

// The kernel of that name for `target`. Answers are remembered, also that there is none. Any thread.
Answer find(const Request& request, const targets::Target& target);

// Registers the handlers of a target that calls functions of this process.
void register_handlers(const pjrt::Plugin& plugin, const targets::Target& target);

}  // namespace flambeau::kernels
