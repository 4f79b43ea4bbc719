#include "nn/stack.h"

#include <fmt/ranges.h>

namespace flambeau::nn::stack {
namespace {

// join(output k of each) for every k.
template <class Join>
Tensors each_output(const std::vector<Tensors>& all, Join&& join) {
  Tensors result;
  for (size_t k = 0; !all.empty() && k < all.front().size(); ++k) {
    Tensors parts;
    for (const Tensors& outputs : all) parts.push_back(outputs[k]);
    result.push_back(join(parts));
  }
  return result;
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

}  // namespace

Tensors stacked(const std::vector<Tensors>& of_layers) {
  return each_output(of_layers, [](const Tensors& parts) { return at::stack(parts); });
}

Tensors joined(const std::vector<Tensors>& of_runs) {
  return each_output(of_runs, [](const Tensors& parts) { return parts.size() == 1 ? parts.front() : at::cat(parts); });
}

Tensors in_order_of_layers(const Tensors& outputs, size_t layers, size_t count) {
  Tensors result;
  for (size_t k = 0; k < count; ++k) {
    Tensors parts;
    for (size_t layer = 0; layer < layers; ++layer) parts.push_back(outputs[layer * count + k]);
    result.push_back(layers == 1 ? parts.front() : at::stack(parts, 1).flatten(0, 1));
  }
  return result;
}

void check_count(size_t got, size_t expected) {
  if (got != expected)
    raise<InvalidArgument>("[stack] expected the same number of outputs of each layer, got {} and {}; give as many of every kind of layer",
                           expected, got);
}

void check_next(const at::Tensor& before, const at::Tensor& next, bool is_buffer) {
  if (next.is_same(before)) return;
  if (!is_buffer)
    raise<InvalidArgument>("[stack] expected a body that assigns members that are buffers, got another value of one that is not; declare "
                           "it with Traits{{.buffer = true}}");
  if (!next.defined() || next.sizes() != before.sizes() || next.scalar_type() != before.scalar_type())
    raise<InvalidArgument>("[stack] expected the next value of a buffer to be {} as it was, got {}", described(before),
                           next.defined() ? described(next) : "none");
}

}  // namespace flambeau::nn::stack
