// The mesh that a run uses, and the table that says which of its axes split which logical axis of weights and activations, and what for.
//
// The axes of the mesh, in the order in which devices are numbered, major first: replicate (copies of the whole model), shard (data
// parallelism that also splits weights), context (parts of each sequence), tensor (parts of each layer), expert. Those of size 1
// are left out. What an axis is for says the table alone: code asks for a role and names no axis.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hlo/graph.h"
#include "spmd/sharding.h"

namespace flambeau::spmd {

using MeshAxes = std::vector<std::string>;

struct Degrees {
  int64_t replicate = 1, shard = 1, context = 1, tensor = 1, expert = 1;
  std::vector<hlo::MeshAxis> axes() const;  // all of them, in the order of the mesh
  int64_t devices() const;
  int64_t data_parallel() const;  // how many parts standard_rules() make of a batch
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

// What axes of the mesh are for where they split a logical axis.
enum class AxisRole {
  Batch,    // they split the rows of a batch: data parallelism
  Storage,  // they split weights where these are stored; a weight is gathered over them to be used (fully sharded data parallelism)
  Compute,  // they split the work of a layer, and weights in use: tensor, sequence, context and expert parallelism
};

struct ShardingRule {
  std::string logical_axis;
  MeshAxes axes;  // major first
  AxisRole role;
};

// The rules that dense and expert models share (TorchTitan's parallelism, said once): batches over the data axes and sequences over
// context; weights over shard and context where they are stored (FSDP), attention heads, feed-forward width and vocabulary over tensor
// (Megatron's column and row parallel pairs), and with sequence parallelism the residual stream's sequence over tensor too.
std::vector<ShardingRule> standard_rules(bool sequence_parallel = true);

class ShardingRules {
 public:
  // A logical axis without a rule is not split.
  ShardingRules(Degrees degrees, std::vector<ShardingRule> rules);

  const Degrees& degrees() const { return degrees_; }
  const hlo::Mesh& mesh() const { return mesh_; }
  // The axes of the mesh that these rules may split by: all, but inside of a manual computation.
  const MeshAxes& axes() const { return axes_; }
  // How a tensor with these logical axes is stored. An axis of the mesh splits the first dimension that asks for it.
  hlo::Sharding sharding(const Axes& axes) const;
  // The same of a weight in use: split over the axes of compute alone.
  hlo::Sharding gathered(const Axes& axes) const;
  // The same of a value whose dimensions are the data's: axes that do not divide them are left out.
  hlo::Sharding sharding_where_it_divides(const Axes& axes, const std::vector<int64_t>& shape) const;
  // The axes of the mesh that split a logical axis, and in how many parts.
  MeshAxes axes_of(const std::string& logical_axis) const;
  int64_t parts(const std::string& logical_axis) const;
  // The axes of the mesh that have a role, in the order of the mesh, and in how many parts they split.
  MeshAxes axes_of(AxisRole role) const;
  int64_t parts(AxisRole role) const;
  // Rules of the same mesh that split nothing by `axes`.
  ShardingRules without(const MeshAxes& axes) const;

 private:
  const ShardingRule* find(const std::string& logical_axis) const;

  Degrees degrees_;
  std::vector<ShardingRule> rules_;
  hlo::Mesh mesh_;
  MeshAxes axes_;
};

// From then on this process follows `rules`: their mesh is the default of what is made and recorded. Tensors and captured steps that
// exist stay where they are. None: one device. Rules of a mesh of one device are the same as none.
void use_sharding_rules(std::optional<ShardingRules> rules);
// Null: one device, or within a manual computation over all axes. Within one over some axes the rules split by the others alone.
const ShardingRules* sharding_rules();

// While it lives, what this thread records is the body of a manual computation over `axes`, of those that sharding_rules() have.
class ManualScope {
 public:
  explicit ManualScope(const MeshAxes& axes);
  ~ManualScope();
  ManualScope(const ManualScope&) = delete;
  ManualScope& operator=(const ManualScope&) = delete;
  static const ManualScope* current();  // the innermost one; null outside of manual computations
  const MeshAxes& axes() const { return axes_; }  // of this one and of those around it
  const ShardingRules* rules() const { return rules_ ? &*rules_ : nullptr; }

 private:
  const ManualScope* outer_;
  MeshAxes axes_;
  std::optional<ShardingRules> rules_;  // none: no axis is left
};

// A tensor of `shape`, stored by the rules; `fill` is asked for its parts (one, the whole, on the CPU and without rules).
struct Part {
  std::vector<int64_t> start, size;
};
using FillPart = std::function<void(const Part& part, void* out)>;
at::Tensor make_tensor(at::Device device, const std::vector<int64_t>& shape, at::ScalarType dtype, const Axes& axes, const FillPart& fill);
// A tensor of the CPU, copied; where an axis of the mesh does not divide a dimension (a batch of one row), that one is not split.
at::Tensor place(const at::Tensor& host, const Axes& axes);
// Which indices of a dimension of `size` that a logical axis splits lie on devices of this process.
std::vector<bool> held(const std::string& logical, int64_t size);
// Zeros, stored by the rules.
at::Tensor zeros(at::Device device, const std::vector<int64_t>& shape, at::ScalarType dtype, const Axes& axes);
// Zeros stored like `tensor`.
at::Tensor zeros_like(const at::Tensor& tensor, at::ScalarType dtype);

}  // namespace flambeau::spmd
