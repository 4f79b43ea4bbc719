// L equal layers, one after another.
//
// A layer is named by its index ("layers.3.attention.wo.weight") in initialisation, optimizer, checkpoints and foreign formats.
// How the layers lie in memory is this class's own affair: they are separate tensors, because slices of stacked
// weights cost a copy a layer in the compiled step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "nn/parameter.h"

namespace flambeau::nn {

// Layer has declare(Parameters&, const std::string& prefix, int64_t index, options...), and stays where it is.
template <class Layer>
class Stack {
 public:
  explicit Stack(int64_t count) : layers_(static_cast<size_t>(count)) {}

  template <class... Options>
  void declare(Parameters& list, const std::string& name, const Options&... options) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].declare(list, name + "." + std::to_string(i), static_cast<int64_t>(i), options...);
    }
  }

  // x = body(layer, x, index) for each layer in order.
  template <class Body>
  at::Tensor apply(at::Tensor x, Body&& body) const {
    for (size_t i = 0; i < layers_.size(); ++i) x = body(layers_[i], std::move(x), static_cast<int64_t>(i));
    return x;
  }

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

 private:
  std::vector<Layer> layers_;
};

}  // namespace flambeau::nn
