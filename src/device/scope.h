// Names for what a program does. Operations that are recorded while a Scope lives carry its path, which compilers keep ("op_name")
// and plans show: "layers/attention/wo". An operation of a backward pass carries the path of the operation it is the gradient of,
// behind "backward/". Paths are not part of what a program is: recordings that differ in them alone are equal.
#pragma once

#include <string>
#include <string_view>

namespace flambeau::device {

class Scope {
 public:
  explicit Scope(std::string_view name);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  size_t outer_;  // the length of the path around
};

// The path of this thread; empty outside of scopes.
std::string current_scope();

}  // namespace flambeau::device
