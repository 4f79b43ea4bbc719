// The engine: one plugin's client, the programs compiled for it, and the two ways to run op calls.
//
//   strict   call() records one op, compiles it once for each signature and launches it at once, asynchronously
//   capture  between Recording's construction and finish() the thread's calls are collected and nothing runs; the
//            StepProgram that finish() gives replays them as one execution (recording.h)
//
// An engine for a target that is not here (EngineOptions::target) has no client: values have types and layouts and no data, programs
// are printed and not compiled, launching one gives the types of its results, and reading a value is an InvalidArgument.
//
// Threads: every function may be called from any thread. Compilation holds no lock that a running op needs; two requests for
// one program compile it once. A failure is raised by the call that it belongs to, by synchronize(), or by who reads a value that it
// concerns; never by another launch.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "pjrt/pjrt.h"
#include "runtime/in_flight.h"
#include "runtime/lower.h"
#include "runtime/storage.h"
#include "runtime/target.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

struct EngineOptions {
  std::string plugin = {};  // as pjrt::find_plugin takes it; empty: the default
  int virtual_devices = 1;  // of the CPU plugin
  pjrt::Attributes client_options = {};  // more of them, as the plugin documents them
  const pjrt::Plugin* loaded = nullptr;  // this one instead
  std::optional<Target> target = {};     // for this one, which is not here, instead of a plugin's devices
};

// What the engine has done since it started.
struct Counters {
  std::atomic<int64_t> ops_recorded{0};
  std::atomic<int64_t> programs_compiled{0};
  std::atomic<int64_t> programs_reused{0};
  std::atomic<int64_t> executions{0};
  std::atomic<int64_t> donations{0};  // arrays that executions were given to take over
  std::atomic<int64_t> compile_microseconds{0};
};

// A compiled trace.
struct Program {
  std::unique_ptr<pjrt::Executable> executable;  // null: the target is not here
  std::unique_ptr<const hlo::Graph> graph;  // then: what would be compiled
  std::string text;                     // the same as StableHLO
  pjrt::CompileOptions options;         // and how it is to be compiled
  std::vector<size_t> externals;        // of the trace, by parameter
  std::vector<int64_t> aliased;         // parameters that an output may take over
  std::vector<Type> outputs;            // of the wanted values; those without elements are not among the results
  std::vector<hlo::Sharding> shardings;  // of the outputs, with a mesh
  bool floats = false, integers = false, random = false;
  std::shared_ptr<const std::vector<std::string>> checks;  // messages; null: none
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

  // InvalidArgument when the target is not here.
  const pjrt::Client& client() const;

  // Lays a mesh over the first devices of the plugin: from then on every value is a global array and every program runs on all
  // devices of the mesh; a tensor that is told no sharding is replicated. None: back to one device. InvalidArgument while
  // tensors exist, since these lie otherwise.
  void set_mesh(std::optional<hlo::Mesh> mesh);
  const DeviceMesh* mesh() const { return mesh_.get(); }
  // What the compiler is told of every program from then on, before what is preferred for the target (runtime/compile_options.h).
  void set_compile_options(pjrt::CompileFlags options);
  // The mesh of the engine that is running, and a number that differs between meshes; null and 0 without one.
  static const hlo::Mesh* hlo_mesh();
  static uint64_t mesh_hash();
  // A storage that holds `type`, laid out as `sharding` says (ignored without a mesh); `fill` is asked for the parts that this process
  // holds.
  std::shared_ptr<Storage> make_sharded(const Type& type, const hlo::Sharding& sharding, const FillBox& fill);
  // The same from dense row-major data of the whole.
  std::shared_ptr<Storage> make_sharded(const Type& type, const hlo::Sharding& sharding, const void* data);
  // How the value behind a tensor that shows all of its storage lies on the mesh; replicated otherwise.
  static hlo::Sharding sharding_of(const TensorRef& tensor);
  const Target& target() const { return target_; }
  Counters& counters() { return counters_; }
  // Debug mode: every op is awaited, and its data-dependent checks are raised by the call itself.
  void set_debug(bool on) { debug_ = on; }
  bool debug() const { return debug_; }

