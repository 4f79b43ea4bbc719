"""Tensors that many tests share, and the two steps of a comparison with the CPU."""

import torch

X = torch.linspace(-2, 3, 12).reshape(3, 4)
Y = torch.linspace(1, 4, 12).reshape(3, 4)


def tpu(value):
    """On the device where it is a tensor; any other value as it is."""
    return value.to("tpu") if isinstance(value, torch.Tensor) else value


def same(got, want, **tolerance):
    """Asserts that `got`, on the device, has the values of `want`, on the CPU."""
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.detach().cpu(), want.detach(), **tolerance)
