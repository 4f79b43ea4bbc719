// What the fake plugin takes from a program's text and compile options. Internal to src/pjrt/testing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace flambeau::pjrt::fake {

struct FakeType {
  DType dtype = DType::F32;
  std::vector<int64_t> dims;
  int64_t byte_size() const;
};

struct FakeProgram {
  std::string name = "main";  // of the module
  std::vector<FakeType> arguments, results;
  std::vector<int64_t> donated;  // indices of arguments
};

// Reads the signature of `func.func public @main(...) -> ...`. InvalidArgument when there is none.
FakeProgram parse_program(std::string_view text);

struct FakeCompileOptions {
  int64_t num_replicas = 1, num_partitions = 1;
  bool portable = false;
  std::vector<int64_t> device_ids;  // replica-major
};
FakeCompileOptions parse_compile_options(std::string_view serialized);

}  // namespace flambeau::pjrt::fake