  struct Output {
    std::optional<Type> type;          // none: the op does not give this output
    std::shared_ptr<Storage> storage;  // null when it was written into a given tensor
  };
  // Runs or records one op. Output i is written into `into[i]` where there is one (its shape must be the result's; the dtype is
  // converted), else it gets a storage of its own. `random` is asked by random ops.
  std::vector<Output> call(const ops::Row& row, std::span<const CallArgument> arguments,
                           std::span<const std::optional<TensorRef>> into = {}, RandomSource* random = nullptr,
                           std::string site = {});
  // The types that call() would give.
  std::vector<std::optional<Type>> infer(const ops::Row& row, std::span<const CallArgument> arguments);

  // Copies dense row-major elements of the tensor's own type and shape in (during the call) and out (waiting).
  void upload(const TensorRef& destination, const void* data);
  void download(const TensorRef& source, void* data);
  // Waits for everything that was launched, and raises the first failure with the number of the others.
  void synchronize() { in_flight_.wait_for_all(); }
  // `storage` gets `nbytes`, keeping the bytes that fit; a resize that fails changes nothing.
  void resize(Storage& storage, int64_t nbytes);

  // The trace that this thread records into; null: strict.
  static Trace* current();
  static void set_current(Trace* trace);

  // Compiles what makes `outputs` of a trace (or finds it). `name` becomes the module's.
  std::shared_ptr<const Program> program(const Trace& trace, std::span<const ValueId> outputs,
                                         std::span<const std::pair<size_t, size_t>> aliases, std::string_view name,
                                         std::span<const hlo::Sharding> shardings = {});

  // Lets go of all programs; those that are in use stay with their users. For who makes many and runs none: a planner.
  void forget_programs();

  struct Launch {
    std::span<const std::shared_ptr<const Array>> externals;  // by external of the trace; null where it has no elements
    std::span<const int64_t> non_donatable;                    // parameters
    std::span<const RecordedNumber> numbers;
    RandomPosition random;
  };
  struct Launched {
    std::vector<std::shared_ptr<const Array>> outputs;  // null where there are no elements
    InFlightLaunch launch;
  };
  Launched launch(const Program& program, const Launch& launch);
  // For the end of a call whose results have their place: remembers the launch, or in debug mode awaits it and raises its failures.
  void finish(InFlightLaunch launch);
  // Offers the arrays of aliased parameters to a launch. `storages` are those that they come from, by external of the trace; the array is
  // `externals`' alone beside its storage. Gives the parameters that are not given away.
  std::vector<int64_t> offer(Handover& handover, const Program& program, std::span<const std::shared_ptr<Storage>> storages,
                             std::span<const std::shared_ptr<const Array>> externals);

  // Gives an uninitialised storage zeros of the tensor's dtype.
  void materialise(const TensorRef& tensor);
  // Makes `tensor` one whose storage holds exactly its elements, in its type and shape; a copy, which is returned, where it is not.
  std::shared_ptr<Storage> dense(TensorRef& tensor);

 private:
  explicit Engine(const EngineOptions& options);
  pjrt::CompileOptions compile_options(const pjrt::CompileFlags& asked) const;
  std::shared_ptr<const Array> array_of(const Type& type, const hlo::Sharding& sharding, const void* data);
  // A dense copy of what `source` shows, whole on every device.
  std::shared_ptr<const Array> gathered(const TensorRef& source);
  std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> execute(const Program& program, const Launch& launch);
  void run_strict(Trace& trace, RandomPosition position);

  EngineOptions options_;
  std::shared_ptr<const pjrt::Client> client_;
  Target target_;
  std::unique_ptr<const DeviceMesh> mesh_;
  pjrt::CompileFlags preferred_options_;
  Counters counters_;
  std::atomic<bool> debug_{false};

  struct AskedOptions {
    pjrt::CompileFlags flags;
    uint64_t hash = 0;  // part of every program's key
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return key.low; }
  };
  std::mutex programs_mutex_;
  std::shared_ptr<const AskedOptions> asked_options_;
  std::unordered_map<Key, std::shared_future<std::shared_ptr<const Program>>, KeyHash> programs_;

  std::mutex mesh_launch_mutex_;
  std::vector<pjrt::Event> mesh_in_flight_;  // of the last program on virtual devices

  InFlight in_flight_;
};

}  // namespace flambeau::runtime
