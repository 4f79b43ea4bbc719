// Parameters: what a model declares, how each gets its first values, and how they lie in memory.
//
// A module is a struct of Weight members. `add` puts each of them on a Parameters list under its dotted name, with its shape and
// initial distribution; set_axes then names its dimensions. A member's address must stay valid as long as the list, so models are
// neither copied nor moved.
//
// The list has three views of the same values:
//   parameters        one a name that users know ("layers.3.attention.wq.weight"): optimizer groups, checkpoints, messages, foreign
//                     formats
//   stored tensors    one a Weight member: one parameter, or several that are fused along a dimension
//   physical tensors  what autograd differentiates and the optimizer updates: one stored tensor, or those of equal layers, stacked as
//                     rows
// add_fused() and stack() decide between them before there are values, and nothing that has names (a checkpoint) can tell.
//
// First values depend on nothing but (seed, the stored tensor's key, index within the whole of it): they are made by counter-based
// Philox on the host and copied, so that every device, sharding and layout starts from the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "spmd/sharding.h"

namespace flambeau::nn {

// A parameter as a module holds it, and the logical axes of its dimensions.
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
  static Init zeros() { return {.kind = Kind::Zeros}; }
  static Init normal(double std, double bound = 0) { return {.kind = Kind::Normal, .std = std, .bound = bound}; }
};

struct Traits {
  // Frozen (model.freeze of the configuration): no gradient, no optimizer states. A checkpoint has it all the same.
  bool trainable = true;
  // Not trained but updated by the step (Model::update_buffers), and no parameter to whoever counts them. Implies frozen. Models alone
  // declare them; no key of the configuration does.
  bool buffer = false;
  // Of the values in memory. What is trained is float32.
  at::ScalarType dtype = at::kFloat;
  friend bool operator==(const Traits&, const Traits&) = default;
};

// What a user calls a parameter (or a buffer).
struct Parameter {
  std::string name;  // dotted: "layers.0.attention.wq.weight"
  std::vector<int64_t> shape;
  size_t stored = 0;                // an index into Parameters::stored()
  int64_t begin = 0, length = -1;   // the part of Stored::fused_dim that it is; -1: all of the tensor

  int64_t elements() const;
  bool is_part() const { return length >= 0; }
};

// What one Weight member holds.
struct Stored {
  std::string name;  // "layers.0.attention.qkv.weight"
  // What first values depend on: the name at the time when they were defined, under which old checkpoints have the tensor, too. Empty: `name`.
  std::string key = {};
  std::vector<int64_t> shape;
  Init init;
  Traits traits = {};
  spmd::Axes axes = {};
  std::vector<size_t> parameters = {};  // indices into Parameters::all(): one, or the parts in order
  int64_t fused_dim = 0;                // along which parts lie one after another
  size_t physical = 0, row = 0;         // where it lies: an index into Parameters::physical(), and the row of it when that is stacked

  const std::string& draw_key() const { return key.empty() ? name : key; }
  int64_t elements() const;
};

struct Physical {
  Weight* weight;            // the member that holds it; a stacked one has axes {"layers", ...}
  std::vector<size_t> rows;  // indices into Parameters::stored(): one, or one a row
  bool stacked = false;      // weight->value is [rows.size(), ...]
};

// The logical axes of the stored tensors whose names match `pattern`, in which * stands for a layer's number.
struct AxesRule {
  std::string pattern;
  spmd::Axes axes;
};

// A parameter within a fused tensor: `length` indices of the fused dimension, read as a tensor of `shape`.
struct FusedPart {
  std::string name;
  int64_t length;
  std::vector<int64_t> shape;
};

