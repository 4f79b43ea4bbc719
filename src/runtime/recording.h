// Recording a function's ops into one program, and replaying it.
//
// A Recording redirects the op calls of the thread that made it; destroying it without finish() leaves every tensor as it was.
// finish() gives a StepProgram: storages that existed before and were read are its state inputs, those that were written its state
// outputs (donated), tensors made inside and still alive afterwards become state too, results get storages of their own.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/partition.h"

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
  const std::shared_ptr<const Program>& program() const { return program_; }
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
  uint64_t mesh_hash_ = 0;                // of the mesh that it was recorded for
  std::shared_ptr<const Program> program_;
};

class Recording {
 public:
  explicit Recording(std::string name);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // A storage that stands for a declared input while recording; on a mesh it lies as `sharding` says.
  std::shared_ptr<Storage> add_input(const Type& type, const hlo::Sharding& sharding = {});
  // `results` may be views and may be state.
  std::unique_ptr<StepProgram> finish(std::span<const TensorRef> results);

 private:
  std::string name_;
  std::unique_ptr<Trace> trace_;
  std::vector<Type> input_types_;
};

// The backward loop of a scan: runs in the recording that its forward loop ran in, from the last turn to the first.
class GradientLoop {
 public:
  // `initial` is what the cotangents begin with. Gives their values after the loop, then the stacked rows.
  std::vector<std::shared_ptr<Storage>> run(std::span<const TensorRef> initial);

 private:
  friend class LoopRecording;
  uint64_t outer_id_ = 0;  // the recording that it belongs to
  std::unique_ptr<Loop> loop_;
  uint64_t random_distance_ = 0;
};

// The body of a loop, recorded once into the current recording.
class LoopRecording {
 public:
  // The carry as the recording around it has it; each of `stacked` is [trip_count, ...], and turn i sees its row i.
  LoopRecording(int64_t trip_count, std::span<const TensorRef> carry, std::span<const TensorRef> stacked = {});
  ~LoopRecording();
  LoopRecording(const LoopRecording&) = delete;
  LoopRecording& operator=(const LoopRecording&) = delete;

  const std::shared_ptr<Storage>& index() const { return index_; }  // rank-0 S64
  const std::vector<std::shared_ptr<Storage>>& carry() const { return carry_; }
  const std::vector<std::shared_ptr<Storage>>& rows() const { return rows_; }

  // The carry after the last turn. `next` has the carry's types.
  std::vector<std::shared_ptr<Storage>> finish(std::span<const TensorRef> next);

  // For a body that was recorded together with its gradient: inputs that only the gradient sees, behind all others.
  std::shared_ptr<Storage> add_cotangent(const Type& type);
  struct Joint {
    std::vector<std::shared_ptr<Storage>> results;  // the carry after the last turn
    std::unique_ptr<GradientLoop> gradient;
  };
  // Runs the forward loop. `gradient_next` are the cotangents' next values, `gradient_rows` what the backward loop stacks.
  Joint finish_joint(std::span<const TensorRef> next, std::span<const TensorRef> gradient_next,
                     std::span<const TensorRef> gradient_rows, const KeepPolicy& policy);

 private:
  std::shared_ptr<Storage> add_input(const Type& type);
  std::vector<ValueId> dense_values(std::span<const TensorRef> tensors);
  void check_carry(std::span<const TensorRef> next) const;

  Trace* outer_;
  std::unique_ptr<Loop> loop_;
  std::shared_ptr<Storage> index_;
  std::vector<std::shared_ptr<Storage>> carry_, rows_;
};

}  // namespace flambeau::runtime
