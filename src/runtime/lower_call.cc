#include "runtime/lower_call.h"

#include <mutex>
#include <unordered_map>

namespace flambeau::runtime {
namespace {

using hlo::Builder;
using hlo::Value;

Value constant_number(Builder& b, const ops::Number& number, DType dtype) {
  return ops::Scalar{number, {}}.as(b, dtype);
}

ops::Argument number_argument(Builder& b, const RecordedNumber& n, ArgumentScope& scope) {
  if (!n.as_tensor) return n.parameter ? ops::Scalar{std::nullopt, scope.parameter(b, n.number)} : ops::Scalar{n.number, {}};
  DType dtype = n.dtype.value_or(n.number.category());
  Value value = n.parameter ? b.convert(scope.parameter(b, n.number), dtype) : constant_number(b, n.number, dtype);
  return ops::Operand{value, !n.dtype};
}

ops::Argument argument(Builder& b, const Recorded& recorded, ArgumentScope& scope) {
  if (auto* v = std::get_if<ValueView>(&recorded)) return ops::Operand{scope.view(b, *v)};
  if (auto* n = std::get_if<RecordedNumber>(&recorded)) return number_argument(b, *n, scope);
  if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&recorded)) {
    std::vector<std::optional<ops::Operand>> operands;
    for (const auto& v : *list) operands.push_back(v ? std::optional(ops::Operand{scope.view(b, *v)}) : std::nullopt);
    return operands;
  }
  return std::visit(
      [](const auto& plain) -> ops::Argument {
        using T = std::decay_t<decltype(plain)>;
        if constexpr (std::is_same_v<T, ValueView> || std::is_same_v<T, RecordedNumber> ||
                      std::is_same_v<T, std::vector<std::optional<ValueView>>>)
          return std::monostate{};  // handled above
        else
          return plain;
      },
      recorded);
}

class ScratchScope : public ArgumentScope {
 public:
  Value view(Builder& b, const ValueView& v) override { return b.graph().add_parameter({v.dtype, v.view.sizes}); }
  Value parameter(Builder& b, const ops::Number& number) override { return b.graph().add_parameter({number.category(), {}}); }
};

std::vector<std::optional<Type>> lower_for_types(const ops::Row& row, std::span<const Recorded> recorded, const DeviceMesh* mesh) {
  hlo::Graph graph;
  if (mesh) graph.set_mesh(mesh->mesh);
  Builder b(graph);
  ScratchScope scope;
  std::vector<ops::Argument> args = lower_arguments(b, recorded, scope);
  ops::Random random;
  if (row.random) random = {graph.add_parameter({DType::U64, {}}), graph.add_parameter({DType::U64, {}})};
  std::vector<std::optional<Type>> types;
  for (Value v : row.lower(b, args, &random)) types.push_back(v ? std::optional(v.type()) : std::nullopt);
  return types;
}

}  // namespace

std::vector<ops::Argument> lower_arguments(Builder& b, std::span<const Recorded> recorded, ArgumentScope& scope) {
  std::vector<ops::Argument> result;
  result.reserve(recorded.size());
  for (const Recorded& r : recorded) result.push_back(argument(b, r, scope));
  return result;
}

static std::vector<std::optional<Type>> remembered_types(const Key& key, const ops::Row& row, std::span<const Recorded> arguments,
                                                         const DeviceMesh* mesh) {
  static std::mutex mutex;
  static auto* cache = new std::unordered_map<Key, std::vector<std::optional<Type>>, KeyHash>;
  {
    std::lock_guard lock(mutex);
    if (auto it = cache->find(key); it != cache->end()) return it->second;
  }
  std::vector<std::optional<Type>> types = lower_for_types(row, arguments, mesh);
  std::lock_guard lock(mutex);
  return cache->emplace(key, std::move(types)).first->second;
}

Key signature(const ops::Row& row, std::span<const Recorded> arguments, const DeviceMesh* mesh) {
  KeyHasher h;
  h.add(row.name, arguments.size(), mesh ? mesh->hash : 0);
  for (const Recorded& argument : arguments) hash_signature(h, argument);
  return h.key();
}

std::vector<std::optional<Type>> result_types(const Key& key, const ops::Row& row, std::span<const Recorded> arguments,
                                              const DeviceMesh* mesh) {
  std::vector<std::optional<Type>> types = remembered_types(key, row, arguments, mesh);
  // The lowering saw no value of a number that is a parameter of the program.
  if (row.fits != 0 && !types.empty() && types[0])
    for (size_t i = 0; i < arguments.size(); ++i)
      if (auto* n = std::get_if<RecordedNumber>(&arguments[i]); n && n->parameter)
        ops::check_parameter_fits(row, i, n->number, types[0]->dtype);
  return types;
}

}  // namespace flambeau::runtime
