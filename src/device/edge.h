// Kernels with C++ signatures, which PyTorch calls unboxed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <torch/library.h>

#include "device/errors.h"

namespace flambeau::device {

// The name of an op as a template argument: of aten, unless it names another library ("flambeau::dot_general").
template <size_t N>
struct OpName {
  char text[N];
  constexpr OpName(const char (&name)[N]) {  // NOLINT: a literal is one
    for (size_t i = 0; i < N; ++i) text[i] = name[i];
  }
};

template <OpName Name, auto F>
struct Edge;
template <OpName Name, class R, class... A, R (*F)(A...)>
struct Edge<Name, F> {
  static R call(A... arguments) {
    return at_the_edge([&]() -> R { return F(std::forward<A>(arguments)...); },
                       [&] { return fmt::format("{}{}({})", kLibrary, Name.text, tensors_text({as_tensor(arguments)...})); });
  }

 private:
  static constexpr std::string_view kLibrary = std::string_view(Name.text).find("::") == std::string_view::npos ? "aten::" : "";
  static const at::Tensor* as_tensor(const at::Tensor& tensor) { return &tensor; }
  template <class T>
  static const at::Tensor* as_tensor(const T&) {
    return nullptr;
  }
};

// Registers F as the kernel of Name; what it raises names the op.
template <OpName Name, auto F>
void serve(torch::Library& library) {
  library.impl(Name.text, TORCH_FN((Edge<Name, F>::call)));
}

}  // namespace flambeau::device
