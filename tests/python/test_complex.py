"""Complex numbers on the device `tpu`: lazy conjugates and negatives at every door, complex scalars. References are PyTorch's on the CPU."""

import pytest
import torch

import flambeau

Z = torch.complex(torch.linspace(-2, 3, 12).reshape(3, 4), torch.linspace(1, -4, 12).reshape(3, 4))
W = torch.complex(torch.linspace(0, 1, 12).reshape(3, 4), torch.linspace(5, 2, 12).reshape(3, 4))


def assert_same(got, want):
    if isinstance(want, torch.Tensor):
        assert got.device.type == "tpu" and got.dtype == want.dtype
        torch.testing.assert_close(got.cpu().resolve_conj().resolve_neg(), want.resolve_conj().resolve_neg())
    elif isinstance(want, (list, tuple)) and any(isinstance(w, torch.Tensor) for w in want):
        for g, w in zip(got, want, strict=True):
            assert_same(g, w)
    else:
        assert got == want


def gradient(z, f):
    leaf = z.clone().requires_grad_()
    f(leaf).abs().sum().backward()
    return leaf.grad


# Each takes z and w, which it may change, and gives what is compared.
BITS = {
    "read": lambda z, w: z.conj() + 1,
    "copied": lambda z, w: (z.conj().clone(), z.conj().contiguous(), z.conj().resolve_conj()),
    "of a view": lambda z, w: z.t()[1:, ::2].conj() * 2,
    "view of": lambda z, w: z.conj().t()[1:].reshape(-1) * 2,
    "twice": lambda z, w: z.conj().conj() * 2,
    "matrix products": lambda z, w: (z.conj() @ w.t(), z.mH @ w, torch.addmm(z[:, :3].conj(), z.conj(), w.mH), torch.bmm(z[None].conj(), w.mT[None])),
    "dot products": lambda z, w: (torch.vdot(z[0], w[0].conj()), torch.dot(z[0].conj(), w[0]), torch.linalg.vecdot(z, w.conj())),
    "lists": lambda z, w: (torch.stack([z.conj(), w]), torch.cat([w, z.conj()])),
    "in place": lambda z, w: (z.conj().mul_(2 + 1j), z),
    "in place on a view": lambda z, w: (z[1].conj().add_(w[0]).shape, z),
    "in place with a conjugate": lambda z, w: z.add_(w.conj()),
    "product in place": lambda z, w: (z[:, :3].conj().addmm_(w, z.mH).shape, z),
    "fill": lambda z, w: (z.conj()[0].fill_(1 + 2j).shape, z),
    "zero": lambda z, w: (z.conj()[0].zero_().shape, z),
    "copy into": lambda z, w: (z.conj().copy_(w).shape, z),
    "copy real into": lambda z, w: (z.conj().copy_(w.real).shape, z),
    "copy conjugate into conjugate": lambda z, w: (z.conj().copy_(w.conj()).shape, z),
    "assignment": lambda z, w: (z.conj().__setitem__((slice(None), 1), w[:, 0].conj()), z)[1],
    "out": lambda z, w: (torch.mul(z, w.conj(), out=w).shape, w),
    "out that is conjugate": lambda z, w: (torch.mul(z, 2, out=w.conj()).shape, w),
    "product into conjugate": lambda z, w: (torch.mm(z, z.mT, out=w[:, :3].conj()).shape, w),
    "imaginary part": lambda z, w: z.conj().imag + 1,
    "imaginary part, cut": lambda z, w: z.conj().imag[1:, 1].clone(),
    "imaginary part in place": lambda z, w: (z.conj().imag.mul_(3).shape, z),
    "imaginary part filled": lambda z, w: (z.conj().imag.fill_(3).shape, z),
    "imaginary part copied into": lambda z, w: (z.conj().imag.copy_(w.real).shape, z),
    "imaginary part into": lambda z, w: w.real.copy_(z.conj().imag),
    "negative of negative": lambda z, w: z.conj().conj().imag * 2,
    "numbers": lambda z, w: [z.conj()[1, 2].item(), z.conj().imag[1, 2].item(), z.conj().tolist(), complex(z.conj()[0, 0])],
    "compared": lambda z, w: [torch.equal(z.conj(), z), torch.equal(z.conj(), z.resolve_conj().conj()), torch.allclose(z.conj().imag, -z.imag)],
    "indexed": lambda z, w: (z.conj()[torch.tensor([2, 0], device=z.device)], z.conj()[0] * z.conj().imag[1]),
    "real views": lambda z, w: (torch.view_as_real(z) * 2, torch.view_as_complex(w.real.contiguous().view(6, 2)), torch.view_as_real(z).mul_(2).shape, z),
    "transforms": lambda z, w: (torch.fft.hfft(z), torch.fft.ihfft(w.real), torch.fft.ifft(z.conj())),
    "another type": lambda z, w: (z.conj().to(torch.complex128), z.conj().imag.to(torch.float64), z.conj().imag.bool()),
    "gradients": lambda z, w: (gradient(z, lambda x: x.conj() * w), gradient(z, lambda x: x.mH @ w), gradient(z, lambda x: x.conj().imag ** 2)),
    "on the CPU": lambda z, w: [z.conj().cpu().tolist(), z.conj().imag.cpu().tolist(), torch.empty(3, 4, dtype=z.dtype).conj().copy_(z).tolist(),
                                torch.empty(4, 3, dtype=torch.complex128).t().copy_(z.conj()).tolist()],
    "a norm of": lambda z, w: (z.conj().abs().sum(), torch.linalg.vector_norm(z.conj())),
}


