#include "device/live_numbers.h"

#include <optional>
#include <unordered_map>

#include <ATen/core/function_schema.h>

#include "base/error.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

using runtime::CallArgument;
using runtime::NumberRef;

// By the storage of each parameter.
thread_local std::optional<std::unordered_map<const runtime::Storage*, NumbersByName>> t_declared;

// The numbers declared for the op's first list of tensors; null: none.
const NumbersByName* numbers_of(const std::vector<CallArgument>& arguments) {
  if (arguments.empty()) return nullptr;
  const auto* list = std::get_if<std::vector<std::optional<runtime::TensorRef>>>(&arguments.front());
  if (!list || list->empty() || !list->front()) return nullptr;
  auto found = t_declared->find(list->front()->storage);
  return found == t_declared->end() ? nullptr : &found->second;
}

}  // namespace

NumbersScope::NumbersScope() { t_declared.emplace(); }
NumbersScope::~NumbersScope() { t_declared.reset(); }

void declare_numbers(const std::vector<at::Tensor>& parameters, const NumbersByName& numbers) {
  if (!t_declared) raise<InvalidArgument>("[capture] numbers of a step are declared while it is recorded");
  for (const runtime::TensorRef& parameter : refs_of(parameters, "an optimizer's parameters")) (*t_declared)[parameter.storage] = numbers;
}

at::Tensor number_tensor(uint32_t index, double value, c10::ScalarType dtype) {
  const CallArgument arguments[] = {hlo::Dims{}, NumberRef{.number = {value}, .dtype = {}, .input = index}, dtype_of(dtype)};
  return call(*ops::find_row("aten::full"), arguments);
}

void mark_numbers(const c10::FunctionSchema& schema, std::vector<CallArgument>& arguments) {
  if (!t_declared || t_declared->empty() || !schema.name().starts_with("aten::_fused_")) return;
  const NumbersByName* numbers = numbers_of(arguments);
  if (!numbers) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto* number = std::get_if<NumberRef>(&arguments[i]);
    auto found = numbers->find(schema.arguments()[i].name());
    if (!number || found == numbers->end()) continue;
    number->input = found->second;
    number->number.value = number->number.as_double();
  }
}

}  // namespace flambeau::device
