#include "device/errors.h"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>

namespace flambeau::device {
namespace {

std::atomic<LineSource> g_line_source{nullptr};
std::atomic<Warner> g_warner{nullptr};
constexpr size_t kShownElements = 6;  // of a list

std::string tensor_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "None";
  std::string text = fmt::format("{}[{}]", c10::getDtypeNames(tensor.scalar_type()).first, fmt::join(tensor.sizes(), ", "));
  return tensor.is_cpu() ? text + " on the CPU" : text;
}

std::string value_text(const c10::IValue& value) {
  if (value.isNone()) return "None";
  if (value.isTensor()) return tensor_text(value.toTensor());
  if (value.isInt()) return fmt::format("{}", value.toInt());
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isString()) return fmt::format("'{}'", value.toStringRef());
  if (!value.isList()) return value.tagKind();
  const c10::ArrayRef<c10::IValue> list = value.toListRef();
  std::vector<std::string> texts;
  for (const c10::IValue& element : list.slice(0, std::min(list.size(), kShownElements))) texts.push_back(value_text(element));
  if (list.size() > kShownElements) texts.push_back(fmt::format("... {} in all", list.size()));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

}  // namespace

void set_warner(Warner warner) { g_warner = warner; }

void warn(const std::string& text) {
  if (const Warner warner = g_warner)
    warner(text);
  else
    TORCH_WARN(text);
}

void set_line_source(LineSource source) { g_line_source = source; }

std::string user_line() {
  if (const LineSource source = g_line_source)
    if (const std::string line = source(); !line.empty()) return " at " + line;
  if (const auto node = torch::autograd::get_current_node()) return " in " + node->name();
  return {};
}

std::string describe(const c10::OperatorHandle& op, const c10::IValue* arguments) {
  std::vector<std::string> texts;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const c10::IValue& value = *arguments++;
    if (!value.isNone()) texts.push_back(fmt::format("{}: {}", argument.name(), value_text(value)));
  }
  return fmt::format("{}({})", c10::toString(op.operator_name()), fmt::join(texts, ", "));
}

std::string tensors_text(std::initializer_list<const at::Tensor*> tensors) {
  std::vector<std::string> texts;
  for (const at::Tensor* tensor : tensors)
    if (tensor) texts.push_back(tensor_text(*tensor));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void throw_as_torch(const Error& error, const std::string& call) {
  const std::string message = fmt::format("{} [{}{}]", error.what(), call, user_line());
  if (dynamic_cast<const NotImplemented*>(&error)) C10_THROW_ERROR(NotImplementedError, message);
  if (dynamic_cast<const OutOfRange*>(&error)) C10_THROW_ERROR(IndexError, message);
  if (dynamic_cast<const InvalidValue*>(&error)) C10_THROW_ERROR(ValueError, message);
  C10_THROW_ERROR(Error, message);
}

}  // namespace flambeau::device
