"""PyTorch's optimizers inside of a captured function.

While a function is recorded, a hook of PyTorch's runs before each `optimizer.step()` of the recording thread and chooses the form whose numbers
can be inputs of the program:

* SGD, Adam, AdamW, Adagrad take their fused form. Learning rate, momentum, betas, weight decay and the like become numbers that each
  replay reads from `param_groups`; the step count moves to the device, where `fused=True` and `capturable=True` have it.
* RMSprop, Adadelta, Adamax, NAdam, RAdam, ASGD and Rprop take their capturable form, in which the learning rate is such a number. Their other
  numbers are constants of the program, watched like all that Python holds.
* Any other optimizer runs as it is, with its numbers and its state watched. One that counts its steps on the host would be another
  program at each step, so it is refused by name.

Flags of the groups are put back after the step. `state_dict()` gives step counts as it would have without a capture: on the CPU, but for groups
that are fused or capturable by themselves.
"""

import inspect
import threading

import torch
from torch.optim import optimizer as torch_optimizer

from flambeau import _C

# The numbers of a group that a fused op takes, by the op's argument: (key, place in a tuple or None).
_BETAS = {"beta1": ("betas", 0), "beta2": ("betas", 1)}
_FUSED = {
    torch.optim.SGD: {n: (n, None) for n in ("lr", "momentum", "dampening", "weight_decay")},
    torch.optim.Adam: {**{n: (n, None) for n in ("lr", "weight_decay", "eps")}, **_BETAS},
    torch.optim.AdamW: {**{n: (n, None) for n in ("lr", "weight_decay", "eps")}, **_BETAS},
    torch.optim.Adagrad: {n: (n, None) for n in ("lr", "lr_decay", "weight_decay", "eps")},
}
_CAPTURABLE = (torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD,
               torch.optim.Rprop)
_REFUSED = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.SparseAdam)  # which decide on the host, by values of the device
# Zero means that something is left out: another program.
_ZERO_IS_STRUCTURE = ("momentum", "weight_decay")


def _is_stock(optimizer, kinds):
    """The kind whose own step() `optimizer` runs, or None."""
    step = inspect.unwrap(type(optimizer).step)
    return next((k for k in kinds if isinstance(optimizer, k) and step is inspect.unwrap(k.step)), None)


def _value(group, key, place):
    value = group[key] if place is None else group[key][place]
    return float(value)


