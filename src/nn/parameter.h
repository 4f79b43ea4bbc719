// Parameters: what a model declares, how each gets its first values, and how they lie in memory.
//
// A module is a struct of Weight members. `declare` puts each of them on a Parameters list under its dotted name, with its shape and
// initial distribution; set_axes then names its dimensions. A member's address must stay valid as long as the list, so models are
// neither copied nor moved.
//
// The list has two views of the same values:
//   logical parameters  one a name ("layers.3.attention.wo.weight"): first values, optimizer groups, checkpoints, foreign formats
//   physical tensors    what autograd differentiates and the optimizer updates: each holds one logical parameter, or is
//                       stacked and holds those of equal layers as its rows
// stack() decides between the two before there are values, and nothing that has names (a checkpoint) can tell.
//
// First values depend on nothing but (seed, parameter name, index within the whole parameter): they are made by counter-based
// Philox on the host and copied, so that every device, sharding and layout starts from the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "spmd/sharding.h"

namespace flambeau::nn {

// A parameter as a module holds it: float32, and the logical axes of its dimensions.
struct Weight {
  at::Tensor value;
  spmd::Axes axes = {};
};

struct Init {
  enum class Kind { Ones, Zeros, Normal };
  Kind kind = Kind::Normal;
  double std = 0.02;
  double bound = 0;  // normal values beyond +-bound (absolute) are drawn again; 0 for none
  // Fused parameters: part p along dimension 0 has std * part_scale[p]. Empty: 1 everywhere.
  std::vector<double> part_scale = {};

  static Init ones() { return {.kind = Kind::Ones}; }
  static Init normal(double std, double bound = 0) { return {.kind = Kind::Normal, .std = std, .bound = bound}; }
};

// A logical parameter.
struct Parameter {
  std::string name;  // dotted: "layers.0.attention.qkv.weight"
  std::vector<int64_t> shape;
  Init init;
  spmd::Axes axes = {};
  size_t physical = 0, row = 0;  // where it lies: an index into Parameters::physical(), and the row of it when that is stacked

  int64_t elements() const;
};

struct Physical {
  Weight* weight;            // the member that holds it; a stacked one has axes {"layers", ...}
  std::vector<size_t> rows;  // indices into Parameters::all(): one, or one a row
  bool stacked = false;      // weight->value is [rows.size(), ...]
};

// The logical axes of the parameters whose names match `pattern`, in which * stands for a layer's number.
struct AxesRule {
  std::string pattern;
  spmd::Axes axes;
};

class Parameters {
 public:
  void add(std::string name, Weight& member, std::vector<int64_t> shape, Init init);
  // Each parameter takes the axes of the one rule that matches it. InvalidArgument when that is none or several, or when the
  // number of axes is not that of its dimensions.
  void set_axes(std::span<const AxesRule> rules);
  // The parameters of `members`, of equal shapes, become the rows of `stacked`; the members hold nothing from then on. To be
  // called before there are values.
  void stack(std::span<Weight* const> members, Weight& stacked);

  // Makes every tensor, float32, on `device`, requiring gradients.
  void initialize(uint64_t seed, at::Device device);
  // The same with zeros: for values that are about to be loaded.
  void allocate(at::Device device);

  // ---- logical ----
  const std::vector<Parameter>& all() const { return parameters_; }
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }
  size_t size() const { return parameters_.size(); }
  int64_t elements() const;

  // ---- physical ----
  const std::vector<Physical>& physical() const { return physical_; }
  // Their values, in that order.
  std::vector<at::Tensor> tensors() const;

  // ---- from one to the other, for values, gradients and optimizer states alike ----
  // `like_physical` taken apart into one tensor a logical parameter. Rows of a stacked tensor come on the CPU, from one copy of all;
  // other tensors as they are.
  std::vector<at::Tensor> rows_of(const std::vector<at::Tensor>& like_physical) const;
  // Copies value(i) of every logical parameter i into its place in `like_physical`, with one upload a physical tensor.
  void assign(const std::vector<at::Tensor>& like_physical, const std::function<at::Tensor(size_t logical)>& value) const;

 private:
  std::vector<int64_t> shape_of(const Physical& physical) const;

  std::vector<Parameter> parameters_;
  std::vector<Physical> physical_;
};

// The first values of a rectangular part of `parameter`, dense row-major.
void fill_initial(const Parameter& parameter, uint64_t seed, std::span<const int64_t> start, std::span<const int64_t> size, float* out);
// All of them as a float32 tensor on the CPU.
at::Tensor initial_values(const Parameter& parameter, uint64_t seed);

}  // namespace flambeau::nn
