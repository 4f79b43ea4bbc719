"""What a function reads of Python, found from its code, so that `capture` can tell whether it would do the same again.

From the function on, what its code names is followed: globals, closure cells, default arguments, attributes, items of containers, and the
functions and methods of users that these lead to, hooks among them. An attribute counts when some of that code names it (``self.scale``,
``getattr(self, "scale")``). Code of torch, numpy, flambeau and the standard library is not followed: of modules of torch.nn all attributes
count, of other objects of torch (a GradScaler, a distribution) numbers and tensors. Containers are followed up to CONTAINER items, and all in
all up to PLACES places. What is found and cannot be compared (an iterator, a numpy array, a context variable, Python's and numpy's
random numbers) is `unseen`.
"""

import argparse
import array
import collections
import contextvars
import functools
import gc
import random
import sys
import threading
import types
import warnings
import weakref
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
_UNSEEN = (bytearray, memoryview, array.array, random.Random, contextvars.ContextVar, threading.local,
           *((numpy.ndarray, numpy.random.Generator, numpy.random.RandomState) if numpy else ()))
_CONTAINERS = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque)
# Objects of the standard library that are what a user put into them.
_HOLDERS = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, collections.ChainMap)
# Methods that Python or PyTorch calls without their name in the code.
_IMPLIED = {f"__{name}__" for name in (
    "call getattr getattribute getitem setitem contains iter next len bool enter exit get set eq ne lt le gt ge hash index float int neg pos abs invert "
    "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and or xor "
    "torch_function").split()} | {"forward", "backward", "setup_context", "jvp", "vmap"}
# Names in code that say that a function makes or reads gradients.
_NO_GRADIENTS = {"no_grad", "enable_grad", "set_grad_enabled", "requires_grad", "requires_grad_", "is_grad_enabled"}


class Place(NamedTuple):
    kind: str  # as the methods of _C.Snapshot
    container: object
    key: object
    path: str  # as messages call it
    before: object  # what stood there; of contents all of them
    keys: object = None  # of a dict's contents

    def _key_of(self, item):
        """Of a container's item, as _C.Snapshot counts them; None where the container itself changed, and for a set's."""
        if self.kind != "contents":
            return self.key
        if item >= len(self.before) or isinstance(self.container, (set, frozenset)):
            return None
        return item if self.keys is None else self.keys[item]

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
    if kind == "cell":
        return _cell_contents(container)
    return getattr(container, key, None) if kind == "attribute" else None


def _builtin(container):
    """The builtin type that a container is, which counts and iterates whatever a user's class makes of it."""
    return next(kind for kind in _CONTAINERS if isinstance(container, kind))


def _contents(container):
    """(keys or None, values)"""
    items = tuple(_builtin(container).__iter__(container))
    if not isinstance(container, dict):
        return None, items
    return items, tuple(dict.__getitem__(container, key) for key in items)


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
        keys, before = _contents(container) if kind == "contents" else (None, _now(kind, container, key))
        self.places.append(Place(kind, container, key, path, before, keys))
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

    @staticmethod
    def hooks_of(*optimizers):
        """What is called at their steps."""
        return [torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks,
                *(hooks for o in optimizers for hooks in (o._optimizer_step_pre_hooks, o._optimizer_step_post_hooks))]

    def watch_hooks(self):
        """The hooks of optimizers, outside of a recording, which has hooks of its own."""
        for registered in self.hooks_of(*self.optimizers):
            self.add("contents", registered, None, "the hooks of optimizers")

    def gradients_matter(self):
        return any(("grad" in n and n not in _NO_GRADIENTS) or n in ("backward", "step") for n in self.names)

    def holders(self):
        """In how many places each object stands, by id()."""
        return collections.Counter(id(x) for p in self.places if p.kind != "attribute" for x in (p.before if p.kind == "contents" else (p.before,)))

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


