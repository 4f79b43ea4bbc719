"""What a function reads of Python, found from its code, so that `capture` can tell whether it would do the same again.

From the function on, what its code names is followed: globals, closure cells, default arguments, attributes, items of containers, and the
functions and methods of users that these lead to. An attribute counts when some of that code names it (``self.scale``,
``getattr(self, "scale")``); of modules of torch.nn all attributes count. Code of torch, numpy, flambeau and the standard library is not
followed, containers are followed up to CONTAINER items, and all in all up to PLACES places. What is found and cannot be compared (an iterator,
a deque, a numpy array, Python's and numpy's random numbers) is `unseen`.
"""

import array
import collections
import functools
import random
import sys
import types
import warnings
from typing import NamedTuple

import torch
from torch.optim import optimizer as torch_optimizer

from flambeau import _C

try:
    import numpy
except ImportError:  # which PyTorch does not need
    numpy = None

CONTAINER = 1_000
PLACES = 50_000

_LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "flambeau", "functorch"}
# Mutable things that are not compared: a function that reads one is recorded at each call.
_UNSEEN = {collections.deque, bytearray, array.array, random.Random} | ({numpy.ndarray, numpy.random.Generator, numpy.random.RandomState} if numpy else set())
# Methods that Python or PyTorch calls without their name in the code.
_IMPLIED = {f"__{name}__" for name in (
    "call getattr getattribute getitem setitem contains iter next len bool enter exit get set eq ne lt le gt ge hash index float int neg pos abs invert "
    "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and or xor "
    "torch_function").split()} | {"forward"}
# Names in code that say that a function makes or reads gradients.
_NO_GRADIENTS = {"no_grad", "enable_grad", "set_grad_enabled", "requires_grad", "requires_grad_", "is_grad_enabled"}


class Place(NamedTuple):
    kind: str  # as the methods of _C.Snapshot
    container: object
    key: object
    path: str  # as messages call it
    before: object  # what stood there; of contents all of them

    def _key_of(self, item):
        """Of a container's item; None where the container itself changed."""
        if self.kind != "contents":
            return self.key
        keys = list(self.container) if isinstance(self.container, dict) else range(len(self.container))
        return keys[item] if item < len(keys) and len(keys) == len(self.before) else None

    def path_of(self, item):
        key = self._key_of(item)
        if self.kind != "contents" or key is None:
            return self.path
        return f"{self.path}[{item if isinstance(key, torch.Tensor) else repr(key)}]"

    def can_be_set(self, item):
        if self.kind == "item":
            return self.key in self.container  # still
        return self.kind in ("cell", "attribute") or (self.kind == "contents" and self._key_of(item) is not None)

    def value_before(self, item):
        return self.before[item] if self.kind == "contents" else self.before

    def get(self, item):
        """What stands there now; None for nothing."""
        if self.kind == "cell":
            return _cell_contents(self.container)
        if self.kind == "attribute":
            return getattr(self.container, self.key, None)
        key = self._key_of(item)
        return self.container.get(key) if isinstance(self.container, dict) else self.container[key]

    def set(self, item, value):
        if self.kind == "cell":
            self.container.cell_contents = value
        elif self.kind == "attribute":
            setattr(self.container, self.key, value)
        else:
            self.container[self._key_of(item)] = value

    def is_grad(self):
        return self.kind == "grad" or (self.kind == "attribute" and self.key == "grad" and isinstance(self.container, torch.Tensor))

    def is_on_host(self, item):
        """Whether it is a plain value or a tensor on the CPU."""
        value = self.container if self.kind == "state" else self.get(item) if self.can_be_set(item) else self
        return _C.is_plain(value) or (isinstance(value, torch.Tensor) and value.device.type == "cpu")


def _cell_contents(cell):
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _now(kind, container, key):
    if kind == "item":
        return container.get(key)
    if kind == "contents":
        return tuple(container.values()) if isinstance(container, dict) else tuple(container)
    if kind == "cell":
        return _cell_contents(container)
    return getattr(container, key, None) if kind == "attribute" else None


