#include "plan/memory/buffer_kinds.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace flambeau::plan {
namespace {

using compiled::Computation;
using compiled::Dependence;
using compiled::Instruction;
using compiled::Module;
using compiled::Shape;

constexpr uint32_t kParameters = 1, kOptimizer = 2, kBatch = 4;
constexpr int64_t kSmall = 1024;  // elements: shapes of less say nothing

uint32_t bit_of(MemoryKind kind) {
  if (kind == MemoryKind::Parameters) return kParameters;
  return kind == MemoryKind::OptimizerStates ? kOptimizer : kBatch;
}

// Compilers transpose, and add and drop dimensions of one element.
std::vector<int64_t> normal(std::vector<int64_t> dims) {
  std::erase(dims, 1);
  std::sort(dims.begin(), dims.end());
  return dims;
}

std::string_view instruction_of(std::string_view value) { return value.substr(0, value.find('{')); }

// The part of a tuple's shape that "fusion.3{1,0}" is.
const Shape* shape_of(const Shape& whole, std::string_view value) {
  const Shape* shape = &whole;
  const size_t open = value.find('{');
  if (open == std::string_view::npos) return shape;
  const char* at = value.data() + open + 1;
  const char* const end = value.data() + value.size();
  while (at < end && *at != '}') {
    size_t index = 0;
    const auto [after, error] = std::from_chars(at, end, index);
    if (error != std::errc() || index >= shape->parts.size()) return nullptr;
    shape = &shape->parts[index];
    at = after < end && *after == ',' ? after + 1 : after;
  }
  return shape;
}

// The collective that an instruction is, begins, goes on with or ends, as far as it is nothing else.
const Instruction* collective_in(const Module& module, const Instruction& i) {
  if (!compiled::collective_of(i.opcode).empty()) return &i;
  if (i.opcode != "fusion" || i.called.size() != 1) return nullptr;
  const Computation& inner = module.computations[static_cast<size_t>(i.called[0])];
  const bool alone = inner.name.starts_with("all-reduce-scatter") ||
                     inner.root_instruction().custom_call_target.starts_with("AsyncCollective");
  if (!alone) return nullptr;
  const auto found = std::find_if(inner.instructions.begin(), inner.instructions.end(),
                                  [](const Instruction& part) { return !compiled::collective_of(part.opcode).empty(); });
  return found == inner.instructions.end() ? nullptr : &*found;
}

// XLA calls what it makes of the program's parameter 6 alone "Arg_6.0": such names say less than an argument's own.
bool names_an_argument(std::string_view op_name) { return op_name.starts_with("Arg_") || op_name.starts_with("args["); }

}  // namespace

BufferKinds::BufferKinds(const CompiledStep& step) : step_(step) {
  std::vector<uint32_t> bits;
  for (const auto& argument : step.arguments) bits.push_back(bit_of(argument.kind));
  dependence_ = compiled::dependence(step.module, bits);
  for (size_t number = 0; number < std::min(step.arguments.size(), step.analysis.parameters.size()); ++number) {
    const Shape& shape = step.analysis.parameters[number].shape;
    if (step.arguments[number].kind != MemoryKind::Parameters || shape.elements() < kSmall) continue;
    shapes_.push_back(normal(shape.dims));
    if (shape.dims.size() > 1 && shape.elements() / shape.dims[0] >= kSmall)
      layer_shapes_.push_back(normal({shape.dims.begin() + 1, shape.dims.end()}));
  }
  index_instructions();
  index_collectives();
}

void BufferKinds::index_instructions() {
  std::unordered_map<const Computation*, LoopRole> roles;  // of loops' bodies and conditions
  for (size_t i = 0; i < step_.analysis.loops.size(); ++i) {
    for (const int called : compiled::site_of(step_.module, step_.analysis.loops[i]).called)
      roles.emplace(&step_.module.computations[static_cast<size_t>(called)], step_.roles.innermost[i]);
  }
  for (const Computation& computation : step_.module.computations) {
    const auto role = roles.find(&computation);
    for (const Instruction& i : computation.instructions)
      places_.emplace(i.name, Place{&i, role == roles.end() ? LoopRole::Other : role->second});
  }
}

void BufferKinds::index_collectives() {
  for (const Computation& computation : step_.module.computations) {
    for (const Instruction& i : computation.instructions) {
      const Instruction* collective = collective_in(step_.module, i);
      if (collective == nullptr) continue;
      const std::string_view kind = compiled::collective_of(collective->opcode);
      collectives_.emplace(i.name, kind == "all-reduce" || kind == "reduce-scatter");
    }
    index_reduced(computation);
  }
}

