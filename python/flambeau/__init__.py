"""Flambeau: PyTorch on TPUs, or on any PJRT plugin, as the device ``tpu``.

``import torch`` is enough: PyTorch loads this package through the entry point group ``torch.backends``
(``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns that off; then ``import flambeau`` does the same).
"""

import atexit
import functools
import importlib.util
import os
import sys
import sysconfig
import warnings


def _autoload():
    """The entry point: importing this module has registered the device.

    Defined before torch is imported, because `import flambeau` makes torch look for it while this module is half made.
    """


import torch  # noqa: E402


def _check_whole():
    """Raises ImportError for an extension module that was cut off: mapping it would end the process."""
    spec = importlib.util.find_spec("flambeau._C")
    if not spec:
        return
    with open(spec.origin, "rb") as file:
        header = file.read(64)
        size = file.seek(0, os.SEEK_END)
    # ELF64 ends with the table of its sections: offset, then bytes and number of its entries.
    offset, entry, count = (int.from_bytes(header[a:b], sys.byteorder) for a, b in ((40, 48), (58, 60), (60, 62)))
    if header.startswith(b"\x7fELF\x02") and size < offset + entry * count:
        raise ImportError(f"{spec.origin} is cut off after {size} bytes")


def _register():
    _check_whole()
    from flambeau import _C, tpu
    from flambeau.capture import capture

    _C.initialize()
    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=False)
    atexit.register(_C.stop_autograd_threads)
    _print_from_a_copy()
    _lend_no_memory()
    globals().update(tpu=tpu, capture=capture, __version__=_C.__version__)


def _print_from_a_copy():
    """Shows a tpu tensor from one copy on the CPU: formatting it on the device would take some fifty ops that wait."""
    import torch._tensor_str as tensor_str

    format_tensor = tensor_str._tensor_str

    def formatted(self, indent):
        return format_tensor(self.detach().cpu() if self.device.type == "tpu" else self, indent)

    tensor_str._tensor_str = formatted


def _lend_no_memory():
    """A storage's data pointer is no memory that others could read. DLPack serves who asks for a copy on the CPU; pickling for another
    process would put shared memory in the storage's place."""
    import torch.utils.dlpack as dlpack

    def guarded(export):
        @functools.wraps(export)
        def to_dlpack(tensor, *, dl_device=None, copy=None):
            if tensor.device.type == "tpu" and (dl_device is None or dl_device[0] == dlpack.DLDeviceType.kDLExtDev):
                raise BufferError("can't export a tpu:0 tensor through DLPack. Use Tensor.cpu() to copy the tensor to host memory first.")
            return export(tensor, dl_device=dl_device, copy=copy)

        return to_dlpack

    torch._C._to_dlpack_versioned = guarded(torch._C._to_dlpack_versioned)
    torch.to_dlpack = dlpack.to_dlpack = torch._C._to_dlpack = guarded(torch._C._to_dlpack)
    device_of = torch.Tensor.__dlpack_device__
    torch.Tensor.__dlpack_device__ = functools.wraps(device_of)(
        lambda self: (dlpack.DLDeviceType.kDLExtDev, 0) if self.device.type == "tpu" else device_of(self))

    def kept(share):
        @functools.wraps(share)
        def share_of(self, *args, **kwargs):
            if self.device.type == "tpu":
                raise RuntimeError("a tpu tensor can't be sent to another process. Use Tensor.cpu() to copy the tensor to host memory first.")
            return share(self, *args, **kwargs)

        return share_of

    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        setattr(torch.UntypedStorage, name, kept(getattr(torch.UntypedStorage, name)))


def _say(text):
    try:
        warnings.warn(text, stacklevel=3)
    except Warning:  # under -W error
        print(f"flambeau: {text}", file=sys.stderr)


# Plugins are looked for among the packages of this very environment.
os.environ.setdefault("FLAMBEAU_SITE_PACKAGES", sysconfig.get_paths()["purelib"])

__all__ = ["capture", "tpu"]
_failure = None
try:
    _register()
except Exception as error:  # PyTorch imports this module, and must not fail because of it
    _failure = error
    _say(f"the tpu device is not available: {type(error).__name__}: {error}; build Flambeau with `make build`, for this very PyTorch "
         f"({torch.__version__})")


def __getattr__(name):
    if _failure and name in (*__all__, "__version__"):
        raise ImportError(f"flambeau.{name} needs the tpu device, which is not available: {_failure}") from _failure
    raise AttributeError(f"module 'flambeau' has no attribute {name!r}")
