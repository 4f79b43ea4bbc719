// The extension module flambeau._C: what Python needs beside the registered device itself.
#include <chrono>
#include <thread>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include "base/error.h"
#include "device/capture.h"
#include "device/device.h"
#include "flambeau_version.h"
#include "runtime/engine.h"

namespace py = pybind11;

namespace flambeau {
namespace {

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const NotImplemented& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const IoError& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

py::dict counters() {
  py::dict result;
  if (!runtime::Engine::started()) return result;
  const runtime::Counters& c = runtime::Engine::get().counters();
  result["ops_recorded"] = c.ops_recorded.load();
  result["programs_compiled"] = c.programs_compiled.load();
  result["programs_reused"] = c.programs_reused.load();
  result["executions"] = c.executions.load();
  result["compile_time_s"] = static_cast<double>(c.compile_microseconds.load()) * 1e-6;
  return result;
}

py::dict memory() {
  runtime::MemoryUse use = runtime::memory_use();
  py::dict result;
  result["allocated_bytes"] = use.allocated;
  result["peak_bytes"] = use.peak;
  result["allocations"] = use.allocations;
  result["frees"] = use.frees;
  return result;
}

py::dict platform() {
  const runtime::Target& target = runtime::Engine::get().target();
  const pjrt::Client& client = runtime::Engine::get().client();
  py::dict result;
  result["platform"] = target.platform;
  result["kind"] = target.generation;
  result["devices"] = target.device_count;
  result["plugin"] = client.plugin().path().string();
  return result;
}

// Python's function as a C++ one. It is called and dropped with the interpreter's lock held.
device::Capture make_capture(std::string name, py::function fn) {
  std::shared_ptr<py::function> held(new py::function(std::move(fn)), [](py::function* f) {
    py::gil_scoped_acquire lock;
    delete f;
  });
  return device::Capture(std::move(name), [held](const std::vector<at::Tensor>& inputs) {
    py::gil_scoped_acquire lock;
    try {
      return (*held)(inputs).cast<std::vector<at::Tensor>>();
    } catch (py::error_already_set& error) {
      // Carried through C++ as PyTorch does it, so that the user sees the exception that was raised.
      error.restore();
      python_error carried;
      carried.persist();
      throw carried;
    }
  });
}

// PyTorch's engine keeps a thread a device, which takes the interpreter's lock once more when it ends. Left to the end of the
// process, that may come after the interpreter's, and Python then ends the thread in a way that ends the process.
void stop_autograd_threads() {
  if (!runtime::Engine::started() || runtime::Engine::in_bad_fork()) return;
  torch::autograd::Engine::get_default_engine().stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // stop() returns before the threads have had the lock
}

template <class F>
auto without_lock(F&& f) {
  py::gil_scoped_release release;
  return f();
}

}  // namespace
}  // namespace flambeau

PYBIND11_MODULE(_C, m) {
  using namespace flambeau;
  py::register_exception_translator(&translate);
  m.attr("__version__") = FLAMBEAU_VERSION;
  m.def("initialize", [](const std::string& plugin) { device::initialize({.plugin = plugin}); }, py::arg("plugin") = "");
  m.def("start", [] { without_lock([] { runtime::Engine::get(); }); });
  m.def("started", &runtime::Engine::started);
  m.def("in_bad_fork", &runtime::Engine::in_bad_fork);
  m.def("platform", &platform);
  m.def("synchronize", [] { without_lock([] { device::synchronize(); }); });
  m.def("counters", &counters);
  m.def("memory", &memory);
  m.def("reset_peak_memory", &runtime::reset_peak_memory);
  m.def("stop_autograd_threads", [] { without_lock([] { stop_autograd_threads(); }); });
  m.def("set_debug", [](bool on) { runtime::Engine::get().set_debug(on); });
  m.def("debug", [] { return runtime::Engine::started() && runtime::Engine::get().debug(); });
  m.def("default_generator", [] { return device::default_generator(); });
  py::class_<device::Capture>(m, "Capture")
      .def(py::init(&make_capture), py::arg("name"), py::arg("fn"))
      .def("prepare", [](device::Capture& self, const std::vector<at::Tensor>& inputs) {
        without_lock([&] { self.prepare(inputs); });
      })
      .def("__call__", [](device::Capture& self, const std::vector<at::Tensor>& inputs) {
        return without_lock([&] { return self(inputs); });
      });
}
