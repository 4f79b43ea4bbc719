// Numbers of a captured step that each replay is given anew: the hyperparameters of optimizers.
//
// A fused optimizer op gets them as plain numbers. While a step is recorded, whoever knows where they come from declares it: "the argument
// `lr` of a fused op over these parameters is number 3 of the step". The op is then recorded with an input of the program in that place.
// Numbers belong to the recording of the calling thread; outside of one, declaring is an InvalidArgument.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/trace.h"

namespace c10 {
struct FunctionSchema;
}

namespace flambeau::device {

// Arguments of ops, by the schema's names, and which numbers of the step they are.
using NumbersByName = std::map<std::string, uint32_t>;

// The fused ops whose first list begins with one of `parameters` take these numbers.
void declare_numbers(const std::vector<at::Tensor>& parameters, const NumbersByName& numbers);

// A rank-0 tensor that holds number `index` of the step, which is `value` now.
at::Tensor number_tensor(uint32_t index, double value, c10::ScalarType dtype);

// Marks the declared numbers among an op's arguments (the schema's, in order).
void mark_numbers(const c10::FunctionSchema& schema, std::vector<runtime::CallArgument>& arguments);

// Declarations last as long as this: a recording's extent.
class NumbersScope {
 public:
  NumbersScope();
  ~NumbersScope();
  NumbersScope(const NumbersScope&) = delete;
  NumbersScope& operator=(const NumbersScope&) = delete;
};

}  // namespace flambeau::device
