#include "device/call_arguments.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "device/arguments.h"
#include "device/device.h"

namespace flambeau::device {
namespace {

using runtime::CallArgument;
using runtime::NumberRef;
using runtime::TensorRef;

// Arguments that say where and how memory lies; lowerings do not see them.
bool is_placement(const c10::Argument& argument) {
  switch (without_optional(argument.real_type())->kind()) {
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::GeneratorType:
      return true;
    default:
      return argument.name() == "pin_memory";
  }
}

ops::Number number_of(const c10::Scalar& scalar) {
  if (scalar.isBoolean()) return {scalar.toBool()};
  if (scalar.type() == c10::ScalarType::UInt64) return {scalar.to<uint64_t>()};
  if (scalar.isIntegral(false)) return {scalar.toLong()};
  if (scalar.isComplex()) return {std::complex<double>(scalar.toComplexDouble())};
  return {scalar.toDouble()};
}

// Shapes are asked of tensors without elements: nothing stands behind them.
TensorRef ref_of_shape(const at::Tensor& tensor) {
  return {nullptr, {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()}, dtype_of(tensor.scalar_type())};
}

CallArgument tensor_argument(const at::Tensor& tensor, Asked asked) {
  if (asked == Asked::Shapes && tensor.is_meta()) return ref_of_shape(tensor);
  if (is_tpu(tensor)) return ref_of(tensor);
  if (tensor.is_cpu() && tensor.dim() == 0) {
    bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return NumberRef{number_of(tensor.item()), true, wrapped ? std::nullopt : std::optional(dtype_of(tensor.scalar_type()))};
  }
  refuse_device(tensor);
}

std::optional<TensorRef> list_element(const at::Tensor& tensor, Asked asked) {
  if (!tensor.defined()) return std::nullopt;
  if (asked == Asked::Shapes && tensor.is_meta()) return ref_of_shape(tensor);
  if (!is_tpu(tensor)) refuse_device(tensor);
  return ref_of(tensor);
}

CallArgument list_argument(const c10::IValue& value, Asked asked) {
  if (value.isIntList()) return value.toIntVector();
  if (value.isTensorList()) {
    std::vector<std::optional<TensorRef>> refs;
    for (const at::Tensor& tensor : value.toTensorVector()) refs.push_back(list_element(tensor, asked));
    return refs;
  }
  if (value.isBoolList()) {
    hlo::Dims flags;
    for (bool flag : value.toBoolList()) flags.push_back(flag);
    return flags;
  }
  if (value.isList()) {
    c10::ArrayRef<c10::IValue> list = value.toListRef();
    bool integers = !list.empty() && std::all_of(list.begin(), list.end(), [](auto& v) { return v.isInt() || v.isSymInt(); });
    if (integers) {
      hlo::Dims dims;
      for (const c10::IValue& v : list) dims.push_back(v.isInt() ? v.toInt() : v.toSymInt().guard_int(__FILE__, __LINE__));
      return dims;
    }
    std::vector<std::optional<TensorRef>> refs;
    for (const c10::IValue& v : list) {
      if (!v.isNone() && !v.isTensor()) raise<NotImplemented>("[tpu] a list of {} is not handled", v.tagKind());
      refs.push_back(v.isNone() ? std::nullopt : list_element(v.toTensor(), asked));
    }
    return refs;
  }
  raise<NotImplemented>("[tpu] an argument of type {} is not handled", value.tagKind());
}

ArgumentKind kind_of(const c10::Argument& argument) {
  if (is_placement(argument)) return ArgumentKind::Placement;
  const c10::TypePtr type = without_optional(argument.real_type());
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return ArgumentKind::Tensor;
    case c10::TypeKind::NumberType: return ArgumentKind::Number;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return ArgumentKind::Int;
    case c10::TypeKind::FloatType: return ArgumentKind::Float;
    case c10::TypeKind::BoolType: return ArgumentKind::Bool;
    case c10::TypeKind::ScalarTypeType: return ArgumentKind::DType;
    case c10::TypeKind::StringType: return ArgumentKind::String;
    case c10::TypeKind::ListType: {
      auto element = type->expectRef<c10::ListType>().getElementType()->kind();
      bool ints = element == c10::TypeKind::IntType || element == c10::TypeKind::SymIntType || element == c10::TypeKind::BoolType;
      return ints ? ArgumentKind::IntList : ArgumentKind::List;
    }
    default: raise<NotImplemented>("[tpu] an argument {} of type {} is not handled", argument.name(), type->str());
  }
}

}  // namespace

std::vector<ArgumentKind> argument_kinds(const ops::Row& row, const c10::FunctionSchema& functional) {
  std::vector<ArgumentKind> kinds;
  size_t parameter = 0;
  for (const c10::Argument& argument : functional.arguments()) {
    kinds.push_back(kind_of(argument));
    if (kinds.back() == ArgumentKind::Placement) continue;
    // A float that changes from call to call.
    if (kinds.back() == ArgumentKind::Float && (row.scalars >> parameter & 1)) kinds.back() = ArgumentKind::Number;
    ++parameter;
  }
  return kinds;
}

CallArgument to_argument(ArgumentKind kind, const c10::IValue& value, Asked asked) {
  if (value.isNone()) return std::monostate{};
  switch (kind) {
    case ArgumentKind::Tensor: {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) return std::monostate{};
      return tensor_argument(tensor, asked);
    }
    case ArgumentKind::Number: return NumberRef{number_of(value.toScalar()), false, std::nullopt};
    case ArgumentKind::Int: return value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
    case ArgumentKind::Float: return value.isDouble() ? value.toDouble() : value.toScalar().toDouble();
    case ArgumentKind::Bool: return value.toBool();
    case ArgumentKind::DType: return dtype_of(value.toScalarType());
    case ArgumentKind::String: return std::string(value.toStringRef());
    case ArgumentKind::IntList:
      if (value.isInt()) return hlo::Dims{value.toInt()};
      if (value.isList() && value.toListRef().empty()) return hlo::Dims{};
      return list_argument(value, asked);
    case ArgumentKind::List: return list_argument(value, asked);
    case ArgumentKind::Placement: break;
  }
  FLAMBEAU_CHECK(false, "placement arguments are dropped before");
}

}  // namespace flambeau::device
