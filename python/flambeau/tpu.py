"""The module ``torch.tpu``: the device's state, memory, streams and random numbers.

Where a function takes ``device``, that is an index, a name, a torch.device or None; any but the one device is a RuntimeError.
"""

import contextlib
import os

import torch

from flambeau import _C


def is_available():
    """Whether a plugin was found and offers a device."""
    return _C.is_available()


def is_initialized():
    """Whether the plugin has been loaded."""
    return _C.started()


def init():
    """Loads the plugin now. ValueError when there is none."""
    _C.start()


_lazy_init = init


def __getattr__(name):
    if name == "_initialized":  # torch.utils.checkpoint asks, before it saves the generator's state
        return is_initialized()
    if name == "default_generators":
        return (_generator(),)
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def device_count():
    """1: the one logical device ``tpu:0`` in front of all devices of the plugin."""
    return 1


def current_device():
    """The current device's index, 0."""
    return 0


def _check(device):
    """Raises unless ``device`` is the device that there is."""
    device = torch.device("tpu", device) if isinstance(device, int) else torch.device("tpu" if device is None else device)
    if device.type != "tpu":
        raise ValueError(f"expected a tpu device, got {device}")
    _C.check_index(-1 if device.index is None else device.index)


def set_device(device):
    """Accepts the one device. Under a launcher (``LOCAL_RANK``) also that rank's index: each process has one logical device."""
    if str(device).removeprefix("tpu:") != os.environ.get("LOCAL_RANK"):
        _check(device)


class device:  # noqa: N801 (the name that torch.cuda.device has)
    """Context manager of the current device. There is one, so nothing changes."""

    def __init__(self, device):
        _check(device)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


def get_device_name(device=None):
    """The plugin's name of the device kind, for example ``cpu`` or ``TPU v5 lite``."""
    _check(device)
    return _C.platform()["kind"]


def get_device_properties(device=None):
    """A dict: platform, kind, devices, plugin (a path)."""
    _check(device)
    return _C.platform()


def synchronize(device=None):
    """Waits until everything that was launched has run, and raises what failed."""
    _check(device)
    _C.synchronize()


def get_amp_supported_dtype():
    """The dtypes that autocast may choose."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork():
    """Whether this process was forked after the plugin had been loaded: the device cannot be used in it."""
    return _C.in_bad_fork()


# ---- streams --------------------------------------------------------------------------------------------------------
# There is one, on which everything runs in order: what is for several of them does nothing. Events are not there yet.


def Stream(device=None, priority=0):  # noqa: N802 (the name that torch.cuda.Stream has)
    """The one stream."""
    return current_stream(device)


def current_stream(device=None):
    """The one stream."""
    _check(device)
    return torch.accelerator.current_stream()


default_stream = current_stream


def set_stream(stream):
    """Accepts the one stream."""
    torch.accelerator.set_stream(stream)


def stream(stream):
    """Context manager of the current stream."""
    return contextlib.nullcontext() if stream is None else stream


# ---- random numbers -------------------------------------------------------------------------------------------------


def _generator():
    return _C.default_generator()


def manual_seed(seed):
    """Seeds the device's generator."""
    _generator().manual_seed(seed)


def manual_seed_all(seed):
    """Seeds the device's generator; there is one device."""
    _generator().manual_seed(seed)


def seed():
    """Seeds the device's generator from the system's entropy."""
    return _generator().seed()


seed_all = seed


def initial_seed():
    """The seed in use."""
    return _generator().initial_seed()


def get_rng_state(device="tpu"):
    """The generator's state, a uint8 tensor [16] on the CPU: seed and offset. Taken within a captured step it holds within that alone."""
    _check(device)
    return _generator().get_state()


def set_rng_state(new_state, device="tpu"):
    """Restores what get_rng_state() gave."""
    _check(device)
    _generator().set_state(new_state)


def get_rng_state_all():
    """A list of the one device's state."""
    return [get_rng_state()]


def set_rng_state_all(new_states):
    """Restores what get_rng_state_all() gave."""
    (state,) = new_states
    set_rng_state(state)


# ---- memory ---------------------------------------------------------------------------------------------------------


def memory_allocated(device=None):
    """Bytes of live tensors."""
    _check(device)
    return _C.memory()["allocated_bytes"]


def max_memory_allocated(device=None):
    """The most bytes of live tensors since the start or reset_peak_memory_stats()."""
    _check(device)
    return _C.memory()["peak_bytes"]


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated  # nothing is cached


def reset_peak_memory_stats(device=None):
    """The peak starts again from what is allocated now."""
    _check(device)
    _C.reset_peak_memory()


def memory_stats(device=None):
    """What torch.accelerator.memory_stats() gives: ``allocated_bytes.all.current`` and the like."""
    _check(device)
    return torch.accelerator.memory_stats()


def reset_accumulated_memory_stats(device=None):
    """Counts of allocations and frees start again from zero."""
    _check(device)
    torch.accelerator.reset_accumulated_memory_stats()


def mem_get_info(device=None):
    """Free and total bytes of the device's memory. NotImplementedError where the plugin does not tell, as those of CPUs."""
    _check(device)
    return torch.accelerator.get_memory_info()


def empty_cache():
    """Nothing is cached: memory is the plugin's, given back with the last reference."""


# ---- modes ----------------------------------------------------------------------------------------------------------


class eager_mode:  # noqa: N801
    """Sets the eager mode, ``strict`` (default) or ``debug`` (each op is awaited and its data-dependent checks raise at
    once). Takes effect when called; as a context manager it is undone at the end."""

    def __init__(self, mode):
        if mode == "defer_and_fuse":
            raise NotImplementedError("eager mode 'defer_and_fuse' is not implemented yet; use 'strict', or flambeau.capture for whole steps")
        if mode not in ("strict", "debug"):
            raise ValueError(f"expected eager mode 'strict' or 'debug', got {mode!r}")
        self._before = _C.debug()
        _C.set_debug(mode == "debug")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        _C.set_debug(self._before)
        return False


def fallbacks():
    """How often each op that the device lacks has run on the CPU, by its name: ``{"aten::histc": 2}``."""
    return _C.fallbacks()


def set_fallback(mode):
    """What happens when an op is not there, or not for what it is given: ``"warn"`` (default; it runs on the CPU and says so once an op),
    ``"silent"`` (it runs on the CPU) or ``"error"`` (NotImplementedError)."""
    _C.set_fallback(mode)


def get_fallback():
    """The mode that set_fallback() has set."""
    return _C.fallback()
