// L equal layers, one after another.
//
// A layer is named by its index ("layers.3.attention.wo.weight") in initialisation, optimizer, checkpoints and foreign formats.
// How the layers lie in memory is this class's own affair: they are separate tensors, because slices of stacked
// weights cost a copy a layer in the compiled step. scan() stacks them within the program.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "device/scan.h"
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

  // The same as one loop (device/scan.h): x = body(layer, x). Layer::kTensors lists its members; those of all layers are defined alike.
  template <class Body>
  at::Tensor scan(const at::Tensor& x, device::Keep keep, Body&& body) const {
    std::vector<at::Tensor Layer::*> members;
    std::vector<at::Tensor> stacked;
    for (at::Tensor Layer::*member : Layer::kTensors) {
      if (layers_.empty() || !(layers_.front().*member).defined()) continue;
      std::vector<at::Tensor> parts;
      for (const Layer& layer : layers_) parts.push_back(layer.*member);
      members.push_back(member);
      stacked.push_back(at::stack(parts));
    }
    const auto turn = [&](const at::Tensor&, const std::vector<at::Tensor>& carry, const std::vector<at::Tensor>& rows,
                          const std::vector<at::Tensor>&) -> std::vector<at::Tensor> {
      Layer layer;
      for (size_t i = 0; i < members.size(); ++i) layer.*members[i] = rows[i];
      return {body(layer, carry[0])};
    };
    return device::scan(size(), {x}, stacked, {}, turn, keep)[0];
  }

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

 private:
  std::vector<Layer> layers_;
};

}  // namespace flambeau::nn
