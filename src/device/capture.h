// Whole-step capture: a function over tensors becomes one compiled program that replays.
//
// While `fn` is recorded nothing runs on the device: its ops are collected in one graph. Storages that existed before and are read
// become inputs of the program, those that are written become outputs bound to the same storages (donated), tensors made
// inside and returned are results. Declared inputs may change from call to call; every other number that the recording saw
// is a constant. So that a number computed on the host (a bias correction, a schedule) is never frozen in silence, the function
// is recorded twice and the recordings compared: one that differs is refused with the op and both numbers.
// Reading a value inside (`.item()`, `.cpu()`) is refused with the op's name.
//
// Tensors on the CPU: `fn` is simply called, so the same training code runs as plain eager PyTorch.
// Not thread-safe: one thread at a time calls a Capture; other threads may use the device meanwhile, but not the captured state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::runtime {
class StepProgram;
}

namespace flambeau::device {

class Capture {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
  // `name` appears in messages, statistics and as the module's name.
  Capture(std::string name, Function fn);
  ~Capture();
  Capture(Capture&&) noexcept;

  // Records twice and compiles, for inputs of these shapes and dtypes, without running anything: the state is as before.
  // InvalidArgument when `fn` creates state that outlives it (run it once by calling first).
  void prepare(const std::vector<at::Tensor>& example_inputs);

  // Runs one step. The first call without prepare() records, runs, and the second records again and compares.
  // Inputs of other shapes than those recorded are an InvalidArgument.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& given);

  // The program that is replayed; null before there is one, and for a function on the CPU.
  const runtime::StepProgram* program() const;
  // Bytes of the program's temporaries on the device, as compiled; 0 before there is a program, and for a function on the CPU.
  int64_t temporary_bytes() const;
  // The same of its arguments: state and inputs.
  int64_t argument_bytes() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// carry = body(i, carry) for i in 0..trip_count, recorded once as a loop of the program inside a capture (i is then a rank-0
// int64 tensor); outside of one, and on the CPU, a plain loop. Shapes and dtypes of the carry stay. The body may read tensors from
// outside and use autograd within itself; it may not write to them, nor to its carry, and no gradient passes the loop.
std::vector<at::Tensor> loop(int64_t trip_count, std::vector<at::Tensor> carry,
                             const std::function<std::vector<at::Tensor>(const at::Tensor& i, const std::vector<at::Tensor>& carry)>& body);

}  // namespace flambeau::device