// What is summed over devices to something of a parameter's shape is a gradient before that sum too.
void BufferKinds::index_reduced(const Computation& computation) {
  for (const Instruction& i : computation.instructions) {
    const auto found = collectives_.find(i.name);
    if (found == collectives_.end() || !found->second) continue;
    for (size_t which = 0; which < i.operands.size(); ++which) {
      const Shape& result = i.shape.is_tuple() && which < i.shape.parts.size() ? i.shape.parts[which] : i.shape;
      if (!has_parameters_shape(result, /*or_one_layers=*/true)) continue;
      const Instruction& operand = computation.instructions[static_cast<size_t>(i.operands[which])];
      const bool of_tuple = operand.opcode == "get-tuple-element" && operand.operands.size() == 1;
      unreduced_.insert(operand.name);
      if (!of_tuple) continue;
      const Instruction& tuple = computation.instructions[static_cast<size_t>(operand.operands[0])];
      unreduced_.insert(compiled::value_name(tuple.name, {operand.tuple_index}));
    }
  }
}

bool BufferKinds::has_parameters_shape(const Shape& shape, bool or_one_layers) const {
  if (shape.elements() < kSmall) return false;
  const std::vector<int64_t> dims = normal(shape.dims);
  auto among = [&](const std::vector<std::vector<int64_t>>& shapes) {
    return std::find(shapes.begin(), shapes.end(), dims) != shapes.end();
  };
  return among(shapes_) || (or_one_layers && among(layer_shapes_));
}

const BufferKinds::Place* BufferKinds::place_of(const std::string& value) const {
  const auto found = places_.find(std::string(instruction_of(value)));
  return found == places_.end() ? nullptr : &found->second;
}

const Dependence* BufferKinds::dependence_of(const std::string& value) const {
  auto found = dependence_.find(value);
  if (found == dependence_.end()) found = dependence_.find(std::string(instruction_of(value)));  // of a fusion's elements
  return found == dependence_.end() ? nullptr : &found->second;
}

// Of a parameter's shape, or of one layer's within the backward loop, and not on the way forward.
bool BufferKinds::is_gradient(const std::string& value, const Place& place) const {
  if (unreduced_.contains(value)) return true;
  if (place.role == LoopRole::LayersForward) return false;
  const Shape* shape = shape_of(place.instruction->shape, value);
  return shape != nullptr && has_parameters_shape(*shape, place.role == LoopRole::LayersBackward);
}

// A copy of the batch, or of a part of it; not what is computed from it, such as a mask for attention.
bool BufferKinds::is_batch(const std::string& value, const Place& place) const {
  const Dependence* from = dependence_of(value);
  if (from == nullptr || from->bits != kBatch || from->parameter < 0) return false;
  const auto number = static_cast<size_t>(from->parameter);
  const Shape* shape = shape_of(place.instruction->shape, value);
  return shape != nullptr && number < step_.analysis.parameters.size() &&
         shape->elements() <= step_.analysis.parameters[number].shape.elements();
}

MemoryKind BufferKinds::kind(const std::string& value) const {
  if (step_.roles.saved_activations.contains(value)) return MemoryKind::SavedActivations;
  const Place* place = place_of(value);
  const Dependence* from = dependence_of(value);
  if (place == nullptr) return MemoryKind::Temporaries;
  const auto collective = collectives_.find(place->instruction->name);
  if (collective != collectives_.end() && !collective->second) return MemoryKind::Collectives;
  if (from != nullptr && (from->bits & kOptimizer) != 0) {
    const Shape* shape = shape_of(place->instruction->shape, value);
    if (shape != nullptr && has_parameters_shape(*shape, false)) return MemoryKind::OptimizerStates;
  }
  const bool of_batch = from != nullptr && (from->bits & kBatch) != 0;
  // A loop's gradients begin as zeros, which depend on nothing.
  if ((of_batch || from == nullptr || from->bits == 0) && is_gradient(value, *place)) return MemoryKind::Gradients;
  if (collective != collectives_.end()) return MemoryKind::Collectives;
  return is_batch(value, *place) ? MemoryKind::Batch : MemoryKind::Temporaries;
}

std::string BufferKinds::name(const std::string& value) const {
  const Place* place = place_of(value);
  if (place == nullptr) return value;
  const std::string& op_name = place->instruction->op_name;
  const Dependence* from = dependence_of(value);
  const bool has_name = !op_name.empty() && !names_an_argument(op_name);
  const bool of_one = from != nullptr && from->parameter >= 0 && static_cast<size_t>(from->parameter) < step_.arguments.size();
  // What is made of one weight or state alone is it again; of the batch alone, much may be made.
  if (of_one && (from->bits != kBatch || !has_name)) {
    const std::string& argument = step_.arguments[static_cast<size_t>(from->parameter)].name;
    return argument + (collectives_.contains(place->instruction->name) ? " (gathered)" : " (copy)");
  }
  return has_name ? op_name : value;
}

}  // namespace flambeau::plan
