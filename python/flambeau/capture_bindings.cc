// What flambeau.capture is made of: recordings, and numbers that each replay is given.
#include <map>

#include "bindings.h"
#include "device/capture.h"
#include "device/live_numbers.h"

namespace py = pybind11;

namespace flambeau {
namespace {

using Tensors = std::vector<at::Tensor>;

// `fn` takes the stand-ins of the inputs and gives (results, places).
std::unique_ptr<device::CapturedStep> record(const std::string& name, const Tensors& inputs, const py::function& fn) {
  return std::make_unique<device::CapturedStep>(name, inputs, [&](const Tensors& placeholders) {
    auto [results, places] = fn(placeholders).cast<std::pair<Tensors, Tensors>>();
    return device::CapturedStep::Outcome{std::move(results), std::move(places)};
  });
}

void set_grads(const Tensors& tensors, const std::vector<std::optional<at::Tensor>>& grads) {
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].mutable_grad() = grads[i].value_or(at::Tensor());
}

}  // namespace

void bind_capture(py::module_& m) {
  m.def("is_recording", &device::is_recording);
  m.def("made_in_recording", &device::made_in_recording);
  m.def("touched_in_recording", &device::touched_in_recording);
  m.def("calls_in_recording", &device::calls_in_recording);
  m.def("at_once", [](const py::function& fn) {
    device::RunsAtOnce at_once;
    return fn();
  });
  m.def("declare_numbers", [](const Tensors& parameters, const std::map<std::string, uint32_t>& numbers) {
    device::declare_numbers(parameters, numbers);
  });
  m.def("number_tensor", [](uint32_t index, double value, at::ScalarType dtype) { return device::number_tensor(index, value, dtype); });
  m.def("set_grads", &set_grads);
  py::class_<device::CapturedStep>(m, "CapturedStep")
      .def(py::init(&record), py::arg("name"), py::arg("inputs"), py::arg("fn"))
      .def("run",
           [](device::CapturedStep& self, const Tensors& inputs, const Tensors& places, const std::vector<double>& numbers) {
             py::gil_scoped_release release;
             return self.run(inputs, places, numbers);
           },
           py::arg("inputs"), py::arg("places"), py::arg("numbers") = std::vector<double>{})
      .def("accepts_inputs", &device::CapturedStep::accepts_inputs)
      .def("accepts_places", &device::CapturedStep::accepts_places)
      .def("keeps_types", &device::CapturedStep::keeps_types)
      .def("difference", &device::CapturedStep::difference)
      .def("escaped", &device::CapturedStep::escaped)
      .def("let_go", &device::CapturedStep::let_go);
}

}  // namespace flambeau
