"""Whole-step capture from Python."""

import functools

import torch
from torch.utils import _pytree as pytree

from flambeau import _C


def capture(fn=None, *, name=None):
    """Makes ``fn`` one compiled program that replays.

    ``fn`` takes and gives tensors (in any nesting of lists, tuples and dicts). The first call records and runs it; the second records
    again and compares: from then on only the program runs. Tensors from outside that ``fn`` reads are its state, those that it
    writes (parameters, optimizer moments, ``.grad``) are updated in place. A Python number that changes between the two
    recordings, such as the bias correction of a stock ``torch.optim.AdamW``, raises ValueError: it would be frozen. Use
    ``capturable=True`` and a tensor ``lr``, or pass the number as a tensor.
    """
    if fn is None:
        return functools.partial(capture, name=name)
    spec = {}

    def flat(inputs):
        arguments = pytree.tree_unflatten(inputs, spec["in"])
        results, spec["out"] = pytree.tree_flatten(fn(*arguments[0], **arguments[1]))
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"[capture] expected tensors as results, got {type(result).__name__}; a captured function replays tensors only")
        return [result.detach() for result in results]

    program = _C.Capture(name or getattr(fn, "__name__", "step"), flat)

    @functools.wraps(fn)
    def step(*args, **kwargs):
        inputs, spec_in = pytree.tree_flatten((args, kwargs))
        for x in inputs:
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"[capture] expected tensors as arguments, got {type(x).__name__}; a captured function sees no other changing value")
        if spec.setdefault("in", spec_in) != spec_in:
            raise ValueError("[capture] the arguments are nested differently from the first call; capture the function anew")
        return pytree.tree_unflatten(program(inputs), spec["out"])

    return step
