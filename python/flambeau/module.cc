// The extension module flambeau._C: what Python needs beside the registered device itself.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include <pybind11/gil_safe_call_once.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include "base/error.h"
#include "bindings.h"
#include "device/device.h"
#include "device/errors.h"
#include "device/fallback.h"
#include "flambeau_version.h"
#include "runtime/engine.h"

namespace py = pybind11;

namespace flambeau {
namespace {

constexpr std::pair<std::string_view, device::FallbackMode> kFallbackModes[] = {
    {"warn", device::FallbackMode::Warn}, {"silent", device::FallbackMode::Silent}, {"error", device::FallbackMode::Error}};

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const NotImplemented& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const OutOfRange& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
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
  result["host_waits"] = c.host_waits.load();
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
  const targets::Target& target = runtime::Engine::get().target();
  const pjrt::Client& client = runtime::Engine::get().client();
  py::dict result;
  result["platform"] = target.platform;
  result["kind"] = target.generation;
  result["devices"] = target.device_count;
  result["plugin"] = client.plugin().path().string();
  return result;
}

// PyTorch's engine keeps a thread a device, which takes the interpreter's lock once more when it ends. Left to the end of the
// process, that may come after the interpreter's, and Python then ends the thread in a way that ends the process.
void stop_autograd_threads() {
  if (!runtime::Engine::started() || runtime::Engine::in_bad_fork()) return;
  torch::autograd::Engine::get_default_engine().stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // stop() returns before the threads have had the lock
}

struct Line {
  std::string file;
  int number = 0;
};

// The innermost line of Python that belongs to neither PyTorch nor us; the innermost of all where all do. Needs the interpreter's lock.
std::optional<Line> user_frame() {
  py::error_scope kept;
  // Importing lets other threads run, which may come here too.
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<std::vector<std::string>> packages;
  packages.call_once_and_store_result([] {
    std::vector<std::string> folders;
    for (const char* package : {"torch", "flambeau"})
      folders.push_back(std::filesystem::path(std::string(py::str(py::module_::import(package).attr("__file__")))).parent_path().string() + "/");
    return folders;
  });
  std::optional<Line> innermost;
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const Line line{py::str(code.attr("co_filename")), PyFrame_GetLineNumber(raw)};
    if (std::ranges::none_of(packages.get_stored(), [&](const std::string& folder) { return line.file.starts_with(folder); })) return line;
    if (!innermost) innermost = line;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return innermost;
}

std::string python_line() {
  if (!Py_IsInitialized()) return {};
  py::gil_scoped_acquire lock;
  const std::optional<Line> line = user_frame();
  return line ? fmt::format("{}:{}", line->file, line->number) : "";
}

// A UserWarning at the user's line.
void python_warning(const std::string& text) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire lock;
  const Line line = user_frame().value_or(Line{"<no Python>", 0});
  if (PyErr_WarnExplicit(PyExc_UserWarning, text.c_str(), line.file.c_str(), line.number, nullptr, nullptr) == 0) return;
  python_error raised;  // warnings are errors
  raised.persist();
  throw raised;
}

device::FallbackMode fallback_mode(const std::string& name) {
  for (const auto& [known, mode] : kFallbackModes)
    if (name == known) return mode;
  raise<InvalidArgument>("[set_fallback] expected \"warn\", \"silent\" or \"error\", got \"{}\"", name);
}

std::string fallback_name() {
  for (const auto& [name, mode] : kFallbackModes)
    if (mode == device::fallback_mode()) return std::string(name);
  FLAMBEAU_CHECK(false, "every mode has a name");
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
  m.def("is_available", [] { return without_lock([] { return device::is_available(); }); });
  m.def("started", &runtime::Engine::started);
  m.def("in_bad_fork", &runtime::Engine::in_bad_fork);
  m.def("platform", &platform);
  m.def("synchronize", torch::wrap_pybind_function_no_gil(&device::synchronize_at_the_edge));
  m.def("check_index", torch::wrap_pybind_function(&device::check_index));
  m.def("counters", &counters);
  m.def("memory", &memory);
  m.def("reset_peak_memory", &runtime::reset_peak_memory);
  m.def("stop_autograd_threads", [] { without_lock([] { stop_autograd_threads(); }); });
  m.def("set_debug", [](bool on) { runtime::Engine::get().set_debug(on); });
  m.def("debug", [] { return runtime::Engine::started() && runtime::Engine::get().debug(); });
  m.def("fallbacks", &device::fallbacks);
  m.def("set_fallback", [](const std::string& mode) { device::set_fallback(fallback_mode(mode)); });
  m.def("fallback", &fallback_name);
  device::set_line_source(&python_line);
  device::set_warner(&python_warning);
  m.def("default_generator", [] { return device::default_generator(); });
  bind_capture(m);
  bind_snapshot(m);
}