class Steps:
    """The optimizer steps of one recording. A context manager: within it the hooks are there."""

    def __init__(self, reads):
        self.numbers = []  # (group, key, place in a tuple or None), in the order of the program's
        self.optimizers = []  # that were stepped
        self.found_late = []  # of these, the ones that were not among what the function was seen to read
        self._reads = reads
        self._thread = threading.get_ident()
        self._recorded = []  # the numbers' values when they were recorded
        self._before = [(group, {key: group[key] for key in optimizer.defaults if key in group}) for optimizer in reads.optimizers
                        for group in optimizer.param_groups]
        self._restore = []  # (dict, key, what was there)
        self._marks = {}  # by optimizer within its step: where in `_restore` its own begin, and how deep its steps are nested
        self._states = {}  # by optimizer that runs as it is: the places of its state

    def __enter__(self):
        self._hooks = [torch_optimizer.register_optimizer_step_pre_hook(self._before_step),
                       torch_optimizer.register_optimizer_step_post_hook(self._after_step)]
        for optimizer in self._reads.optimizers:
            if _is_stock(optimizer, _FUSED):  # asked by GradScaler before it calls step()
                self._set_attribute(optimizer, "_step_supports_amp_scaling", True)
        return self

    def __exit__(self, *exception):
        for hook in self._hooks:
            hook.remove()
        self._put_back(0)
        return False

    def values(self):
        """The numbers as they are now; None where one is zero that was not, which is another program."""
        values = [_value(*number) for number in self.numbers]
        for value, (_, key, _) in zip(values, self.numbers):
            if value == 0 and key in _ZERO_IS_STRUCTURE:
                return None
        return values

    def own_change(self):
        """What the recorded function changed of the numbers itself, in words, or None: a replay would not change it."""
        changed = [key for (group, key, place), recorded in zip(self.numbers, self._recorded) if _value(group, key, place) != recorded]
        for group, numbers in self._before:
            changed += [key for key, value in numbers.items() if _C.is_plain(value) and not _C.same_plain(value, group.get(key))]
        if changed:
            return f"it changes {changed[0]!r} of an optimizer itself (by a scheduler's step, for example)"

    # ---- hooks ------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread or not _C.is_recording():
            return
        if optimizer in self._marks:  # a step() that calls its base's
            self._marks[optimizer][1] += 1
            return
        if not _C.calls_in_recording() and not any(_is_tpu(p) for group in optimizer.param_groups for p in group["params"]):
            return  # a function on the CPU
        if refused := _is_stock(optimizer, _REFUSED):
            raise NotImplementedError(f"[capture] {refused.__name__} computes with values of the device on the host, so it is not captured; step it "
                                      "outside of the captured function")
        self._marks[optimizer] = [len(self._restore), 1]
        fused, capturable = self._form_of(optimizer)
        if fused:
            self._take_fused_form(optimizer, fused)
        elif capturable:
            self._take_capturable_form(optimizer)
        if (fused or capturable) and _with_host_numbers not in optimizer._optimizer_state_dict_post_hooks.values():
            optimizer.register_state_dict_post_hook(_with_host_numbers)
        if optimizer not in self._reads.optimizers:
            self.found_late.append(optimizer)
            self._reads.optimizers.append(optimizer)
        places = self._reads.add_state(optimizer, type(optimizer).__name__)
        if not fused and not capturable:
            self._states[optimizer] = places
            self._watch_groups(optimizer)

    def _after_step(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread or optimizer not in self._marks:
            return
        self._marks[optimizer][1] -= 1
        if self._marks[optimizer][1]:
            return
        self._put_back(self._marks.pop(optimizer)[0])
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        if optimizer in self._states:
            self._refuse_host_state(optimizer)
        else:
            self._watch_groups(optimizer)

    def _form_of(self, optimizer):
        """(its kind when it takes the fused form, whether it takes the capturable one)"""
        name = type(optimizer).__name__
        fused, capturable = _is_stock(optimizer, _FUSED), _is_stock(optimizer, _CAPTURABLE)
        for group in optimizer.param_groups if fused or capturable else ():
            if group.get("differentiable"):
                raise NotImplementedError(f"[capture] {name} with differentiable=True is not captured; step it outside")
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.device.type != "tpu":
                    raise ValueError(f"[capture] expected the parameters of {name} on tpu, got one on {parameter.device}, which a replay would "
                                     "not step; move the model to tpu")
                if parameter.is_complex():
                    fused = None
        if fused and issubclass(fused, torch.optim.SGD) and self._lacks_buffers(optimizer):
            fused = None
        return fused, bool(capturable)

    def _take_fused_form(self, optimizer, kind):
        self._set_attribute(optimizer, "_need_device_dtype_check_for_fused", True)
        for group in optimizer.param_groups:
            self._move_state(optimizer, group, ("step",))
            self._set_flags(group, fused=True, foreach=False)
            numbers = {}
            for argument, (key, place) in _FUSED[kind].items():
                value = group[key] if place is None else group[key][place]
                if not _is_tpu(value) and not (key in _ZERO_IS_STRUCTURE and value == 0):
                    numbers[argument] = self._declare(group, key, place)
            _C.declare_numbers(group["params"], numbers)

    def _take_capturable_form(self, optimizer):
        for group in optimizer.param_groups:
            self._move_state(optimizer, group, None)
            flags = {"capturable": True, "foreach": True}
            if not isinstance(optimizer, torch.optim.Rprop) and not _is_tpu(group["lr"]):  # Rprop's only makes its first steps
                wide = any(p.dtype == torch.float64 for p in group["params"])
                index = self._declare(group, "lr", None)
                flags["lr"] = _C.number_tensor(index, self._recorded[index], torch.float64 if wide else torch.float32)
            self._set_flags(group, **flags)

    @staticmethod
    def _lacks_buffers(optimizer):
        """Whether some of SGD's parameters have their momentum buffers and others not: the fused op takes all or none. Such a step makes the
        others, so it is not replayed, and its numbers may be constants."""
        for group in optimizer.param_groups:
            states = [optimizer.state.get(p, {}) for p in group["params"] if p.grad is not None]
            if group["momentum"] != 0 and len({state.get("momentum_buffer") is None for state in states}) > 1:
                return True
        return False

    # ---- numbers, flags, state -----------------------------------------------------------------------------------------

    def _declare(self, group, key, place):
        number = (group, key, place)
        for index, (g, k, p) in enumerate(self.numbers):  # a second step() of one optimizer
            if g is group and (k, p) == (key, place):
                return index
        self.numbers.append(number)
        self._recorded.append(_value(*number))
        return len(self.numbers) - 1

    def _set_flags(self, group, **flags):
        for name, value in flags.items():
            if name in group:
                self._restore.append((group, name, group[name]))
                group[name] = value

    def _set_attribute(self, owner, name, value):
        self._restore.append((vars(owner), name, vars(owner).get(name, _C)))
        vars(owner)[name] = value

    def _put_back(self, mark):
        while len(self._restore) > mark:
            owner, name, value = self._restore.pop()
            if value is _C:  # was not there
                owner.pop(name, None)
            else:
                owner[name] = value

    @staticmethod
    def _move_state(optimizer, group, keys):
        """Numbers that the state keeps on the host go to the parameter's device, at once."""
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key in keys or tuple(state):
                value = state.get(key)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    value = torch.tensor(float(value))
                if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
                    dtype = torch.float32 if key == "step" else value.dtype
                    state[key] = _C.at_once(lambda v=value, d=dtype: v.to(device=parameter.device, dtype=d))

    def _watch_groups(self, optimizer):
        """What the groups hold beside parameters and is a constant of the program; all, where the function may read it itself."""
        reads, name = self._reads, type(optimizer).__name__
        is_read = not reads.names.isdisjoint(("param_groups", "get_last_lr")) or not _is_stock(optimizer, (*_FUSED, *_CAPTURABLE))
        for group in optimizer.param_groups:
            inputs = {key for owner, key, _ in self.numbers if owner is group}
            if isinstance(optimizer, torch.optim.Rprop):
                inputs.add("lr")  # made its first steps
            if is_read:
                reads.add("size", group, None, f"what a group of {name} holds")
            for key in group if is_read else optimizer.defaults.keys() & group.keys() - inputs:
                if key != "params":
                    reads.add("item", group, key, f"{key!r} of {name}")

    def _refuse_host_state(self, optimizer):
        places = self._states.pop(optimizer)
        for index, item in self._reads.snapshot.changed():
            place = self._reads.places[index]
            if index in places and place.is_on_host(item):
                raise NotImplementedError(
                    f"[capture] {type(optimizer).__name__} keeps {place.path_of(item)} on the host and changes it in step(), so each step would "
                    "be another program; keep it in a tpu tensor, step outside of the captured function, or take SGD, Adam, AdamW, Adagrad, "
                    "RMSprop, Adadelta, Adamax, NAdam, RAdam, ASGD or Rprop of torch.optim")


def _with_host_numbers(optimizer, state_dict):
    """A hook of state_dict(): what PyTorch keeps on the CPU is there, whatever form captured steps take."""
    keys = () if isinstance(optimizer, torch.optim.ASGD) else ("step", "mu_product")
    state = dict(state_dict["state"])
    for group in state_dict["param_groups"]:
        if group.get("fused") or group.get("capturable"):
            continue
        for index in group["params"]:
            moved = {key: state[index][key].cpu() for key in keys if _is_tpu(state.get(index, {}).get(key))}
            if moved:
                state[index] = {**state[index], **moved}
    return {**state_dict, "state": state}


def _is_tpu(value):
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"
