// The engine of this process: one plugin's client, or a target to compile for ahead of time, and the parts that record, compile and run.
//
//   strict   call() runs one op at once (strict_runner.h)
//   capture  between Recording's construction and finish() the thread's calls are collected and nothing runs (recording.h); the
//            StepProgram that finish() gives replays them as one execution (step_program.h)
//
// An engine that works ahead of time (EngineOptions::target) has no client: values have types and layouts and no data, programs
// are printed and not compiled, launching one gives the types of its results, and reading a value is an InvalidArgument.
//
// Threads: every function may be called from any thread. A failure is raised by the call that it belongs to, by synchronize(), or by who
// reads a value that it concerns; never by another launch.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pjrt/pjrt.h"
#include "runtime/counters.h"
#include "runtime/devices.h"
#include "runtime/launcher.h"
#include "runtime/program_cache.h"
#include "runtime/strict_runner.h"
#include "runtime/transfers.h"

namespace flambeau::runtime {

struct EngineOptions {
  std::string plugin = {};  // as pjrt::find_plugin takes it; empty: the default
  int virtual_devices = 1;  // of the CPU plugin
  pjrt::Attributes client_options = {};  // more of them, as the plugin documents them
  const pjrt::Plugin* loaded = nullptr;  // this one instead
  std::optional<targets::Target> target = {};     // ahead of time, for this one, instead of a plugin's devices
};

class Engine {
 public:
  // Starts the engine of this process; later calls with the same options do nothing, with others they are an InvalidArgument.
  static Engine& start(const EngineOptions& options = {});
  // Starts it with the defaults when nobody has.
  static Engine& get();
  static void set_defaults(const EngineOptions& options);
  static bool started();
  // Whether this process was forked from one that had started it: then get() raises.
  static bool in_bad_fork();

  const Devices& devices() const { return devices_; }
  ProgramCache& programs() { return programs_; }
  Launcher& launcher() { return launcher_; }
  Transfers& transfers() { return transfers_; }
  Counters& counters() { return counters_; }
  // InvalidArgument ahead of time, when there is none.
  const pjrt::Client& client() const { return devices_.client(); }
  const targets::Target& target() const { return devices_.target(); }

  // The default mesh: of recordings, and of what is made from nothing. Arrays and programs keep the mesh that they were made for, so it
  // may change at any time. None: one device.
  void set_mesh(const std::optional<hlo::Mesh>& mesh);
  const DeviceMesh* mesh() const { return devices_.default_mesh(); }
  // A storage on the default mesh that holds `type`, laid out as `sharding` says (ignored without a mesh); `fill` is asked for the parts
  // that this process holds.
  std::shared_ptr<Storage> make_sharded(const Type& type, const hlo::Sharding& sharding, const FillBox& fill);
  // The same from dense row-major data of the whole.
  std::shared_ptr<Storage> make_sharded(const Type& type, const hlo::Sharding& sharding, const void* data);
  // How the value behind a tensor that shows all of its storage lies on its mesh; replicated otherwise.
  static hlo::Sharding sharding_of(const TensorRef& tensor);

  void set_debug(bool on) { launcher_.set_debug(on); }
  bool debug() const { return launcher_.debug(); }
  void synchronize() { launcher_.synchronize(); }

  using Output = CallOutput;
  std::vector<Output> call(const ops::Row& row, std::span<const CallArgument> arguments,
                           std::span<const std::optional<TensorRef>> into = {}, RandomSource* random = nullptr, std::string site = {}) {
    return runner_.call(row, arguments, into, random, std::move(site));
  }
  std::vector<std::optional<Type>> infer(const ops::Row& row, std::span<const CallArgument> arguments) const {
    return runner_.infer(row, arguments);
  }
  void upload(const TensorRef& destination, const void* data) { transfers_.upload(destination, data); }
  void download(const TensorRef& source, void* data) { transfers_.download(source, data); }
  void resize(Storage& storage, int64_t nbytes) { transfers_.resize(storage, nbytes); }

  // The trace that this thread records into; null: strict.
  static Trace* current() { return Trace::current(); }

 private:
  explicit Engine(const EngineOptions& options);

  EngineOptions options_;
  Counters counters_;
  Devices devices_;
  ProgramCache programs_{devices_, counters_};
  Launcher launcher_{devices_, counters_};
  StrictRunner runner_{devices_, programs_, launcher_, counters_};
  Transfers transfers_{devices_, programs_, launcher_, runner_};
};

}  // namespace flambeau::runtime
