"""One recording of a captured function."""

import gc

import torch
from torch.utils import _pytree as pytree

from flambeau import _C, watched
from flambeau.captured_optimizers import Steps


class Recording:
    """A program, the conditions that it holds under, and what a replay does in Python.

    Beside running ops, the function may have put something else into places that it reads: gradients into ``.grad``, a tensor into
    ``self.hidden``, a number into ``self.seen``. A replay puts its own results, or the same plain value, there; and the tensor that it
    finds in such a place is the program's input. What cannot be done again so is the `reason` why this recording is not replayed.
    """

    def __init__(self, name, fn, call, roots):
        self.accepted = False  # an earlier recording under the same conditions was equal
        self.reason = None
        self.step = self.output = None  # the program; else what the function gave without doing anything on the device
        self._sets = []  # (number of a place, its item, number of a result or None, else a plain value or a tensor of before)
        self._inputs = []  # (number of a place, its item)
        self._grad_sets = []  # (parameter, number of a result or None, else a tensor of before or None)
        self._grad_inputs = []  # parameters whose gradients are read
        self._input_grads = []  # (number of an argument, number of a result)
        self._places, self._made = [], []  # the tensors that stood in the inputs, those made that the results replace
        self._place_storages = set()
        self.reads = watched.reads([(name, fn), *(("an optimizer", o) for o in roots), *((f"argument {i}", x) for i, x in call.others)])
        torch.clear_autocast_cache()  # a cast made outside is no part of the step, nor the other way round
        try:
            with Steps(self.reads) as self._steps:
                step = _C.CapturedStep(name, call.tensors, lambda tensors: self._body(fn, call, tensors))
        except BaseException:  # gradients that were recorded have no values
            leaves = [leaf for leaf in self.reads.leaves if leaf[0].device.type == "tpu"]
            _C.set_grads([tensor for tensor, *_ in leaves], [before for _, before, *_ in leaves])
            raise
        finally:
            torch.clear_autocast_cache()
        self.found_late = self._steps.found_late
        if self.output is None:
            self.step = step
            if not step.keeps_types():
                self._not_replayed("it leaves its state in another form than it found it")
            if not self.reason and step.escaped(self._made) and gc.collect() >= 0 and (count := step.escaped(self._made)):
                self._not_replayed(f"it keeps {count} tensors in places that are not seen, where a replay could not put its own")
            self.reads.watch_hooks()
        self.reads.let_go()
        self.call = call.bare()

    # ---- recording ----------------------------------------------------------------------------------------------------

    def _body(self, fn, call, placeholders):
        args, kwargs = call.arguments(placeholders)
        output = fn(*args, **kwargs)
        leaves, self._spec = pytree.tree_flatten(output)
        self._constants = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
        self._results = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
        self._count = len(leaves)
        if not _C.calls_in_recording() and not any(x.device.type == "tpu" for x in self._results):
            self.output = output
            return [], []
        for x in self._constants.values():
            if not _C.is_plain(x):
                raise TypeError(f"[capture] expected tensors and plain values as results, got {type(x).__name__}")
        self._holders = self.reads.holders()
        for index, item in self.reads.snapshot.changed():
            self._note_change(index, item)
        self._note_gradients()
        self._note_input_gradients(call, placeholders)
        if self._steps.found_late:
            self._not_replayed("an optimizer was found while recording")
        for reason in (self._steps.own_change(), *(f"it reads {what}, whose changes are not seen" for what in self.reads.unseen)):
            self._not_replayed(reason)
        results, self._results = self._results, None
        return results, self._places

    def _not_replayed(self, reason):
        self.reason = self.reason or reason

    def _add_result(self, tensor):
        self._made.append(tensor)
        self._results.append(tensor)
        return len(self._results) - 1

    def _note_change(self, index, item):
        """What the function itself put into a place."""
        place = self.reads.places[index]
        if place.is_grad():
            return
        if not place.can_be_set(item):
            return self._not_replayed(f"it changes {place.path_of(item)}")
        value = place.get(item)
        if not isinstance(value, torch.Tensor):
            if not _C.is_plain(value):
                return self._not_replayed(f"it puts another {type(value).__name__} into {place.path_of(item)}")
            self._sets.append((index, item, None, value))
        elif not _C.made_in_recording(value):
            if value.device.type != "tpu":
                return self._not_replayed(f"it puts a tensor on {value.device} into {place.path_of(item)}")
            self._sets.append((index, item, None, value))
        elif value.is_leaf and value.requires_grad:
            self._not_replayed(f"it puts a new parameter into {place.path_of(item)}")
        else:
            if value.requires_grad:  # as results: replays have no graph
                place.set(item, value := value.detach())
            self._sets.append((index, item, self._add_result(value), None))
            self._take_as_input(index, item, place.value_before(item))

    def _take_as_input(self, index, item, before):
        """The tensor in a place where each call puts another one."""
        if not isinstance(before, torch.Tensor) or before.requires_grad or before.device.type != "tpu":
            return
        if _C.touched_in_recording(before):
            if self._holders[id(before)] > 1 or not self._may_be_place(before):
                return  # only this very tensor will do
            self._inputs.append((index, item))
            self._places.append(before)
        self.reads.snapshot.loosen(index, item)
        self.reads.forget_state(before)

    def _may_be_place(self, tensor):
        """Whether it is alone in its storage, and notes that storage."""
        storage = tensor.untyped_storage()
        if not tensor.is_contiguous() or tensor.nbytes != storage.nbytes() or storage.data_ptr() in self._place_storages:
            return False
        self._place_storages.add(storage.data_ptr())
        return True

    def _note_gradients(self):
        snapshot, matter = self.reads.snapshot, self._steps.optimizers or self.reads.gradients_matter()
        grad_places = []
        for parameter, before, has, which in self.reads.leaves:
            now = parameter.grad
            touched = before is not None and _C.touched_in_recording(before)
            is_place = touched and self._may_be_place(before)
            if is_place:
                self._grad_inputs.append(parameter)
                grad_places.append(before)
            if is_place or not touched:
                snapshot.forget(which)  # any gradient will do
            if now is before:
                if not touched and not matter:
                    snapshot.forget(has)
            elif now is None or not _C.made_in_recording(now):
                self._grad_sets.append((parameter, None, now))
            elif now.requires_grad:
                self._not_replayed("it makes gradients that have a graph (create_graph=True)")
            else:
                self._grad_sets.append((parameter, self._add_result(now), None))
        self._places = grad_places + self._places

    def _note_input_gradients(self, call, placeholders):
        for i, placeholder in enumerate(placeholders):
            if placeholder.grad is None:
                continue
            if not call.tensors[i].is_leaf:
                raise ValueError(f"[capture] the gradient of argument {i} does not go on to what it was made of; pass x.detach().requires_grad_(), "
                                 "and call x.backward(gradient) afterwards")
            if not _takes_gradient(call.tensors[i]):
                raise ValueError(f"[capture] the hooks of argument {i} would not be called; pass x.detach().requires_grad_()")
            self._input_grads.append((i, self._add_result(placeholder.grad)))

    # ---- running -------------------------------------------------------------------------------------------------------

    def run(self, call):
        """Runs what was just recorded. Python's part has been done."""
        results = self.step.run(call.tensors, self._places)
        for tensor in self._made:
            self.step.let_go(tensor)
        self._made, self._places = [], []
        self._set_input_grads(call, results)
        return self._output(results)

    def match(self, call):
        """What a replay takes beside the arguments, (tensors of places, numbers), when all else is as it was when this was recorded; or None."""
        if not (self.call.is_like(call) and self.step.accepts_inputs(call.tensors) and self.reads.snapshot.same()):
            return None
        if not all(_takes_gradient(call.tensors[i]) for i, _ in self._input_grads):
            return None
        numbers = self._steps.values()
        if numbers is None:
            return None
        held = [parameter.grad for parameter in self._grad_inputs]
        held += [self.reads.places[index].get(item) for index, item in self._inputs]
        return (held, numbers) if self.step.accepts_places(held) else None

    def replay(self, call, held, numbers):
        """Runs the program again, with what match() gave."""
        _C.set_grads([p for p, *_ in self._grad_sets], [None] * len(self._grad_sets))  # frees them, unless they are inputs
        results = self.step.run(call.tensors, held, numbers)
        held.clear()
        for index, item, k, value in self._sets:
            self.reads.places[index].set(item, value if k is None else results[k])
        _C.set_grads([p for p, *_ in self._grad_sets], [value if k is None else results[k] for _, k, value in self._grad_sets])
        self._set_input_grads(call, results)
        for optimizer in self._steps.optimizers:
            optimizer._opt_called = True  # schedulers ask for it
        return self._output(results)

    def _set_input_grads(self, call, results):
        for i, k in self._input_grads:
            tensor = call.tensors[i]
            with torch.no_grad():
                tensor.grad = results[k] if tensor.grad is None else tensor.grad.add_(results[k])

    def _output(self, results):
        results = iter(results)
        return pytree.tree_unflatten([self._constants[i] if i in self._constants else next(results) for i in range(self._count)], self._spec)


def _takes_gradient(argument):
    """Whether a replay may put a gradient there as autograd would."""
    return argument.is_leaf and not argument._backward_hooks and not argument._post_accumulate_grad_hooks
