// The parts of the extension module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace flambeau {

void bind_capture(pybind11::module_& m);   // recording a function's ops (capture_bindings.cc)
void bind_snapshot(pybind11::module_& m);  // comparing what Python holds (snapshot.cc)

}  // namespace flambeau
