// Recording a function's ops into one program.
//
// A Recording redirects the op calls of the thread that made it, for the default mesh; destroying it without finish() leaves every tensor
// as it was. finish() gives the StepProgram that replays them (step_program.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/step_program.h"

namespace flambeau::runtime {

class Recording {
 public:
  explicit Recording(std::string name);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // A storage that stands for a declared input while recording; on a mesh it lies as `sharding` says.
  std::shared_ptr<Storage> add_input(const Type& type, const hlo::Sharding& sharding = {});
  // `results` may be views and may be state. `places` are storages of before, in the places that may hold others at each replay.
  std::unique_ptr<StepProgram> finish(std::span<const TensorRef> results, std::span<Storage* const> places = {});

 private:
  std::string name_;
  std::unique_ptr<Trace> trace_;
  std::vector<Type> input_types_;
};

}  // namespace flambeau::runtime
