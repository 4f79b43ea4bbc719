// L equal layers, one after another.
//
// A layer is named by its index ("layers.3.attention.wo.weight") in initialisation, optimizer, checkpoints and foreign formats. How
// the layers lie in memory is this class's own affair: as separate tensors, or (lay_out_stacked) each member as one tensor [L, ...],
// so that a loop over them copies nothing. Both run as a loop or written out, with the same numbers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/scan.h"
#include "nn/parameter.h"

namespace flambeau::nn {

// Layer has declare(Parameters&, const std::string& prefix, int64_t index, options...), lists its members in Layer::kWeights, and
// stays where it is.
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

  // From here on the layers' members lie stacked. After declare and the list's set_axes, before there are values.
  void lay_out_stacked(Parameters& list) {
    if (is_stacked_ || layers_.empty()) return;
    for (Weight Layer::*member : declared_members()) {
      std::vector<Weight*> parts;
      for (Layer& layer : layers_) parts.push_back(&(layer.*member));
      list.stack(parts, stacked_.*member);
    }
    is_stacked_ = true;
  }

  // x = body(layer, x, index) for each layer in order.
  template <class Body>
  at::Tensor apply(at::Tensor x, Body&& body) const {
    const std::vector<Layer> rows = is_stacked_ ? unstacked() : std::vector<Layer>();
    const std::vector<Layer>& layers = is_stacked_ ? rows : layers_;
    for (size_t i = 0; i < layers.size(); ++i) x = body(layers[i], std::move(x), static_cast<int64_t>(i));
    return x;
  }

  // The same as one loop (device/scan.h): x = body(layer, x).
  template <class Body>
  at::Tensor scan(const at::Tensor& x, const device::KeepPolicy& policy, Body&& body) const {
    const std::vector<Weight Layer::*> members = declared_members();
    std::vector<at::Tensor> stacked;
    for (Weight Layer::*member : members) stacked.push_back(is_stacked_ ? (stacked_.*member).value : stack_of(member));
    const auto turn = [&](const at::Tensor&, const std::vector<at::Tensor>& carry, const std::vector<at::Tensor>& rows,
                          const std::vector<at::Tensor>&) -> std::vector<at::Tensor> {
      Layer layer;
      for (size_t i = 0; i < members.size(); ++i) layer.*members[i] = {rows[i], (layers_.front().*members[i]).axes};
      return {body(layer, carry[0])};
    };
    return device::scan(size(), {x}, stacked, {}, turn, policy)[0];
  }

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }

 private:
  // Those that the first layer, and so every layer, has: a member that was declared has axes.
  std::vector<Weight Layer::*> declared_members() const {
    std::vector<Weight Layer::*> members;
    for (Weight Layer::*member : Layer::kWeights) {
      if (!layers_.empty() && !(layers_.front().*member).axes.empty()) members.push_back(member);
    }
    FLAMBEAU_CHECK(layers_.empty() || !members.empty(), "layers are declared and have axes");
    return members;
  }

  at::Tensor stack_of(Weight Layer::*member) const {
    std::vector<at::Tensor> parts;
    for (const Layer& layer : layers_) parts.push_back((layer.*member).value);
    return at::stack(parts);
  }

  // The layers as views of the stacked tensors.
  std::vector<Layer> unstacked() const {
    std::vector<Layer> layers = layers_;
    for (Weight Layer::*member : declared_members()) {
      const std::vector<at::Tensor> rows = (stacked_.*member).value.unbind(0);  // its gradient is one stack
      for (size_t i = 0; i < layers.size(); ++i) (layers[i].*member).value = rows[i];
    }
    return layers;
  }

  std::vector<Layer> layers_;  // without values when they are stacked
  Layer stacked_;
  bool is_stacked_ = false;
};

}  // namespace flambeau::nn
