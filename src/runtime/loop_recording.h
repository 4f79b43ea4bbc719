// Recording the body of a loop, once, into the recording around it; and the loop of its gradient.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/partition.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

// The backward loop of a scan: runs in the recording that its forward loop ran in, from the last iteration to the first.
class GradientLoop {
 public:
  // `initial` is what the carry's cotangents begin with; `of_outputs` are the outputs', [trip_count, ...]. Gives the values of the first
  // after the loop, then the stacked rows.
  std::vector<std::shared_ptr<Storage>> run(std::span<const TensorRef> initial, std::span<const TensorRef> of_outputs);

 private:
  friend class LoopRecording;
  uint64_t outer_id_ = 0;  // the recording that it belongs to
  std::unique_ptr<Loop> loop_;
  uint64_t random_distance_ = 0;
};

// The body of a loop, recorded once into the current recording.
class LoopRecording {
 public:
  // The carry as the recording around it has it; each of `stacked` is [trip_count, ...], and iteration i sees its row i.
  LoopRecording(int64_t trip_count, std::span<const TensorRef> carry, std::span<const TensorRef> stacked = {});
  ~LoopRecording();
  LoopRecording(const LoopRecording&) = delete;
  LoopRecording& operator=(const LoopRecording&) = delete;

  const std::shared_ptr<Storage>& index() const { return index_; }  // rank-0 S64
  const std::vector<std::shared_ptr<Storage>>& carry() const { return carry_; }
  const std::vector<std::shared_ptr<Storage>>& rows() const { return rows_; }

  // The carry after the last iteration, then the outputs of all, [trip_count, ...]. `next` has the carry's types.
  std::vector<std::shared_ptr<Storage>> finish(std::span<const TensorRef> next, std::span<const TensorRef> outputs = {});

  // For a body that was recorded together with its gradient: inputs that only the gradient sees, behind all others. Those of outputs come
  // last.
  std::shared_ptr<Storage> add_cotangent(const Type& type);
  std::shared_ptr<Storage> add_output_cotangent(const Type& type);
  struct Joint {
    std::vector<std::shared_ptr<Storage>> results;  // as finish() gives them
    std::unique_ptr<GradientLoop> gradient;
  };
  // Runs the forward loop. `gradient_next` are the cotangents' next values, `gradient_rows` what the backward loop stacks.
  Joint finish_joint(std::span<const TensorRef> next, std::span<const TensorRef> outputs, std::span<const TensorRef> gradient_next,
                     std::span<const TensorRef> gradient_rows, const CheckpointPolicy& policy);

 private:
  std::shared_ptr<Storage> add_input(const Type& type);
  std::vector<ValueId> dense_values(std::span<const TensorRef> tensors);
  void check_carry(std::span<const TensorRef> next) const;

  Trace* outer_;
  std::unique_ptr<Loop> loop_;
  std::shared_ptr<Storage> index_;
  std::vector<std::shared_ptr<Storage>> carry_, rows_;
  size_t output_cotangents_ = 0;
};

}  // namespace flambeau::runtime
