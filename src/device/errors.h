// Where Flambeau's errors become PyTorch's.
#pragma once

#include <utility>

#include <c10/util/Exception.h>

#include "base/error.h"

namespace flambeau::device {

// Calls f; NotImplementedError and RuntimeError in Python, c10::Error in C++.
template <class F>
decltype(auto) at_the_edge(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const NotImplemented& error) {
    C10_THROW_ERROR(NotImplementedError, error.what());
  } catch (const Error& error) {
    C10_THROW_ERROR(Error, error.what());
  }
}

// A kernel that does so: TORCH_FN(Edge<&kernel>::call).
template <auto F>
struct Edge;
template <class R, class... A, R (*F)(A...)>
struct Edge<F> {
  static R call(A... arguments) {
    return at_the_edge([&]() -> R { return F(std::forward<A>(arguments)...); });
  }
};

}  // namespace flambeau::device
