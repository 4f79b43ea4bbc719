"""Flambeau: PyTorch on TPUs, or on any PJRT plugin, as the device ``tpu``.

``import torch`` is enough: PyTorch loads this package through the entry point group ``torch.backends``
(``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns that off; then ``import flambeau`` does the same).
"""

import os
import sysconfig

import torch

# Plugins are looked for among the packages of this very environment.
os.environ.setdefault("FLAMBEAU_SITE_PACKAGES", sysconfig.get_paths()["purelib"])

from flambeau import _C, tpu  # noqa: E402
from flambeau.step import capture  # noqa: E402

__version__ = _C.__version__
__all__ = ["capture", "tpu"]


def _autoload():
    """The entry point: importing this module has registered the device."""


def _register():
    _C.initialize()
    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=False)
    _print_from_a_copy()


def _print_from_a_copy():
    """Shows a tpu tensor from one copy on the CPU: formatting it on the device would take some fifty ops that wait."""
    import torch._tensor_str as tensor_str

    format_tensor = tensor_str._tensor_str

    def formatted(self, indent):
        return format_tensor(self.detach().cpu() if self.device.type == "tpu" else self, indent)

    tensor_str._tensor_str = formatted


_register()
