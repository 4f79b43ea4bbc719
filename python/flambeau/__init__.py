"""Flambeau: PyTorch on TPUs, or on any PJRT plugin, as the device ``tpu``.

``import torch`` is enough: PyTorch loads this package through the entry point group ``torch.backends``
(``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns that off; then ``import flambeau`` does the same).
"""

import atexit
import os
import sysconfig
import warnings


def _autoload():
    """The entry point: importing this module has registered the device.

    Defined before torch is imported, because `import flambeau` makes torch look for it while this module is half made.
    """


import torch  # noqa: E402


def _register(extension, tpu):
    extension.initialize()
    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=False)
    atexit.register(extension.stop_autograd_threads)
    _print_from_a_copy()


def _print_from_a_copy():
    """Shows a tpu tensor from one copy on the CPU: formatting it on the device would take some fifty ops that wait."""
    import torch._tensor_str as tensor_str

    format_tensor = tensor_str._tensor_str

    def formatted(self, indent):
        return format_tensor(self.detach().cpu() if self.device.type == "tpu" else self, indent)

    tensor_str._tensor_str = formatted


# Plugins are looked for among the packages of this very environment.
os.environ.setdefault("FLAMBEAU_SITE_PACKAGES", sysconfig.get_paths()["purelib"])

try:
    from flambeau import _C
except ImportError as error:
    if getattr(error, "name", None) != "flambeau._C" and "_C" not in str(error):
        raise
    # A checkout that is not built must not keep torch from being imported.
    warnings.warn(f"the tpu device is not available: {error}; build Flambeau with `make build`", stacklevel=2)
else:
    from flambeau import tpu
    from flambeau.step import capture

    _register(_C, tpu)
    __version__ = _C.__version__
    __all__ = ["capture", "tpu"]
