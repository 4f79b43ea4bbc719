// Whole-step capture: a function over tensors becomes one compiled program that replays.
//
// While `fn` is recorded nothing runs on the device: its ops are collected in one graph. Storages that existed before and are read
// become inputs of the program, those that are written become outputs bound to the same storages (donated), tensors made
// inside and returned are results. Declared inputs and numbers (live_numbers.h) may change from call to call; every other number that the
// recording saw is a constant. Capture records twice and refuses, with the op and both numbers, a function whose recordings differ.
// Equal recordings do not prove that later ones would be: a caller whose function reads more than its inputs looks after that itself, as
// the trainer does by passing all that changes, and `flambeau.capture` by comparing what its Python function reads (CapturedStep).
// Reading a value inside (`.item()`, `.cpu()`) is refused with the op's name.
//
// Tensors on the CPU: `fn` is simply called, so the same training code runs as plain eager PyTorch.
// Not thread-safe: one thread at a time calls a Capture; other threads may use the device meanwhile, but not the captured state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace flambeau::runtime {
class StepProgram;
class Trace;
class Storage;
}

namespace flambeau::device {

// A function recorded once.
class CapturedStep {
 public:
  struct Outcome {
    std::vector<at::Tensor> results;
    // Tensors of before, each alone in its storage, that are found in a place which may hold another one at each replay.
    std::vector<at::Tensor> places = {};
  };
  using Function = std::function<Outcome(const std::vector<at::Tensor>& inputs)>;

  // Calls `fn` once with stand-ins for `inputs`; nothing runs on the device.
  CapturedStep(const std::string& name, const std::vector<at::Tensor>& inputs, const Function& fn);
  ~CapturedStep();

  // Runs the program with inputs and places that it accepts. `places` are the tensors that stand there now, `numbers` the declared ones,
  // empty: as recorded. An input that lies in state which the program changes is an InvalidArgument.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& places = {},
                              std::span<const double> numbers = {});
  // Whether run() takes them: inputs of the recorded types.
  bool accepts_inputs(const std::vector<at::Tensor>& inputs) const;
  void check_inputs(const std::vector<at::Tensor>& inputs) const;  // says which it does not, an InvalidArgument
  // The same of the places: tensors of the recorded types, each alone in its storage.
  bool accepts_places(const std::vector<at::Tensor>& places) const;
  // Whether the state that the program leaves behind has the recorded types again, so that it can run once more.
  bool keeps_types() const;

  // Null when `next` is the same program over the same state; else what differs first, in words.
  std::optional<std::string> difference(const CapturedStep& next) const;
  // How many tensors made inside outlive the recording, beside `known` ones.
  size_t escaped(const std::vector<at::Tensor>& known) const;
  // A tensor made inside that outlives the recording keeps its value of now when the program runs again.
  void let_go(const at::Tensor& made);
  runtime::StepProgram& program() const { return *program_; }

 private:
  // The program reads inputs as they are when it begins: one that is also its state would not change in between.
  void check_inputs_are_no_state(const std::vector<at::Tensor>& inputs, std::span<runtime::Storage* const> places) const;

  std::string name_;
  std::unique_ptr<runtime::StepProgram> program_;
};

// Whether this thread records a step; of that recording: whether `tensor` was made in it, whether its storage was read or written,
// and how many ops there are so far.
bool is_recording();
bool made_in_recording(const at::Tensor& tensor);
bool touched_in_recording(const at::Tensor& tensor);
size_t calls_in_recording();

// Ops of this thread run at once within its extent, also while a step is recorded.
class RunsAtOnce {
 public:
  RunsAtOnce();
  ~RunsAtOnce();
  RunsAtOnce(const RunsAtOnce&) = delete;
  RunsAtOnce& operator=(const RunsAtOnce&) = delete;

 private:
  runtime::Trace* before_;
};

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
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);

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
