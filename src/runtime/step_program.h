// A recorded step as one program, replayed.
//
// Storages that existed before and were read are its state inputs, those that were written its state outputs (donated); tensors made
// inside and still alive afterwards are state too; results get storages of their own. It runs on the mesh that it was recorded for.
//
// Threads: run() and compile() may be called from any thread.
#pragma once

#include <memory>
#include <mutex>
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
  // the launch fails, except that donated state may be lost: it then raises the failure at its next use.
  std::vector<std::shared_ptr<Storage>> run(std::span<const TensorRef> inputs, RandomSource& random);

  const std::vector<Type>& input_types() const { return input_types_; }
  const std::vector<Type>& result_types() const { return result_types_; }
  const Trace& trace() const { return *trace_; }
  // Null before compile().
  std::shared_ptr<const Program> program() const;
  // Tensors made inside that outlive the recording and are not among its results.
  size_t escaped() const;
  pjrt::MemoryStats memory_stats();

 private:
  friend class Recording;
  StepProgram() = default;
  struct Bound {
    std::weak_ptr<Storage> storage;
    std::shared_ptr<Storage> kept;  // state that existed before; escaped tensors live as long as their user keeps them
    size_t output;
  };
  std::vector<std::shared_ptr<Storage>> sources(std::span<const TensorRef> inputs) const;
  std::vector<std::shared_ptr<const Array>> gather(std::span<const std::shared_ptr<Storage>> storages) const;

  std::string name_;
  std::unique_ptr<Trace> trace_;
  std::vector<Type> input_types_, result_types_;
  std::vector<size_t> result_outputs_;
  std::vector<Bound> bound_;
  std::vector<ValueId> outputs_;
  std::vector<std::pair<size_t, size_t>> aliases_;
  std::vector<hlo::Sharding> shardings_;  // of the outputs, with a mesh
  mutable std::mutex compile_mutex_;
  std::shared_ptr<const Program> program_;
};

}  // namespace flambeau::runtime
