// The mesh that a run uses, and the table that says which of its axes split which logical axis of weights and activations.
//
// The axes of the mesh, in the order in which devices are numbered, major first: replicate (copies of the whole model), shard (data
// parallelism that also splits weights), context (parts of each sequence), tensor (parts of each layer), expert. Those of size 1
// are left out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hlo/graph.h"
#include "spmd/sharding.h"

namespace flambeau::spmd {

struct Degrees {
  int64_t replicate = 1, shard = 1, context = 1, tensor = 1, expert = 1;
  int64_t devices() const { return replicate * shard * context * tensor * expert; }
  int64_t data_parallel() const { return replicate * shard; }  // how many parts a batch has
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

// Logical axis -> axes of the mesh, major first. A logical axis that is not named is not split.
using Rules = std::map<std::string, std::vector<std::string>>;

// The rules that dense and expert models share (TorchTitan's parallelism, said once): batches over the data axes and sequences over context;
// weights over shard and context where they are stored (FSDP), attention heads, feed-forward width and vocabulary over tensor
// (Megatron's column and row parallel pairs), and with sequence parallelism the residual stream's sequence over tensor too.
Rules standard_rules(bool sequence_parallel = true);

class ShardingRules {
 public:
  ShardingRules(Degrees degrees, Rules rules);

  const Degrees& degrees() const { return degrees_; }
  const hlo::Mesh& mesh() const { return mesh_; }
  // How a tensor with these logical axes is stored. An axis of the mesh splits the first dimension that asks for it.
  hlo::Sharding sharding(const Axes& axes) const;
  // The same of a weight in use: without the axes that split batches and sequences.
  hlo::Sharding gathered(const Axes& axes) const;
  // The same of a value whose dimensions are the data's: axes that do not divide them are left out.
  hlo::Sharding sharding_where_it_divides(const Axes& axes, const std::vector<int64_t>& shape) const;
  // The axes of the mesh that split a logical axis.
  std::vector<std::string> axes_of(const std::string& logical) const;
  // In how many parts a logical axis is split.
  int64_t parts(const std::string& logical) const;

 private:
  Degrees degrees_;
  Rules rules_;
  hlo::Mesh mesh_;
};

// From then on this process follows `rules`: their mesh is the default of what is made and recorded. Tensors and captured steps that
// exist stay where they are. None: one device. Rules of a mesh of one device are the same as none.
void use_sharding_rules(std::optional<ShardingRules> rules);
// Null: one device.
const ShardingRules* sharding_rules();

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
