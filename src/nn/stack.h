// Layers, one after another: equal ones, or of several kinds.
//
// A layer is named by its index ("layers.3.attention.wo.weight") in initialisation, optimizer, checkpoints and foreign formats. How
// the layers lie in memory is this class's own affair: as separate tensors, or (lay_out_stacked) members of equal layers as one tensor
// [L, ...], so that a loop over them copies nothing. Both run as loops or written out, with the same numbers.
//
// Layers are of one kind when they declare the same members with the same shapes and have the same kind(), where they have one (for
// what no shape tells, such as a window). Layers of several kinds run as loops over equal neighbours, or over a repeating pattern
// (runs.h).
//
// Layers pass a carry of one or several tensors on. Each may give outputs of its own (a statistic), which come out stacked. A member that
// is a buffer (nn::Traits) is updated by assigning its value in the body: the new values come out of the stack, and whoever runs it
// writes them where it wants to (buffers()). No gradient passes through a buffer.
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

// What a stack gives.
struct StackValues {
  std::vector<at::Tensor> carry;    // of the last layer
  std::vector<at::Tensor> outputs;  // [layers, ...] each
  std::vector<at::Tensor> buffers;  // the next values of Stack::buffers(), in that order
};

// What Stack is made of, as far as it does not depend on the layer.
namespace stack {
using Tensors = std::vector<at::Tensor>;
Tensors stacked(const std::vector<Tensors>& of_layers);  // output k of all layers as [layers, ...]
Tensors joined(const std::vector<Tensors>& of_runs);     // output k of all runs, [layers of the run, ...] each, one after another
// Outputs [iterations, ...], `count` of each of a body's layers one after another, as [iterations * layers, ...].
Tensors in_order_of_layers(const Tensors& outputs, size_t layers, size_t count);
void check_count(size_t got, size_t expected);  // of outputs
void check_next(const at::Tensor& before, const at::Tensor& next, bool is_buffer);  // of a member that a body was given
}  // namespace stack

// Layer has declare(Parameters&, const std::string& prefix, int64_t index, options...), which also sets what kind() tells; lists its
// members in Layer::kWeights; and stays where it is.
template <class Layer>
class Stack {
 public:
  explicit Stack(int64_t count) : layers_(static_cast<size_t>(count)), group_of_(layers_.size()) {}

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
        group.buffers = buffers_of(layers_[group.layers.front()], list);
        runs_.back().groups.push_back(groups_.size());
        for (size_t layer : group.layers) group_of_[layer] = groups_.size();
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

  using Tensors = std::vector<at::Tensor>;
  using Values = device::ScanValues;

  // {carry, outputs} = body(layer, carry, index) for each layer in order. Layers give the same number of outputs.
  template <class Body>
  StackValues apply(Tensors carry, Body&& body) const {
    const std::vector<Layer> given = is_stacked_ ? unstacked() : layers_;
    std::vector<Layer> layers = given;
    std::vector<Tensors> outputs;  // of each layer
    for (size_t i = 0; i < layers.size(); ++i) {
      Values values = body(layers[i], std::move(carry), static_cast<int64_t>(i));
      check_assignments(groups_[group_of_[i]], given[i], layers[i]);
      carry = std::move(values.carry);
      outputs.push_back(std::move(values.outputs));
      stack::check_count(outputs.back().size(), outputs.front().size());
    }
    StackValues result{std::move(carry), stack::stacked(outputs), {}};
    for (const Group& group : groups_)
      for (Weight Layer::*member : group.buffers) append(result.buffers, next_values(group, member, given, layers));
    return result;
  }

  // The same as one loop a run of layers (device/scan.h): {carry, outputs} = body(layer, carry).
  template <class Body>
  StackValues scan(Tensors carry, const device::CheckpointPolicy& policy, Body&& body) const {
    StackValues result{std::move(carry), {}, {}};
    std::vector<Tensors> outputs;  // of each run
    for (const Run& run : runs_) {
      outputs.push_back(scan_run(run, result, policy, body));
      stack::check_count(outputs.back().size(), outputs.front().size());
    }
    result.outputs = stack::joined(outputs);
    return result;
  }