class Reads:
    """What a function reads: places with their values of now, tensors, optimizers."""

    def __init__(self):
        self.snapshot = _C.Snapshot()
        self.places = []
        self.leaves = []  # (tensor, its .grad now, place "grad", place of the very gradient)
        self.optimizers = []
        self.unseen = []  # what cannot be compared: iterators' positions, contents of arrays
        self.names = set()  # that the code has
        self._tensors = {}
        self._states = []  # places of optimizers' states

    def add(self, kind, container, key, path):
        self.places.append(Place(kind, container, key, path, _now(kind, container, key)))
        arguments = (container,) if key is None else (container, key)
        return getattr(self.snapshot, kind)(*arguments)

    def add_tensor(self, tensor, path):
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = (tensor, self.add("state", tensor, None, path))
        if tensor.is_leaf and tensor.requires_grad:
            grad = self.add("grad", tensor, None, f"{path}.grad")
            self.leaves.append((tensor, tensor.grad, grad, self.add("attribute", tensor, "grad", f"{path}.grad")))

    def add_parameters(self, optimizer, name):
        """Which parameters an optimizer has."""
        self.add("item", optimizer.__dict__, "param_groups", f"{name}.param_groups")
        self.add("contents", optimizer.param_groups, None, f"{name}.param_groups")
        for i, group in enumerate(optimizer.param_groups):
            path = f"{name}.param_groups[{i}]['params']"
            self.add("contents", group["params"], None, path)
            for k, parameter in enumerate(group["params"]):
                self.add_tensor(parameter, f"{path}[{k}]")

    def add_state(self, optimizer, name):
        """The tensors and numbers that an optimizer keeps for each parameter. Gives their places."""
        first = len(self.places)
        self.add("item", optimizer.__dict__, "state", f"{name}.state")
        self.add("contents", optimizer.state, None, f"{name}.state")
        for i, state in enumerate(optimizer.state.values()):
            if not isinstance(state, dict):
                continue
            self.add("contents", state, None, f"{name}.state[{i}]")
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self.add_tensor(value, f"{name}.state[{i}][{key!r}]")
        places = range(first, len(self.places))
        self._states += [i for i in places if self.places[i].kind != "state"]
        return places

    def forget_state(self, tensor):
        if id(tensor) in self._tensors:
            self.snapshot.forget(self._tensors[id(tensor)][1])

    def watch_hooks(self):
        """The hooks of optimizers, outside of a recording, which has hooks of its own."""
        hooks = [torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks]
        for optimizer in self.optimizers:
            hooks += [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
        for registered in hooks:
            self.add("contents", registered, None, "the hooks of optimizers")

    def gradients_matter(self):
        return any(("grad" in n and n not in _NO_GRADIENTS) or n in ("backward", "step") for n in self.names)

    def holders_of(self, tensor):
        """How many places it stands in."""
        return sum(x is tensor for p in self.places if p.kind != "attribute" for x in (p.before if p.kind == "contents" else (p.before,)))

    def first_change(self):
        """The path of a place that has another value now, or None."""
        for index, item in self.snapshot.changed()[:1]:
            return self.places[index].path_of(item)

    def are_gone(self):
        """Whether they will never again be what they were: tensors have gone, or an optimizer's state was replaced (load_state_dict)."""
        return self.snapshot.gone() or not {index for index, _ in self.snapshot.changed()}.isdisjoint(self._states)

    def let_go(self):
        """Forgets the values of before and the tensors, so that no memory of the device is kept."""
        self.places = [p._replace(before=(None,) * len(p.before) if p.kind == "contents" else None,
                                  container=None if p.kind in ("state", "grad") else p.container) for p in self.places]
        self.leaves, self._tensors = [], {}


def reads(roots):
    """What is read by way of `roots`, pairs of a path and a function or an object."""
    walk = _Walk(set())
    walk.run(roots)
    while walk.names != walk.names_before:  # an attribute counts once any code names it
        walk = _Walk(walk.names)
        walk.run(roots)
    return walk.reads


def is_library(module_name):
    return (module_name or "").partition(".")[0] in _LIBRARIES


def _codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class _Walk:
    def __init__(self, names):
        self.names, self.names_before = set(names), frozenset(names)
        self.reads = Reads()
        self.reads.names = self.names
        self._seen = {}
        self._classes = set()
        self._next = []

    def run(self, roots):
        self._next = [(value, path) for path, value in roots]
        while self._next:
            value, path = self._next.pop()
            if len(self.reads.places) > PLACES:
                warnings.warn(f"[capture] more than {PLACES:,} places are read, further ones are not watched; the first is {path}", stacklevel=2)
                return
            if id(value) in self._seen or _C.is_plain(value):
                continue
            self._seen[id(value)] = value
            self._visit(value, path)
        if any(isinstance(value, torch.nn.Module) for value in self._seen.values()):
            for name, value in vars(torch.nn.modules.module).items():
                if name.startswith("_global_") and isinstance(value, dict):
                    self.reads.add("contents", value, None, f"torch.nn.modules.module.{name}")

    def _follow(self, value, path):
        self._next.append((value, path))

    def _item(self, container, key, path):
        self.reads.add("item", container, key, path)
        if key in container:
            self._follow(container[key], path)

    def _visit(self, value, path):
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self.reads.add_tensor(value, path)
        elif kind is types.FunctionType:
            self._function(value, path)
        elif kind is types.MethodType:
            self._follow(value.__func__, path)
            self._follow(value.__self__, "self")
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._follow(part, path)
        elif isinstance(value, (staticmethod, classmethod)):
            self._follow(value.__func__, path)
        elif isinstance(value, property):
            for part in (value.fget, value.fset):
                self._follow(part, path)
        elif isinstance(value, types.ModuleType):
            self._module(value, path)
        elif isinstance(value, type):
            self._class(value, constructs=True)
        elif isinstance(value, torch.optim.Optimizer):
            self.reads.optimizers.append(value)
            self.reads.add_parameters(value, path)
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            for name in ("last_epoch", "_last_lr"):
                self._item(vars(value), name, f"{path}.{name}")
        elif isinstance(value, torch.nn.Module):
            self._layer(value, path)
        elif isinstance(value, (dict, list, tuple, set, frozenset)):
            self._container(value, path)
        elif (hasattr(kind, "__next__") and not hasattr(kind, "readline")) or kind in _UNSEEN:
            self.reads.unseen.append(f"{path}, a {kind.__module__}.{kind.__qualname__}")
        elif "__wrapped__" in getattr(value, "__dict__", ()):
            self._follow(value.__wrapped__, path)
        elif not is_library(kind.__module__) or kind.__name__ in ("SimpleNamespace", "Namespace"):
            self._object(value, path)

    def _function(self, f, path):
        if not is_library(f.__globals__.get("__name__")):
            for code in _codes(f.__code__):
                self.names.update(code.co_names)
                self.names.update(c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
                for name in code.co_names:
                    if name in f.__globals__:
                        self._item(f.__globals__, name, name)
                    elif name in sys.modules:  # imported by the function itself
                        self._follow(sys.modules[name], name)
            for name in self.names & f.__dict__.keys():
                self._item(f.__dict__, name, f"{path}.{name}")
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(f, name):
                self.reads.add("attribute", f, name, f"the defaults of {path}")
                self._follow(getattr(f, name), f"the defaults of {path}")
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            self.reads.add("cell", cell, None, name)
            try:
                self._follow(cell.cell_contents, name)
            except ValueError:  # empty yet
                pass

    def _module(self, module, path):
        if module is random or (module is numpy and "random" in self.names):
            self.reads.unseen.append(f"{path}, random numbers of {module.__name__}")
        if not is_library(module.__name__):
            for name in self.names & vars(module).keys():
                self._item(vars(module), name, f"{path}.{name}")

    def _class(self, cls, constructs=False):
        """Its methods and attributes; those that make an object where the code may do that."""
        for base in cls.__mro__:
            if is_library(base.__module__) or (base, constructs) in self._classes:
                continue
            self._classes.add((base, constructs))
            for name, value in vars(base).items():
                is_implied = name in _IMPLIED or (constructs and name in ("__init__", "__new__", "__post_init__"))
                if name not in self.names and not is_implied:
                    continue
                if not isinstance(value, (classmethod, staticmethod, types.MemberDescriptorType)):
                    self.reads.add("attribute", base, name, f"{base.__name__}.{name}")
                self._follow(value, f"{base.__name__}.{name}")

    def _object(self, value, path):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.reads.add("size", attributes, None, f"the attributes of {path}")
            for name in self.names & attributes.keys():
                self._item(attributes, name, f"{path}.{name}")
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in self.names.intersection((slots,) if isinstance(slots, str) else slots):
                self.reads.add("attribute", value, name, f"{path}.{name}")
                self._follow(getattr(value, name, None), f"{path}.{name}")
        self._class(type(value))

    def _layer(self, module, path):
        attributes = vars(module)
        if is_library(type(module).__module__):
            self.reads.add("contents", attributes, None, path)
            names = attributes.keys()
        else:
            self.reads.add("size", attributes, None, f"the attributes of {path}")
            own = (name for name, value in attributes.items() if name == "training" or (name.startswith("_") and isinstance(value, dict)))
            names = (self.names & attributes.keys()).union(own)
            for name in names:
                self.reads.add("item", attributes, name, f"{path}.{name}")
            self._class(type(module))
        for name in names:
            if name in ("_parameters", "_buffers", "_modules"):
                self.reads.add("contents", attributes[name], None, path)
                for child, value in attributes[name].items():
                    self._follow(value, f"{path}.{child}")
            else:
                self._follow(attributes[name], f"{path}.{name}")

    def _container(self, value, path):
        if len(value) > CONTAINER:
            self.reads.add("size", value, None, path)
        elif isinstance(value, (set, frozenset)):
            self.reads.add("equal", value, frozenset(value), path)
        else:
            if not isinstance(value, tuple):  # which cannot change
                self.reads.add("contents", value, None, path)
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._follow(item, f"{path}[{key!r}]" if not isinstance(key, torch.Tensor) else path)
