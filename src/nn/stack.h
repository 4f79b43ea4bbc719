// Layers, one after another: equal ones, or of several kinds.
//
// A layer is named by its index ("layers.3.attention.wo.weight") in initialisation, optimizer, checkpoints and foreign formats. How
// the layers lie in memory is this class's own affair: as separate tensors, or (lay_out_stacked) members of equal layers as one tensor
// [L, ...], so that a loop over them copies nothing. Both run as loops or written out, with the same numbers.
//
// Layers are of one kind when they declare the same members with the same shapes and have the same kind(), where they have one (for
// what no shape tells, such as a window). Layers of several kinds run as loops over equal neighbours, or over a repeating pattern
// (runs.h).
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/scan.h"
#include "nn/parameter.h"
#include "nn/runs.h"

namespace flambeau::nn {

// Layer has declare(Parameters&, const std::string& prefix, int64_t index, options...), which also sets what kind() tells; lists its
// members in Layer::kWeights; and stays where it is.
template <class Layer>
class Stack {
 public:
  explicit Stack(int64_t count) : layers_(static_cast<size_t>(count)) {}

  template <class... Options>
  void declare(Parameters& list, const std::string& name, const Options&... options) {
    std::vector<Kind> known;
    std::vector<size_t> kinds;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const std::string prefix = name + "." + std::to_string(i);
      const size_t before = list.size();
      layers_[i].declare(list, prefix, static_cast<int64_t>(i), options...);
      Kind kind = kind_of(layers_[i], list, before, prefix);
      const auto found = std::find(known.begin(), known.end(), kind);
      kinds.push_back(static_cast<size_t>(found - known.begin()));
      if (found == known.end()) known.push_back(std::move(kind));
    }
    for (const LayerRun& run : find_runs(kinds)) {
      runs_.push_back({run.count, {}});
      for (size_t k = 0; k < run.period; ++k) {
        Group group;
        for (size_t i = 0; i < run.count; ++i) group.layers.push_back(run.begin + k + i * run.period);
        runs_.back().groups.push_back(groups_.size());
        groups_.push_back(std::move(group));
      }
    }
  }

  // From here on the layers' members lie stacked. After declare and the list's set_axes, before there are values.
  void lay_out_stacked(Parameters& list) {
    if (is_stacked_ || layers_.empty()) return;
    for (Group& group : groups_) {
      for (Weight Layer::*member : declared_members(group)) {
        std::vector<Weight*> parts;
        for (size_t i : group.layers) parts.push_back(&(layers_[i].*member));
        list.stack(parts, group.stacked.*member);
      }
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

  // The same as one loop a run of layers (device/scan.h): x = body(layer, x).
  template <class Body>
  at::Tensor scan(at::Tensor x, const device::CheckpointPolicy& policy, Body&& body) const {
    for (const Run& run : runs_) x = scan_run(run, x, policy, body);
    return x;
  }

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  // How many loops scan() is made of.
  size_t loops() const { return runs_.size(); }

 private:
  struct Kind {
    struct Member {
      std::string name;  // within the layer
      std::vector<int64_t> shape;
      Traits traits;
      bool operator==(const Member&) const = default;
    };
    std::vector<Member> members;
    int64_t kind = 0;
    bool operator==(const Kind&) const = default;
  };
  // Layers of one kind at one place of a run's body: a row each, in order.
  struct Group {
    std::vector<size_t> layers;
    Layer stacked = {};
  };
  struct Run {
    size_t count;
    std::vector<size_t> groups;  // the layers of the body, in order
  };

  // Of a layer that has declared the list's parameters from `first` on.
  static Kind kind_of(const Layer& layer, const Parameters& list, size_t first, const std::string& prefix) {
    Kind kind;
    for (size_t p = first; p < list.size(); ++p)
      kind.members.push_back({list.all()[p].name.substr(prefix.size()), list.all()[p].shape, list.traits(list.all()[p])});
    if constexpr (requires { { layer.kind() } -> std::convertible_to<int64_t>; }) kind.kind = layer.kind();
    return kind;
  }

  // Those that the group's layers have: a member that was declared has axes.
  std::vector<Weight Layer::*> declared_members(const Group& group) const {
    std::vector<Weight Layer::*> members;
    for (Weight Layer::*member : Layer::kWeights) {
      if (!(layers_[group.layers.front()].*member).axes.empty()) members.push_back(member);
    }
    FLAMBEAU_CHECK(!members.empty(), "layers are declared and have axes");
    return members;
  }

  at::Tensor stack_of(const Group& group, Weight Layer::*member) const {
    if (is_stacked_) return (group.stacked.*member).value;
    std::vector<at::Tensor> parts;
    for (size_t i : group.layers) parts.push_back((layers_[i].*member).value);
    return at::stack(parts);
  }

  template <class Body>
  at::Tensor scan_run(const Run& run, const at::Tensor& x, const device::CheckpointPolicy& policy, Body& body) const {
    std::vector<at::Tensor> stacked;
    for (size_t g : run.groups)
      for (Weight Layer::*member : declared_members(groups_[g])) stacked.push_back(stack_of(groups_[g], member));
    const auto iteration = [&](const at::Tensor&, const std::vector<at::Tensor>& carry, const std::vector<at::Tensor>& rows,
                          const std::vector<at::Tensor>&) -> std::vector<at::Tensor> {
      at::Tensor next = carry[0];
      size_t row = 0;
      for (size_t g : run.groups) {
        Layer layer = layers_[groups_[g].layers.front()];  // with its axes, and what its kind is
        for (Weight Layer::*member : declared_members(groups_[g])) (layer.*member).value = rows[row++];
        next = body(layer, next);
      }
      return {next};
    };
    return device::scan(static_cast<int64_t>(run.count), {x}, stacked, {}, iteration, policy)[0];
  }

  // The layers as views of the stacked tensors.
  std::vector<Layer> unstacked() const {
    std::vector<Layer> layers = layers_;
    for (const Group& group : groups_) {
      for (Weight Layer::*member : declared_members(group)) {
        const std::vector<at::Tensor> rows = (group.stacked.*member).value.unbind(0);  // its gradient is one stack
        for (size_t k = 0; k < rows.size(); ++k) (layers[group.layers[k]].*member).value = rows[k];
      }
    }
    return layers;
  }

  std::vector<Layer> layers_;  // without values when they are stacked
  std::deque<Group> groups_;   // stay where they are: the list of parameters points at their members
  std::vector<Run> runs_;
  bool is_stacked_ = false;
};

}  // namespace flambeau::nn