  // The tensors that the layers' buffers lie in.
  Tensors buffers() const {
    Tensors tensors;
    for (const Group& group : groups_)
      for (Weight Layer::*member : group.buffers) append(tensors, held(group, member));
    return tensors;
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
    std::vector<Weight Layer::*> buffers = {};
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

  static std::vector<Weight Layer::*> buffers_of(const Layer& layer, const Parameters& list) {
    std::vector<Weight Layer::*> buffers;
    for (const Physical& physical : list.physical())
      for (Weight Layer::*member : Layer::kWeights)
        if (physical.weight == &(layer.*member) && list.traits(physical).buffer) buffers.push_back(member);
    return buffers;
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
    return is_stacked_ ? (group.stacked.*member).value : at::stack(held(group, member));
  }

  // What a member of the group's layers lies in.
  Tensors held(const Group& group, Weight Layer::*member) const {
    if (is_stacked_) return {(group.stacked.*member).value};
    Tensors values;
    for (size_t i : group.layers) values.push_back((layers_[i].*member).value);
    return values;
  }

  // The next values of a buffer, as held() gives it, where `layers` have what bodies made of `given`.
  Tensors next_values(const Group& group, Weight Layer::*member, const std::vector<Layer>& given, const std::vector<Layer>& layers) const {
    Tensors rows;
    bool updated = false;
    for (size_t i : group.layers) {
      updated = updated || !(layers[i].*member).value.is_same((given[i].*member).value);
      rows.push_back((layers[i].*member).value.detach());
    }
    return !updated ? held(group, member) : is_stacked_ ? Tensors{at::stack(rows)} : rows;
  }

  static void append(Tensors& all, const Tensors& more) { all.insert(all.end(), more.begin(), more.end()); }

  // Bodies assign to buffers alone, values like those before.
  static void check_assignments(const Group& group, const Layer& given, const Layer& layer) {
    for (Weight Layer::*member : Layer::kWeights) {
      const bool is_buffer = std::find(group.buffers.begin(), group.buffers.end(), member) != group.buffers.end();
      stack::check_next((given.*member).value, (layer.*member).value, is_buffer);
    }
  }

  // Runs the layers of a run from result.carry on and adds the next values of their buffers. Gives their outputs.
  template <class Body>
  Tensors scan_run(const Run& run, StackValues& result, const device::CheckpointPolicy& policy, Body& body) const {
    Tensors stacked;
    for (size_t g : run.groups)
      for (Weight Layer::*member : declared_members(groups_[g])) stacked.push_back(stack_of(groups_[g], member));
    std::vector<bool> updated;  // of the buffers
    size_t count = 0;           // of a layer's outputs
    const auto iteration = [&](const at::Tensor&, const Tensors& carry, const Tensors& rows, const Tensors&) {
      Values values{carry};
      Tensors buffers;
      updated.clear();
      size_t row = 0;
      for (size_t g : run.groups) {
        const Group& group = groups_[g];
        Layer layer = layers_[group.layers.front()];  // with its axes, and what its kind is
        for (Weight Layer::*member : declared_members(group)) (layer.*member).value = rows[row++];
        const Layer given = layer;
        Values of_layer = body(layer, std::move(values.carry));
        check_assignments(group, given, layer);
        if (g == run.groups.front()) count = of_layer.outputs.size();
        stack::check_count(of_layer.outputs.size(), count);
        values.carry = std::move(of_layer.carry);
        append(values.outputs, of_layer.outputs);
        for (Weight Layer::*member : group.buffers) {
          updated.push_back(!(layer.*member).value.is_same((given.*member).value));
          if (updated.back()) buffers.push_back((layer.*member).value.detach());
        }
      }
      append(values.outputs, buffers);
      return values;
    };
    Values values = device::scan(static_cast<int64_t>(run.count), result.carry, stacked, {}, iteration, policy);
    result.carry = std::move(values.carry);
    size_t next = run.groups.size() * count, buffer = 0;
    for (size_t g : run.groups) {
      for (Weight Layer::*member : groups_[g].buffers) {
        if (!updated[buffer++]) {
          append(result.buffers, held(groups_[g], member));
          continue;
        }
        const at::Tensor& rows = values.outputs[next++];
        append(result.buffers, is_stacked_ ? Tensors{rows} : rows.unbind(0));
      }
    }
    return stack::in_order_of_layers(values.outputs, run.groups.size(), count);
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
  std::vector<size_t> group_of_;  // of each layer
  std::deque<Group> groups_;   // stay where they are: the list of parameters points at their members
  std::vector<Run> runs_;
  bool is_stacked_ = false;
};

}  // namespace flambeau::nn
