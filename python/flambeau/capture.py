"""Whole-step capture from Python."""

import copy
import functools
import types
import warnings

import torch
from torch.utils import _pytree as pytree

from flambeau import _C
from flambeau.recording import Recording

RECORDINGS = 16  # that a captured function keeps
UNSETTLED = 10  # recordings in a row after which a function is said not to settle


def capture(fn=None, *, name=None, check=None):
    """Makes ``fn`` one compiled program that replays.

    ``fn`` takes and gives tensors of the device, in any nesting of lists, tuples and dicts, and plain values. Tensors from outside that it
    reads are its state; those that it writes (parameters, moments of optimizers, ``.grad``) are updated. A call records ``fn`` (runs
    its Python) and runs the program; once two recordings under equal conditions were equal, calls under these conditions only
    run the program. Results are detached.

    Conditions, compared before each replay: shapes, dtypes and ``requires_grad`` of tensor arguments, values of the others; what the code of
    ``fn`` reads of Python (`flambeau.watched`: globals, closures, attributes, defaults, contents of containers, which tensors stand
    where); grad, inference and autocast modes, the default dtype and device. When one changes, the call records, or takes an earlier
    recording of the same conditions (up to RECORDINGS are kept). Learning rates, momenta, betas and weight decays of stock
    optimizers are inputs of the program instead: they change freely (`flambeau.captured_optimizers`).

    Iterators made outside, numpy arrays, context variables and random numbers of Python and numpy are found but cannot be compared: ``fn`` is
    recorded at each call. Not seen: clocks, files, attributes that are looked up by computed names, code of libraries, containers of
    more than 1,000 items beside their length, and what comes after 50,000 places (a warning says so). Two recordings that differ all
    the same are a ValueError that names the first op; equal ones do not prove that a later one would be. ``check="always"`` records
    and compares at every call.

    ValueError: also when ``fn`` writes to a tensor argument, or to what one is a view of, and for gradients of arguments that are no leaves or
    have hooks. RuntimeError: it reads a value on the host. TypeError: an argument or result that is none of the above.
    NotImplementedError: an optimizer that cannot be captured.
    """
    if check not in (None, "always"):
        raise ValueError(f"expected check=None or check='always', got {check!r}")
    if fn is None:
        return functools.partial(capture, name=name, check=check)
    return Captured(fn, name or getattr(fn, "__name__", "step"), check == "always")


class Captured:
    """What capture() gives: call it as the function, or as a method where it stands in a class. `recorded` counts its recordings."""

    def __init__(self, fn, name, always):
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._name, self._always = fn, name, always
        self._recordings = []  # the latest used first
        self._roots = []  # optimizers that were found while recording
        self._unsettled, self._warned = 0, False
        self.recorded = 0

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args, **kwargs):
        if _C.is_recording():
            return self._fn(*args, **kwargs)  # a part of the step around it
        call = Call(args, kwargs)
        if all(t.device.type == "cpu" for t in call.tensors) if call.tensors else not _C.started():
            return self._fn(*args, **kwargs)  # nothing of it is on the device
        call.check()
        found, match = self._find(call)
        if found is None or not found.accepted or self._always:
            return self._record(call, found)
        self._unsettled = 0
        return found.replay(call, *match)

    def _find(self, call):
        """The recording whose conditions are those of now, and what it takes; (None, None)."""
        for i, recording in enumerate(self._recordings):
            if match := recording.match(call):
                self._recordings.insert(0, self._recordings.pop(i))
                return recording, match
        return None, None

    def _record(self, call, previous):
        self._unsettled = 0 if previous else self._unsettled + 1
        unsettled = self._unsettled >= UNSETTLED and not self._warned and not self._always
        change = self._last_change() if unsettled else None
        self.recorded += 1
        recording = Recording(self._name, self._fn, call, self._roots)
        self._roots += recording.found_late
        if recording.step is None:  # all of it ran on the CPU
            return recording.output
        if unsettled:
            self._warned = True
            warnings.warn(f"[capture] {self._name!r} was recorded at each of {self._unsettled} calls, which is slow: {recording.reason or change}. Keep "
                          "what changes in a tpu tensor, or out of the captured function", stacklevel=3)
        if recording.reason:
            return recording.run(call)
        if previous:
            self._recordings.remove(previous)
            self._compare(previous, recording)
            recording.accepted = True
        output = recording.run(call)
        self._recordings = [recording, *(r for r in self._recordings if not r.reads.are_gone())][:RECORDINGS]
        return output

    def _last_change(self):
        changes = (recording.reads.first_change() for recording in self._recordings)
        return next((f"{path} has changed" for path in changes if path), "its arguments, or the modes it is called in, change")

    def _compare(self, previous, recording):
        difference = previous.step.difference(recording.step)
        if difference:
            raise ValueError(
                f"[capture] {self._name!r} does not do the same thing at each step, so replaying it would be wrong: {difference}. Nothing that is "
                "watched has changed, so it depends on something that cannot be seen (an iterator, a clock, random numbers of Python, "
                "a file); pass what changes as an argument, or keep it in a tpu tensor")


class Call:
    """The arguments of one call, and the modes it is made in."""

    def __init__(self, args, kwargs):
        if not kwargs and all(isinstance(x, torch.Tensor) for x in args):  # the usual call, without the cost of a tree
            self.tensors, self.spec, self.others = list(args), len(args), ()
        else:
            leaves, self.spec = pytree.tree_flatten((args, kwargs))
            self.tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
            self.others = tuple((i, x) for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor))
        self.modes = (
            tuple(t.requires_grad for t in self.tensors), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
            torch.is_autocast_enabled("tpu"), torch.get_autocast_dtype("tpu"), torch.is_autocast_cache_enabled(), torch.get_default_device())

    def check(self):
        """Raises TypeError for what a program could not take."""
        for _, x in self.others:
            if type(x).__module__ == "numpy":
                raise TypeError(f"[capture] expected tensors and plain values as arguments, got a numpy {type(x).__name__}, whose changes are "
                                "not seen; pass a tensor (torch.from_numpy(x).to('tpu')) or a number (x.item())")
        for x in self.tensors:
            if type(x) not in (torch.Tensor, torch.nn.Parameter):
                raise TypeError(f"[capture] expected plain tensors as arguments, got a {type(x).__name__}, whose class the program would not know; "
                                "pass x.as_subclass(torch.Tensor)")

    def is_like(self, other):
        return (self.modes == other.modes and self.spec == other.spec and len(self.others) == len(other.others)
                and all(i == k and (a is b or _C.is_plain(a) and _C.same_plain(a, b)) for (i, a), (k, b) in zip(self.others, other.others)))

    def arguments(self, tensors):
        """(args, kwargs) with `tensors` in the tensors' places."""
        if isinstance(self.spec, int):
            return tensors, {}
        others, tensors = dict(self.others), iter(tensors)
        leaves = [others[i] if i in others else next(tensors) for i in range(len(self.others) + len(self.tensors))]
        return pytree.tree_unflatten(leaves, self.spec)

    def bare(self):
        """The same without the tensors, whose memory a recording does not keep."""
        call = copy.copy(self)
        call.tensors = ()
        return call
