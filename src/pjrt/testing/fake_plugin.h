// A PJRT plugin made of host memory, for tests: of what happens when a plugin fails, of clients that span processes,
// and of what a layer above leaves alive.
//
// It compiles any text that has a function @main: outputs have the types of its results and are filled with zeros,
// arguments marked tf.aliasing_output or jax.buffer_donor are donated. It computes nothing and knows no shardings (every
// device of a program gets whole outputs).
//
// Client options: "cpu_device_count" (default 4), "process_count" (default 1; the devices are split evenly and those of
// process 0 are addressable), "platform_name" (default "fake"). Topologies: "fake:AxB" has A times B devices.
//
// There is one fake in a process. Its state below is guarded by a lock; tests reset it with FaultScope.
#pragma once

#include <cstdint>
#include <string>

#include "pjrt/pjrt.h"

namespace flambeau::pjrt::fake {

// The complete table. Copy and change it (null entry points, smaller struct_size, other versions), keep the copy for the
// rest of the process, and give it to Plugin::from_api.
const PJRT_Api& fake_api();

// Plugin::from_api of the complete table.
const Plugin& fake_plugin();

// A call that fails with `text` (none: it does not fail) after `after` calls that do not, and again each time after.
struct Fault {
  std::string text = {};
  int code = 13;  // PJRT_Error_Code; INTERNAL
  int after = 0;
};

struct Faults {
  Fault initialize = {}, create_client = {}, compile = {}, deserialize = {}, serialize = {};
  Fault execute = {};       // the launch fails
  Fault execute_spent = {};  // the launch fails after it has taken over the arguments that are donated to it
  Fault execute_late = {};  // the launch succeeds; its outputs' events, and their downloads, fail
  Fault upload = {}, download = {};
  Fault download_late = {};  // the download starts; its event fails
  bool true_flags = false;      // Pred outputs are true instead of zeros
  std::string unknown_option = {};  // a compilation that is given this option of XLA fails
};

// Objects that the plugin has handed out and not got back.
struct Live {
  int64_t clients = 0, topologies = 0, executables = 0, buffers = 0, events = 0, errors = 0;
  bool operator==(const Live&) const = default;
};
Live live();
// Arguments that launches have taken over so far.
int64_t donated();

// While one lives, calls fail as `faults` say. Faults of an inner scope take the place of the outer ones.
class FaultScope {
 public:
  explicit FaultScope(Faults faults);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

 private:
  Faults outer_;
};

// While one lives, launched programs do not finish: their outputs' events are not ready. They finish, and callbacks run
// on that thread, when it is destroyed or told to.
class LaunchesHeld {
 public:
  LaunchesHeld();
  ~LaunchesHeld();
  LaunchesHeld(const LaunchesHeld&) = delete;
  LaunchesHeld& operator=(const LaunchesHeld&) = delete;
  void finish();
};

}  // namespace flambeau::pjrt::fake