def _parts(value):
    """What an object of Python's own is made of, where a call or a look-up goes on to that; None for another object."""
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        return (value.__self__,)
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return value.func, value.args, value.keywords
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, types.MappingProxyType):
        return gc.get_referents(value)
    if isinstance(value, weakref.ref):
        return (value(),)
    if "__wrapped__" in getattr(value, "__dict__", ()):
        return (value.__wrapped__,)
    return None


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
            if _C.is_plain(value):
                if isinstance(value, tuple):  # a named one has methods
                    self._class(type(value))
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(value, path)

    def _follow(self, value, path):
        self._next.append((value, path))

    def _item(self, container, key, path):
        self.reads.add("item", container, key, path)
        if key in container:
            self._follow(container[key], path)

    def _visit(self, value, path):
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif kind is types.FunctionType:
            self._function(value, path)
        elif isinstance(value, types.ModuleType):
            self._module(value, path)
        elif isinstance(value, type):
            self._class(value, constructs=True)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value, path)
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            for name in ("last_epoch", "_last_lr"):
                self._item(vars(value), name, f"{path}.{name}")
        elif isinstance(value, torch.nn.Module):
            self._layer(value, path)
        elif isinstance(value, _CONTAINERS):
            self._container(value, path)
            if not is_library(kind.__module__):
                self._object(value, path)
        elif isinstance(value, _UNSEEN) or (hasattr(kind, "__next__") and not hasattr(kind, "readline")):
            self.reads.unseen.append(f"{path}, a {kind.__module__}.{kind.__qualname__}")
        elif (parts := _parts(value)) is not None:
            for part in parts:
                self._follow(part, path)
        elif not is_library(kind.__module__) or isinstance(value, _HOLDERS):
            self._object(value, path)
        elif kind.__module__.partition(".")[0] == "torch":
            for name, held in getattr(value, "__dict__", {}).items():
                if _C.is_plain(held) or isinstance(held, torch.Tensor):
                    self._item(vars(value), name, f"{path}.{name}")

    def _tensor(self, tensor, path):
        self.reads.add_tensor(tensor, path)
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if hooks := getattr(tensor, name, None):
                self._follow(hooks, f"the hooks of {path}")
        self._object(tensor, path)

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
            self._attributes(f.__dict__, path)
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
        for base in (*cls.__mro__, *type(cls).__mro__):
            if is_library(base.__module__) or (base, constructs) in self._classes:
                continue
            self._classes.add((base, constructs))
            self.reads.add("size", vars(base), None, f"the attributes of {base.__name__}")
            for name, value in vars(base).items():
                is_implied = name in _IMPLIED or (constructs and name in ("__init__", "__new__", "__post_init__"))
                if name not in self.names and not is_implied:
                    continue
                path = f"{base.__name__}.{name}"
                if isinstance(value, classmethod):  # the attribute is another method each time
                    (attributes,) = gc.get_referents(vars(base))
                    self.reads.add("item", attributes, name, path)
                elif not isinstance(value, types.MemberDescriptorType):
                    self.reads.add("attribute", base, name, path)
                self._follow(value, path)

    def _attributes(self, attributes, path):
        """Those that the code names, and whether there are more or fewer in all."""
        self.reads.add("size", attributes, None, f"the attributes of {path}")
        for name in self.names & attributes.keys():
            self._item(attributes, name, f"{path}.{name}")

    def _object(self, value, path):
        if isinstance(attributes := getattr(value, "__dict__", None), dict):
            self._attributes(attributes, path)
        if isinstance(value, _HOLDERS):
            for name in ("data", "maps"):
                if name in attributes:
                    self._item(attributes, name, path)
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in self.names.intersection((slots,) if isinstance(slots, str) else slots):
                self.reads.add("attribute", value, name, f"{path}.{name}")
                self._follow(getattr(value, name, None), f"{path}.{name}")
        self._class(type(value))

    def _optimizer(self, optimizer, path):
        """Its parameters, its hooks, and of a user's class what that reads beside its groups and its state."""
        self.reads.optimizers.append(optimizer)
        self.reads.add_parameters(optimizer, path)
        for registered in self.reads.hooks_of(optimizer):
            for hook in registered.values():
                self._follow(hook, f"the hooks of {path}")
        if not is_library(type(optimizer).__module__):
            attributes = vars(optimizer)
            for name in self.names & attributes.keys() - {"param_groups", "state", "defaults"}:
                self._item(attributes, name, f"{path}.{name}")
            self._class(type(optimizer))

    def _layer(self, module, path):
        for name, value in vars(torch.nn.modules.module).items():
            if name.startswith("_global_") and isinstance(value, dict):
                self._follow(value, f"torch.nn.modules.module.{name}")
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
        if _builtin(value).__len__(value) > CONTAINER:
            self.reads.add("size", value, None, path)
            return
        if not isinstance(value, (tuple, frozenset)):  # which cannot change
            self.reads.add("contents", value, None, path)
        keys, items = _contents(value)
        for key, item in zip(range(len(items)) if keys is None else keys, items):
            self._follow(item, f"{path}[{key!r}]" if _C.is_plain(key) else path)
            self._follow(key, f"the keys of {path}")
