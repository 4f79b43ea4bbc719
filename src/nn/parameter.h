// Parameters: what a model declares, and how each gets its first values.
//
// A module is a struct of at::Tensor members. `declare` puts each of them on a Parameters list under its dotted name, with
// its shape and initial distribution; the list then fills the members. A member's address must stay valid as long as the list,
// so models are neither copied nor moved.
//
// First values depend on nothing but (seed, parameter name, index within the whole parameter): they are made by counter-based
// Philox on the host and copied, so that every device and every sharding starts from the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::nn {

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

struct Parameter {
  std::string name;  // dotted: "layers.0.attention.qkv.weight"
  std::vector<int64_t> shape;
  Init init;
  at::Tensor* tensor;  // the member that holds it

  int64_t elements() const;
};

class Parameters {
 public:
  void add(std::string name, at::Tensor& member, std::vector<int64_t> shape, Init init);

  // Makes every tensor, float32, on `device`, requiring gradients.
  void initialize(uint64_t seed, at::Device device);
  // The same with zeros: for values that are about to be loaded.
  void allocate(at::Device device);

  const std::vector<Parameter>& all() const { return parameters_; }
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }
  size_t size() const { return parameters_.size(); }
  int64_t elements() const;
  std::vector<at::Tensor> tensors() const;

 private:
  std::vector<Parameter> parameters_;
};

// The first values of `parameter` as a float32 tensor on the CPU.
at::Tensor initial_values(const Parameter& parameter, uint64_t seed);

}  // namespace flambeau::nn
