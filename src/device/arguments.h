// What the device's kernels ask of an op's schema and of the values that it is called with.
#pragma once

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "base/error.h"

namespace flambeau::device {

// `type`, or what it is an Optional of.
inline c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

inline bool is_generator(const c10::Argument& argument) {
  return without_optional(argument.type())->kind() == c10::TypeKind::GeneratorType;
}
inline bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// Calls f(const at::Tensor&) for each defined tensor of a value: itself, or in a list.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, f);
  }
}

// Whether a tensor is conjugated or negated lazily.
inline bool has_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }
inline bool has_bits(const c10::IValue& value) {
  bool any = false;
  for_each_tensor(value, [&](const at::Tensor& tensor) { any |= has_bits(tensor); });
  return any;
}

// For a tensor that is not on the device where all must be.
[[noreturn]] inline void refuse_device(const at::Tensor& tensor) {
  raise<InvalidArgument>("Expected all tensors to be on the same device, but found at least two devices, tpu:0 and {}!", tensor.device().str());
}

}  // namespace flambeau::device
