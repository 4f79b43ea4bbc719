// Recording code that runs on each device with its own parts of global arrays (sdy.manual_computation), and its gradient.
//
// A manual computation is over some axes of the mesh. Its body sees shapes that are local to these and may use the collectives of
// internal_ops.h; the partitioner splits what is left by the other axes. It uses nothing of the recording around it but its operands.
// Another one may stand in its body, over other axes. Its gradient is recorded with it and split off as a second manual computation,
// which gets what it needs of the first stacked over the devices.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/partition.h"
#include "runtime/trace.h"

namespace flambeau::runtime {

// A value and the mesh axes that split it.
struct ManualSpec {
  TensorRef tensor;
  hlo::Sharding sharding;
};

// The backward half of a manual computation.
class ManualGradient {
 public:
  // `cotangents` are global, laid out as the results are. Gives a value for each gradient, laid out as it was declared.
  std::vector<std::shared_ptr<Storage>> run(std::span<const TensorRef> cotangents);

 private:
  friend class ManualRecording;
  uint64_t outer_id_ = 0;  // the recording that it belongs to
  std::shared_ptr<const Manual> manual_;
  ValueView index_;
  std::vector<ValueView> kept_;
};

class ManualRecording {
 public:
  // `axes`: of the mesh, that the body sees split; shardings name no others. InvalidArgument outside of a recording, without a mesh, for
  // other axes, or where a dimension does not split into equal parts.
  ManualRecording(std::vector<std::string> axes, std::span<const ManualSpec> operands);
  ~ManualRecording();
  ManualRecording(const ManualRecording&) = delete;
  ManualRecording& operator=(const ManualRecording&) = delete;

  const std::vector<std::shared_ptr<Storage>>& local() const { return local_; }
  const std::vector<Type>& local_types() const { return local_types_; }

  // Local results and how they lie together: a dimension that axes split is as often as long, others are the same everywhere.
  std::vector<std::shared_ptr<Storage>> finish(std::span<const ManualSpec> results);

  // For a body that was recorded together with its gradient: inputs that only the gradient sees, of the results' local types.
  std::shared_ptr<Storage> add_cotangent(const Type& local, const hlo::Sharding& sharding);
  struct Joint {
    std::vector<std::shared_ptr<Storage>> results;
    std::unique_ptr<ManualGradient> gradient;
  };
  Joint finish_joint(std::span<const ManualSpec> results, std::span<const ManualSpec> gradients);

 private:
  std::shared_ptr<Storage> add_input(const Type& type);
  Type global(const Type& local, const hlo::Sharding& sharding) const;
  void check_axes(const hlo::Sharding& sharding) const;
  std::shared_ptr<Manual> describe(std::unique_ptr<Trace> body, std::vector<ValueId> results, std::vector<hlo::Sharding> in,
                                   std::vector<hlo::Sharding> out) const;

  Trace* outer_;
  const hlo::Mesh& mesh_;
  std::vector<std::string> axes_;
  std::unique_ptr<Trace> body_;
  std::vector<ValueView> operands_;
  std::vector<hlo::Sharding> in_, cotangents_;
  std::vector<std::shared_ptr<Storage>> local_;
  std::vector<Type> local_types_;
};

}  // namespace flambeau::runtime