class Parameters {
 public:
  // `key`: see Stored.
  void add(std::string name, Weight& member, std::vector<int64_t> shape, Init init, Traits traits = {}, std::string key = {});
  // `member` has the parts one after another along dimension `dim`; `name` is for the table of axes and messages to programmers.
  void add_fused(std::string name, Weight& member, std::vector<int64_t> shape, int64_t dim, std::vector<FusedPart> parts, Init init,
                 Traits traits = {});
  // Each stored tensor takes the axes of the one rule that matches it. InvalidArgument when that is none or several, or when the
  // number of axes is not that of its dimensions.
  void set_axes(std::span<const AxesRule> rules);
  // The stored tensors of `members`, of equal shapes and traits, become the rows of `stacked`; the members hold nothing from then on.
  // To be called before there are values.
  void stack(std::span<Weight* const> members, Weight& stacked);
  // Freezes the parameters that `chosen` says yes to, and may store them as `dtype`. Before there are values and before stack(), with
  // which rows agree. InvalidArgument when a part of a fused tensor is chosen and another is not.
  void freeze(const std::function<bool(const std::string& name)>& chosen, at::ScalarType dtype = at::kFloat);

  // Makes every tensor on `device`; those that are trained require gradients.
  void initialize(uint64_t seed, at::Device device);
  // The same with zeros: for values that are about to be loaded.
  void allocate(at::Device device);

  // ---- parameters (and buffers) ----
  const std::vector<Parameter>& all() const { return parameters_; }
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }
  size_t size() const { return parameters_.size(); }
  int64_t elements() const;  // of the parameters alone
  int64_t trainable_elements() const;
  const Traits& traits(const Parameter& parameter) const { return stored_[parameter.stored].traits; }

  // ---- stored ----
  const std::vector<Stored>& stored() const { return stored_; }
  // The part of a value of its stored tensor that a parameter is, in the parameter's shape. A view where there is one.
  at::Tensor part_of(const at::Tensor& stored_value, const Parameter& parameter) const;
  // "layers.0.attention.{wq,wk,wv}.weight"
  std::string spoken_name(const Stored& stored) const;

  // ---- physical ----
  const std::vector<Physical>& physical() const { return physical_; }
  const Traits& traits(const Physical& physical) const { return stored_[physical.rows.front()].traits; }
  // "layers.*.attention.{wq,wk,wv}.weight" of stacked layers.
  std::string spoken_name(const Physical& physical) const;
  // Their values, in that order.
  std::vector<at::Tensor> tensors() const;
  // The values of those that are trained, in that order.
  std::vector<at::Tensor> trainable_tensors() const;
  // One tensor for each that is trained, among undefined ones for the others.
  std::vector<at::Tensor> like_physical(std::span<const at::Tensor> of_trainable) const;

  // ---- from physical tensors to parameters and back, for values, gradients and optimizer states alike ----
  // `like_physical` taken apart into one tensor a parameter; undefined ones stay so. Rows and parts come on the CPU, from one copy of
  // the whole; other tensors as they are.
  std::vector<at::Tensor> rows_of(const std::vector<at::Tensor>& like_physical) const;
  // Copies value(i) of every parameter i into its place in `like_physical`, with one upload a physical tensor. Undefined ones are not
  // asked for; an undefined value leaves zeros.
  void assign(const std::vector<at::Tensor>& like_physical, const std::function<at::Tensor(size_t parameter)>& value) const;

 private:
  void put(Stored stored, Weight& member);
  std::vector<int64_t> shape_of(const Physical& physical) const;
  at::Tensor whole_of(const Stored& stored, const std::function<at::Tensor(size_t parameter)>& value) const;

  std::vector<Parameter> parameters_;
  std::vector<Stored> stored_;
  std::vector<Physical> physical_;
};

// The first values of a rectangular part of `stored`, dense row-major.
void fill_initial(const Stored& stored, uint64_t seed, std::span<const int64_t> start, std::span<const int64_t> size, float* out);
// All of them as a float32 tensor on the CPU.
at::Tensor initial_values(const Stored& stored, uint64_t seed);

}  // namespace flambeau::nn
