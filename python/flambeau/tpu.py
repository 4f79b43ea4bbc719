"""The module ``torch.tpu``: the device's state, memory and random numbers."""

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


def device_count():
    """1: the one logical device ``tpu:0`` in front of all devices of the plugin."""
    return 1


def current_device():
    """The current device's index, 0."""
    return 0


def _check(device):
    """Raises unless ``device`` (an index, a name, a torch.device or None) is the device that there is."""
    device = torch.device("tpu", device) if isinstance(device, int) else torch.device("tpu" if device is None else device)
    if device.type != "tpu":
        raise ValueError(f"expected a tpu device, got {device}")
    if device.index not in (None, 0):
        raise RuntimeError(f"[tpu] expected tpu:0, got {device}; there is 1 tpu device, in front of all chips of the process")


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
    return _C.platform()["kind"]


def get_device_properties(device=None):
    """A dict: platform, kind, devices, plugin (a path)."""
    return _C.platform()


def synchronize(device=None):
    """Waits until everything that was launched has run, and raises what failed."""
    _C.synchronize()


def get_amp_supported_dtype():
    """The dtypes that autocast may choose."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork():
    """Whether this process was forked after the plugin had been loaded: the device cannot be used in it."""
    return _C.in_bad_fork()


# ---- random numbers -------------------------------------------------------------------------------------------------


def _generator():
    return _C.default_generator()


def manual_seed(seed):
    """Seeds the device's generator."""
    _generator().manual_seed(seed)


def manual_seed_all(seed):
    """Seeds the device's generator; there is one device."""
    _generator().manual_seed(seed)


def initial_seed():
    """The seed in use."""
    return _generator().initial_seed()


def get_rng_state(device="tpu"):
    """The generator's state, a uint8 tensor [16] on the CPU: seed and offset."""
    return _generator().get_state()


def set_rng_state(new_state, device="tpu"):
    """Restores what get_rng_state() gave."""
    _generator().set_state(new_state)


# ---- memory ---------------------------------------------------------------------------------------------------------


def memory_allocated(device=None):
    """Bytes of live tensors."""
    return _C.memory()["allocated_bytes"]


def max_memory_allocated(device=None):
    """The most bytes of live tensors since the start or reset_peak_memory_stats()."""
    return _C.memory()["peak_bytes"]


def reset_peak_memory_stats(device=None):
    """The peak starts again from what is allocated now."""
    _C.reset_peak_memory()


def memory_stats(device=None):
    """A dict: allocated_bytes, peak_bytes, allocations, frees."""
    return _C.memory()


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
