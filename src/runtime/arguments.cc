#include "runtime/arguments.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace flambeau::runtime {

ValueView whole_value(ValueId id, const Type& type) { return {id, View::contiguous(type.dims), type.dtype, true}; }

static void hash_number(KeyHasher& h, const ops::Number& number) {
  h.add(number.value.index());
  std::visit(Overloaded{[&](std::complex<double> c) { h.add(c.real(), c.imag()); }, [&](auto v) { h.add(v); }},
             number.value);
}

void hash_type(KeyHasher& h, const Type& type) { h.add(type.dtype, std::span<const int64_t>(type.dims)); }

void hash_signature(KeyHasher& h, const Recorded& argument) {
  h.add(argument.index());
  std::visit(Overloaded{
                 [](std::monostate) {},
                 [&](const ValueView& v) { hash_type(h, {v.dtype, v.view.sizes}); },
                 [&](const std::vector<std::optional<ValueView>>& list) {
                   h.add(list.size());
                   for (const auto& v : list) {
                     h.add(v.has_value());
                     if (v) hash_type(h, {v->dtype, v->view.sizes});
                   }
                 },
                 [&](const RecordedNumber& n) {
                   h.add(n.as_tensor, n.dtype ? static_cast<int>(*n.dtype) : -1, n.parameter);
                   if (n.parameter)
                     h.add(n.number.value.index());
                   else
                     hash_number(h, n.number);
                 },
                 [&](const Dims& dims) { h.add(std::span<const int64_t>(dims)); },
                 [&](const std::string& text) { h.add(std::string_view(text)); },
                 [&](auto plain) { h.add(plain); },
             },
             argument);
}

void hash_view(KeyHasher& h, const ValueView& v) {
  h.add(v.value, v.whole);
  if (!v.whole) h.add(std::span<const int64_t>(v.view.strides), v.view.offset);
}

void hash_views(KeyHasher& h, const Recorded& argument) {
  if (auto* v = std::get_if<ValueView>(&argument)) {
    hash_view(h, *v);
  } else if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&argument)) {
    for (const auto& v : *list)
      if (v) hash_view(h, *v);
  }
}

std::string to_string(const ops::Number& number) {
  return std::visit(Overloaded{
                        [](bool v) { return std::string(v ? "true" : "false"); },
                        [](std::complex<double> v) { return fmt::format("{}+{}j", v.real(), v.imag()); },
                        [](auto v) { return fmt::format("{}", v); },
                    },
                    number.value);
}

std::string to_string(const Recorded& argument) {
  return std::visit(Overloaded{
                        [](std::monostate) -> std::string { return "None"; },
                        [](const ValueView& v) { return fmt::format("a tensor [{}]", fmt::join(v.view.sizes, ", ")); },
                        [](const std::vector<std::optional<ValueView>>& list) { return fmt::format("{} tensors", list.size()); },
                        [](const RecordedNumber& n) { return to_string(n.number); },
                        [](const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); },
                        [](DType dtype) { return std::string(torch_name(dtype)); },
                        [](const std::string& text) {
                          bool plain = text.size() < 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 32 && c < 127; });
                          return plain ? text : fmt::format("{} bytes of data from the host", text.size());
                        },
                        [](auto plain) { return fmt::format("{}", plain); },
                    },
                    argument);
}

}  // namespace flambeau::runtime
