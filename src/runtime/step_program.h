// A recorded step as one program, replayed.
//
// Storages that existed before and were read are its state inputs, those that were written its state outputs (donated); tensors made
// inside and still alive afterwards are state too; results get storages of their own. It runs on the mesh that it was recorded for.
// State is a storage, the same at each replay; or a place, whose tensor the caller names at each replay (a parameter's `.grad`, say).
//
// Threads: run() and compile() may be called from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine.h"

namespace flambeau::runtime {

class StepProgram {
 public:
  // Compiles now; otherwise the first run does.
  void compile();
  // One execution. `inputs` have the recorded types (views are copied first); each result is a storage of its own. Nothing is changed when
  // the launch fails, except that donated state may be lost: it then raises the failure at its next use. `places` are
  // the storages that stand there now; `numbers` the values of the declared ones (NumberRef::input), empty: as they were recorded.
  std::vector<std::shared_ptr<Storage>> run(std::span<const TensorRef> inputs, RandomSource& random,
                                            std::span<Storage* const> places = {}, std::span<const double> numbers = {});

  // Whether these have the types that were recorded for the places, so that run() takes them.
  bool fits(std::span<Storage* const> places) const;
  // Whether `storage` is state that a run writes, or reads.
  bool writes(const Storage& storage) const;
  bool reads(const Storage& storage) const;
  // Whether the state that a run leaves behind has the recorded types, so that there can be another.
  bool keeps_types() const { return keeps_types_; }
  // A tensor that was made inside keeps the value that it has now; later runs do not replace it.
  void let_go(const Storage& made);

  const std::vector<Type>& input_types() const { return input_types_; }
  const std::vector<Type>& result_types() const { return result_types_; }
  const Trace& trace() const { return *trace_; }
  // Null before compile().
  std::shared_ptr<const Program> program() const;
  // Tensors made inside that outlive the recording and are not among its results, beside those that the caller knows of.
  size_t escaped(std::span<const TensorRef> known = {}) const;
  pjrt::MemoryStats memory_stats();

 private:
  friend class Recording;
  StepProgram() = default;
  struct Bound {
    std::weak_ptr<Storage> storage;
    std::shared_ptr<Storage> kept;  // state that existed before; escaped tensors live as long as their user keeps them
    size_t output;
    std::optional<size_t> place = {};  // then there is no storage
  };
  std::vector<RecordedNumber> numbers_given(std::span<const double> values) const;
  std::vector<std::shared_ptr<Storage>> sources(std::span<const TensorRef> inputs, std::span<Storage* const> places) const;
  std::vector<std::shared_ptr<const Array>> gather(std::span<const std::shared_ptr<Storage>> storages) const;

  std::string name_;
  std::unique_ptr<Trace> trace_;
  std::vector<Type> input_types_, result_types_;
  std::vector<size_t> result_outputs_;
  std::vector<Bound> bound_;
  std::vector<std::optional<size_t>> place_of_;  // by external
  bool keeps_types_ = true;
  std::vector<ValueId> outputs_;
  std::vector<std::pair<size_t, size_t>> aliases_;
  std::vector<hlo::Sharding> shardings_;  // of the outputs, with a mesh
  mutable std::mutex compile_mutex_;
  std::shared_ptr<const Program> program_;
};

}  // namespace flambeau::runtime