@pytest.mark.parametrize("call", BITS.values(), ids=BITS.keys())
def test_lazy_bits(call):
    assert_same(call(Z.to("tpu"), W.to("tpu")), call(Z.clone(), W.clone()))


def test_lazy_bits_travel_from_the_cpu():
    for value in (Z.conj(), Z.conj().imag, Z.mH):
        moved = value.to("tpu")
        assert not moved.is_neg()
        assert_same(moved, value)
        assert_same(torch.zeros_like(moved).copy_(value), value)
    assert "1.0000" in repr(Z.conj().to("tpu"))


def test_lazy_bits_in_a_captured_step():
    state = Z.to("tpu")

    @flambeau.capture
    def step(x):
        state.conj().add_(x)
        return x.conj(), state.conj(), state.conj().imag

    want = Z.clone()
    for _ in range(3):
        got = step(W.to("tpu").conj())
        want.conj().add_(W.conj())
        assert_same(got, (W, want.conj(), want.conj().imag))
    assert_same(state, want)


C = 1 + 2j
SCALARS = {
    "full": lambda z, r: torch.full((2,), C, device=z.device),
    "full of a type": lambda z, r: torch.full((2,), C, dtype=torch.complex128, device=z.device),
    "full_like": lambda z, r: torch.full_like(z, C),
    "new_full": lambda z, r: r.new_full((2,), C, dtype=torch.complex64),
    "tensor": lambda z, r: torch.tensor([C, 2], device=z.device),
    "scalar_tensor": lambda z, r: torch.scalar_tensor(C, device=z.device, dtype=torch.complex64),
    "fill_": lambda z, r: z.fill_(1j),
    "fill_ with a tensor": lambda z, r: z.fill_(torch.tensor(1j, device=z.device)),
    "promotion": lambda z, r: (r * 1j, r + C, C - r, r / C, C / (r + 5)),
    "integers": lambda z, r: r.long() * C,
    "alpha": lambda z, r: (torch.add(z, z, alpha=1j), z.clone().sub_(z, alpha=C), torch.add(z, r, alpha=C)),
    "value": lambda z, r: (torch.addcmul(z, z, z, value=1j), torch.addcdiv(z, z, z + 9, value=C)),
    "alpha and beta": lambda z, r: torch.addmm(z[:, :3], z, z.mT, beta=1j, alpha=C),
    "masked_fill": lambda z, r: z.masked_fill(r > 0, C),
    "index_fill": lambda z, r: z.index_fill(0, torch.tensor([0, 2], device=z.device), C),
    "where": lambda z, r: (torch.where(r > 0, z, 1j), torch.where(r > 0, C, 0j)),
    "assignment": lambda z, r: (z.__setitem__(0, C), z)[1],
    "pow": lambda z, r: (z ** 2, z ** C, (r + 5) ** 1j, 2 ** z),
    "compared": lambda z, r: (z == C, z != z[0, 0].item(), r == 1j),
    "of the CPU": lambda z, r: (z + torch.tensor(C), r * torch.tensor(1j)),
    "lerp": lambda z, r: torch.lerp(z, z + 1, C),
    "arithmetic in place": lambda z, r: z.mul_(1j).add_(C).div_(C),
    "sum": lambda z, r: (z * 1j).sum(),
}


@pytest.mark.parametrize("call", SCALARS.values(), ids=SCALARS.keys())
def test_complex_scalars(call):
    assert_same(call(Z.to("tpu"), Z.real.clone().to("tpu")), call(Z.clone(), Z.real.clone()))


REFUSED = {
    "real in place": lambda r: r.mul_(1j),
    "filled": lambda r: r.fill_(C),
    "alpha": lambda r: torch.add(r, r, alpha=1j),
    "full": lambda r: torch.full((2,), C, dtype=torch.float32, device=r.device),
    "value": lambda r: torch.addcmul(r, r, r, value=C),
    "masked": lambda r: r.masked_fill(r > 0, C),
    "clamp": lambda r: r.clamp(C),
    "remainder": lambda r: torch.remainder(r, C),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_complex_scalars_that_the_cpu_refuses(call):
    r = Z.real.clone()
    with pytest.raises(Exception) as want:
        call(r.clone())
    with pytest.raises(type(want.value)):
        call(r.to("tpu"))
