// _C.Snapshot: what stood in places of Python (items, cells, attributes, tensors' state) when it was taken, compared in nanoseconds.
//
// A place is added with the value that it has then; same() says whether all still have theirs, changed() which do not. Plain values (numbers,
// strings, tuples of them, dtypes, devices) are compared by type and value, tensors and all else by identity. A tensor is held weakly, so
// that a snapshot keeps no memory of the device alive; one that is gone never compares equal.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/python_variable.h>
#include <pybind11/gil_safe_call_once.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include "bindings.h"
#include "device/device.h"

namespace py = pybind11;

namespace flambeau {
namespace {

// ---- values ---------------------------------------------------------------------------------------------------------------

bool is_plain(PyObject* x) {
  if (x == Py_None || x == Py_Ellipsis || PyBool_Check(x) || PyLong_CheckExact(x) || PyFloat_CheckExact(x) || PyUnicode_CheckExact(x) ||
      PyBytes_CheckExact(x) || PyComplex_CheckExact(x) || THPDtype_Check(x) || THPDevice_Check(x) || PySlice_Check(x))
    return true;
  if (!PyTuple_Check(x)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(x); ++i)
    if (!is_plain(PyTuple_GET_ITEM(x, i))) return false;
  return true;
}

bool equal_objects(PyObject* a, PyObject* b) {
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal > 0;
}

// Of one type and value: True is not 1, 0.0 is not -0.0, a NaN is itself.
bool same_plain(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (!PyTuple_Check(a)) return equal_objects(a, b);
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
    if (!same_plain(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

bool is_tensor(PyObject* x) { return x && THPVariable_Check(x); }
// What a weak reference refers to, borrowed; null when that is gone.
PyObject* referent(const py::object& weak) {
  PyObject* object = PyWeakref_GetObject(weak.ptr());
  return object == Py_None ? nullptr : object;
}

// What two tensors must share to take each other's place in a program.
struct Likeness {
  c10::Device device;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  bool requires_grad;
  static Likeness of(const at::Tensor& t) { return {t.device(), t.scalar_type(), t.sizes().vec(), t.requires_grad()}; }
  bool operator==(const Likeness&) const = default;
};

// What stood in one place.
class Held {
 public:
  explicit Held(PyObject* now) {
    if (!now) return;
    by_ = is_tensor(now) ? By::Tensor : is_plain(now) ? By::Value : By::Identity;
    object_ = by_ == By::Tensor ? py::reinterpret_steal<py::object>(PyWeakref_NewRef(now, nullptr)) : py::reinterpret_borrow<py::object>(now);
    if (!object_) throw py::error_already_set();
  }

  bool is(PyObject* now) const {
    switch (by_) {
      case By::Absent: return now == nullptr;
      case By::Identity: return now == object_.ptr();
      case By::Value: return now && same_plain(object_.ptr(), now);
      case By::Tensor: return now && now == referent(object_);
      case By::Like: return is_tensor(now) && Likeness::of(THPVariable_Unpack(now)) == *like_;
    }
    return false;
  }
  // From now on any tensor like the one that was here will do.
  void loosen() {
    PyObject* tensor = by_ == By::Tensor ? referent(object_) : nullptr;
    if (!tensor) return;
    like_ = Likeness::of(THPVariable_Unpack(tensor));
    by_ = By::Like;
    object_ = py::object();
  }
  bool gone() const { return by_ == By::Tensor && !referent(object_); }
  PyObject* owned() const { return object_.ptr(); }

 private:
  enum class By : uint8_t { Absent, Identity, Value, Tensor, Like };
  By by_ = By::Absent;
  py::object object_;  // of a tensor: a weak reference
  std::optional<Likeness> like_;
};

// A tensor's own state, beside which object it is: what `p.data = x`, requires_grad_(), hooks and, on the CPU, writing change.
class TensorState {
 public:
  explicit TensorState(PyObject* object) : facts_(Facts::of(object)) {
    const at::Tensor& t = THPVariable_Unpack(object);
    if (t.layout() == at::kStrided) sizes_ = t.sizes().vec(), strides_ = t.strides().vec();
  }
  bool is_of(PyObject* object) const {
    const at::Tensor& t = THPVariable_Unpack(object);
    return Facts::of(object) == facts_ && (t.layout() != at::kStrided || (t.sizes() == sizes_ && t.strides() == strides_));
  }

 private:
  struct Facts {
    const c10::StorageImpl* storage = nullptr;
    uint64_t id = 0;  // of a tpu storage: addresses are used again
    int64_t offset = 0;
    int64_t version = 0;  // on the CPU
    bool requires_grad = false;
    PyObject *hooks = nullptr, *accumulated_hooks = nullptr;
    Py_ssize_t hook_count = 0;
    bool operator==(const Facts&) const = default;

    static Facts of(PyObject* object) {
      const auto* variable = reinterpret_cast<THPVariable*>(object);
      const at::Tensor& t = THPVariable_Unpack(object);
      Facts facts{.requires_grad = t.requires_grad(), .hooks = variable->backward_hooks, .accumulated_hooks = variable->post_accumulate_grad_hooks};
      if (t.layout() == at::kStrided && t.has_storage()) {
        facts.storage = t.storage().unsafeGetStorageImpl();
        facts.offset = t.storage_offset();
        if (device::is_tpu(t)) facts.id = device::storage_of(t).id;
      }
      if (t.is_cpu() && !t.is_inference()) facts.version = t._version();
      for (PyObject* hooks : {facts.hooks, facts.accumulated_hooks})
        if (hooks && PyDict_Check(hooks)) facts.hook_count += PyDict_Size(hooks);
      return facts;
    }
  };

  Facts facts_;
  std::vector<int64_t> sizes_, strides_;
};

// ---- places ---------------------------------------------------------------------------------------------------------------

enum class Kind : uint8_t { Item, Contents, Cell, Attribute, Size, State, Grad };

struct Place {
  Kind kind;
  py::object container;  // State, Grad: a weak reference
  py::object key = {};
  std::vector<Held> held = {};
  std::vector<py::object> keys = {};  // of a dict's contents
  Py_ssize_t size = 0;
  std::optional<TensorState> state = {};
  bool has_grad = false;
};

PyTypeObject* deque_type() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
  storage.call_once_and_store_result([] { return py::object(py::module_::import("collections").attr("deque")); });
  return reinterpret_cast<PyTypeObject*>(storage.get_stored().ptr());
}

// What a container holds, as the builtin type counts and iterates, whatever a user's class makes of it.
Py_ssize_t length(PyObject* container) {
  if (PyDict_Check(container)) return PyDict_Size(container);
  if (PyList_Check(container) || PyTuple_Check(container)) return PySequence_Fast_GET_SIZE(container);
  if (PyAnySet_Check(container)) return PySet_Size(container);
  if (PyObject_TypeCheck(container, deque_type())) return deque_type()->tp_as_sequence->sq_length(container);
  Py_ssize_t n = PyObject_Size(container);
  if (n < 0) PyErr_Clear();
  return n;
}

// Calls f(item) until it gives false, as `type` iterates.
template <class F>
void for_each_of(PyTypeObject* type, PyObject* container, F&& f) {
  const auto iterator = py::reinterpret_steal<py::object>(type->tp_iter(container));
  while (iterator) {
    const auto item = py::reinterpret_steal<py::object>(PyIter_Next(iterator.ptr()));
    if (!item || !f(item.ptr())) break;
  }
  PyErr_Clear();
}

// Calls f(key or null, value) until it gives false, in the order of iteration.
template <class F>
void for_each(PyObject* container, F&& f) {
  PyObject* const no_key = nullptr;
  if (PyODict_Check(container)) {
    for_each_of(&PyODict_Type, container, [&](PyObject* key) { return f(key, PyDict_GetItemWithError(container, key)); });
  } else if (PyDict_Check(container)) {
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(container, &position, &key, &value);)
      if (!f(key, value)) return;
  } else if (PyList_Check(container) || PyTuple_Check(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
      if (!f(no_key, PySequence_Fast_GET_ITEM(container, i))) return;
  } else {
    PyTypeObject* type = PyFrozenSet_Check(container) ? &PyFrozenSet_Type : PyAnySet_Check(container) ? &PySet_Type : deque_type();
    for_each_of(type, container, [&](PyObject* item) { return f(no_key, item); });
  }
}

bool has_grad(PyObject* tensor) { return THPVariable_Unpack(tensor).grad().defined(); }

class Snapshot {
 public:
  size_t item(const py::dict& dict, const py::object& key) {
    return add({.kind = Kind::Item, .container = dict, .key = key, .held = {Held(PyDict_GetItemWithError(dict.ptr(), key.ptr()))}});
  }
  size_t cell(const py::object& cell) {
    if (!PyCell_Check(cell.ptr())) throw py::type_error("expected a cell");
    return add({.kind = Kind::Cell, .container = cell, .held = {Held(PyCell_GET(cell.ptr()))}});
  }
  size_t attribute(const py::object& object, const py::object& name) {
    return add({.kind = Kind::Attribute, .container = object, .key = name, .held = {Held(attribute_of(object, name).ptr())}});
  }
  size_t size(const py::object& container) {
    return add({.kind = Kind::Size, .container = container, .size = length(container.ptr())});
  }
  // All items of a dict, list, tuple, set or deque, in order.
  size_t contents(const py::object& container) {
    Place place{.kind = Kind::Contents, .container = container, .size = length(container.ptr())};
    for_each(container.ptr(), [&](PyObject* key, PyObject* value) {
      if (key) place.keys.push_back(py::reinterpret_borrow<py::object>(key));
      place.held.emplace_back(value);
      return true;
    });
    return add(std::move(place));
  }
  size_t state(const py::object& tensor) {
    return add({.kind = Kind::State, .container = weak(tensor), .state = TensorState(tensor.ptr())});
  }
  // Whether the tensor has a gradient; which one is another question.
  size_t grad(const py::object& tensor) {
    return add({.kind = Kind::Grad, .container = weak(tensor), .has_grad = has_grad(tensor.ptr())});
  }

  bool same() const {
    return std::ranges::all_of(places_, &Snapshot::is_same);
  }
  // (place, number of the item in it) of all that differs now; the item is `size` where the container itself does.
  std::vector<std::pair<size_t, Py_ssize_t>> changed() const {
    std::vector<std::pair<size_t, Py_ssize_t>> all;
    for (size_t i = 0; i < places_.size(); ++i)
      for_each_change(places_[i], [&](Py_ssize_t item) { all.emplace_back(i, item); });
    return all;
  }
  void loosen(size_t place, size_t item) { places_.at(place).held.at(item).loosen(); }
  // The place does not matter after all.
  void forget(size_t place) { places_.at(place) = {.kind = Kind::Contents, .container = py::tuple()}; }
  // A tensor that was here is no more, so that same() stays false.
  bool gone() const {
    return std::ranges::any_of(places_, [](const Place& p) {
      return std::ranges::any_of(p.held, &Held::gone) || ((p.kind == Kind::State || p.kind == Kind::Grad) && !referent(p.container));
    });
  }

  int traverse(visitproc visit, void* arg) const {
    for (const Place& p : places_) {
      Py_VISIT(p.container.ptr());
      Py_VISIT(p.key.ptr());
      for (const Held& held : p.held) Py_VISIT(held.owned());
      for (const py::object& key : p.keys) Py_VISIT(key.ptr());
    }
    return 0;
  }
  void clear() { std::vector<Place>().swap(places_); }

 private:
  size_t add(Place place) {
    if (PyErr_Occurred()) throw py::error_already_set();
    places_.push_back(std::move(place));
    return places_.size() - 1;
  }
  static py::object weak(const py::object& tensor) {
    if (!is_tensor(tensor.ptr())) throw py::type_error("expected a tensor");
    return py::reinterpret_steal<py::object>(PyWeakref_NewRef(tensor.ptr(), nullptr));
  }
  static py::object attribute_of(const py::object& object, const py::object& name) {
    PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
    if (!value) PyErr_Clear();
    return py::reinterpret_steal<py::object>(value);
  }

  static bool is_same(const Place& p) {
    if (p.kind != Kind::Contents) return single_is_same(p);
    if (length(p.container.ptr()) != p.size) return false;
    bool same = true;
    for_each_now(p, [&](size_t i, PyObject* key, PyObject* value) { return same = has_key(p, i, key) && p.held[i].is(value); });
    return same;
  }
  // Calls f(item) for each item that differs; `size` stands for the container itself.
  template <class F>
  static void for_each_change(const Place& p, F&& f) {
    if (is_same(p)) return;
    if (p.kind != Kind::Contents) return f(Py_ssize_t{0});
    bool same_keys = length(p.container.ptr()) == p.size;
    std::vector<Py_ssize_t> changed;
    for_each_now(p, [&](size_t i, PyObject* key, PyObject* value) {
      if (!p.held[i].is(value)) changed.push_back(static_cast<Py_ssize_t>(i));
      return same_keys = same_keys && has_key(p, i, key);
    });
    if (!same_keys) return f(p.size);
    for (const Py_ssize_t item : changed) f(item);
  }
  // Calls f(number, key or null, value) until it gives false, for as many items as there were.
  template <class F>
  static void for_each_now(const Place& p, F&& f) {
    size_t i = 0;
    if (p.size > 0)
      for_each(p.container.ptr(), [&](PyObject* key, PyObject* value) { return i < p.held.size() && f(std::exchange(i, i + 1), key, value); });
  }
  static bool has_key(const Place& p, size_t i, PyObject* key) {
    return !key || key == p.keys[i].ptr() || (is_plain(key) && same_plain(key, p.keys[i].ptr()));
  }
  static bool single_is_same(const Place& p) {
    switch (p.kind) {
      case Kind::Item: {
        PyObject* now = PyDict_GetItemWithError(p.container.ptr(), p.key.ptr());
        if (!now) PyErr_Clear();
        return p.held[0].is(now);
      }
      case Kind::Cell: return p.held[0].is(PyCell_GET(p.container.ptr()));
      case Kind::Attribute: return p.held[0].is(attribute_of(p.container, p.key).ptr());
      case Kind::Size: return length(p.container.ptr()) == p.size;
      case Kind::State: {
        PyObject* tensor = referent(p.container);
        return tensor && p.state->is_of(tensor);
      }
      case Kind::Grad: {
        PyObject* tensor = referent(p.container);
        return tensor && has_grad(tensor) == p.has_grad;
      }
      case Kind::Contents: break;
    }
    return true;
  }

  std::vector<Place> places_;
};

// Snapshots refer to what refers to them (a function's globals, say), so Python's collector must see through them.
void make_collectable(PyHeapTypeObject* heap_type) {
  PyTypeObject* type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return py::detail::is_holder_constructed(self) ? py::cast<Snapshot&>(py::handle(self)).traverse(visit, arg) : 0;
  };
  type->tp_clear = [](PyObject* self) {
    if (py::detail::is_holder_constructed(self)) py::cast<Snapshot&>(py::handle(self)).clear();
    return 0;
  };
}

}  // namespace

void bind_snapshot(py::module_& m) {
  m.def("is_plain", [](const py::object& value) { return is_plain(value.ptr()); });
  m.def("same_plain", [](const py::object& a, const py::object& b) { return same_plain(a.ptr(), b.ptr()); });
  py::class_<Snapshot>(m, "Snapshot", py::custom_type_setup(&make_collectable))
      .def(py::init<>())
      .def("item", &Snapshot::item)
      .def("cell", &Snapshot::cell)
      .def("attribute", &Snapshot::attribute)
      .def("size", &Snapshot::size)
      .def("contents", &Snapshot::contents)
      .def("state", &Snapshot::state)
      .def("grad", &Snapshot::grad)
      .def("same", &Snapshot::same)
      .def("changed", &Snapshot::changed)
      .def("loosen", &Snapshot::loosen)
      .def("forget", &Snapshot::forget)
      .def("gone", &Snapshot::gone);
}

}  // namespace flambeau
