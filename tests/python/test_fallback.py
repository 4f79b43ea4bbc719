"""Ops that the device `tpu` lacks run on the CPU. References are PyTorch's on the CPU."""

import inspect
import warnings

import pytest
import torch

import flambeau

X = torch.linspace(-2, 3, 12).reshape(3, 4)
S = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])


@pytest.fixture(autouse=True)
def quiet():
    torch.tpu.set_fallback("silent")
    yield
    torch.tpu.set_fallback("warn")


@pytest.fixture(scope="module")
def library():
    """Ops of a user's own, with kernels for the CPU alone."""
    lib = torch.library.Library("fallback_test", "FRAGMENT")
    lib.define("add_to_all(Tensor(a!)[] xs, Tensor? y=None) -> ()")
    lib.define("gather(Tensor?[] xs, str mode, int[] dims) -> (Tensor[], int)")
    lib.define("shown(Tensor(a) x) -> Tensor(a)")
    lib.define("swap(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))")
    lib.define("triple(Tensor x) -> Tensor")

    def add_to_all(xs, y=None):
        for x in xs:
            x.add_(1 if y is None else y)

    def swap(x, y):
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)
        return y, x

    lib.impl("add_to_all", add_to_all, "CPU")
    lib.impl("gather", lambda xs, mode, dims: ([x * 2 for x in xs if x is not None], len(dims)), "CPU")
    lib.impl("shown", lambda x: x.view(-1), "CPU")
    lib.impl("swap", swap, "CPU")
    lib.impl("triple", lambda x: x * 3, "CPU")
    yield torch.ops.fallback_test


def there(value):
    if isinstance(value, torch.Tensor):
        return value.to("tpu")
    return type(value)(there(v) for v in value) if isinstance(value, (list, tuple)) else value


def assert_same(got, want):
    if isinstance(want, torch.Tensor):
        assert got.device.type == "tpu" and got.dtype == want.dtype
        torch.testing.assert_close(got.cpu(), want)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            assert_same(g, w)
    else:
        assert got == want


OPS = {
    "functional": (torch.special.bessel_j0, X),
    "two results": (torch.linalg.qr, X),
    "results by name": (torch.linalg.eigh, S),
    "shape by data": (lambda x: torch.unique(x.round(), return_counts=True), X),
    "rows by data": (lambda x: torch.unique_consecutive(x.long()[[0, 0, 1]], return_inverse=True, return_counts=True, dim=0), X),
    "integers": (lambda x: torch.gcd(x.long(), x.long() + 6), X),
    "list of tensors": (lambda x: torch.block_diag(x, x), X),
    "view of a view": (lambda x: torch.special.bessel_j0(x.t()[1:3, ::2]), X),
    "conjugate": (lambda x: torch.linalg.qr(torch.complex(x, x + 1).conj()), X),
    "wrapped number": (lambda x: torch.special.zeta(x.abs() + 2, 1.5), X),
    "in place": (lambda x: x.abs_().add_(1).igamma_(torch.full_like(x, 0.5)), X),
    "in place on a view": (lambda x: (x[1:].t().lgamma_().shape, x), X),
    "in place with itself": (lambda x: x.add_(4).igamma_(x), X),
    "out": (lambda x: torch.special.bessel_j0(x, out=torch.empty(0, device=x.device)), X),
    "out that is a view": (lambda x: (torch.special.bessel_j0(x[0], out=x.t()[:, 2]), x), X),
    "out that is the input": (lambda x: torch.special.bessel_j0(x, out=x), X),
    "two outs": (lambda x: torch.linalg.qr(x, out=(torch.empty(0, device=x.device), torch.empty(0, device=x.device))), X),
    "no elements": (lambda x: torch.special.bessel_j0(x[:0]), X),
    "no dimensions": (lambda x: torch.special.bessel_j0(x[0, 0]), X),
    "a number is the result": (lambda x: torch.allclose(x, torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[1], atol=1e-5), X),
}


@pytest.mark.parametrize("call, x", OPS.values(), ids=OPS.keys())
def test_equals_the_cpu(call, x):
    # An op that is asked for by result or in place gives the same objects as on the CPU.
    assert_same(call(there(x)), call(x.clone()))


def test_in_place_and_out_return_what_they_were_given():
    x, out = there(X), torch.empty(0, device="tpu")
    assert x.lgamma_() is x
    assert torch.special.bessel_j0(x, out=out) is out and out.shape == x.shape
    q, r = torch.empty(0, device="tpu"), torch.empty(0, device="tpu")
    got = torch.linalg.qr(there(X), out=(q, r))
    assert got[0] is q and got[1] is r


def test_schemas_of_every_kind(library):
    want, got = [X.clone(), S.clone()], there([X, S])
    library.add_to_all(want, S[0, 0])
    library.add_to_all(got, there(S)[0, 0])
    assert_same(got, want)
    library.add_to_all(want)
    library.add_to_all([got[0].t(), got[1]])  # through a view
    assert_same(got, want)
    results, count = library.gather([there(X), None, there(S)], "mode", [1, 2])
    assert_same(results, [X * 2, S * 2])
    assert count == 2
    x, y = there(X), there(X + 1)
    first, second = library.swap(x, y)
    assert first is y and second is x
    assert_same([x, y], [X + 1, X])


def test_tensors_over_one_another():
    def shift(x):
        torch.special.bessel_j0(x[:-1], out=x[1:])

    with pytest.raises(RuntimeError) as want:
        shift(X.clone())
    with pytest.raises(RuntimeError) as got:
        shift(there(X))
    assert str(want.value).splitlines()[0] in str(got.value)

    def halves(x):
        return torch.special.bessel_j0(x[0], out=x[1]), x  # one storage, no element twice

    assert_same(halves(there(X)), halves(X.clone()))
    with pytest.raises(RuntimeError, match="single memory location"):
        there(X)[:1].expand(3, 4).lgamma_()


@pytest.mark.parametrize("call, x", [
    (lambda x: torch.linalg.qr(x)[1].sum(), S),
    (torch.linalg.cholesky, S),
    (lambda x: torch.linalg.eigvalsh(x).prod(), S),
    (lambda x: torch.igammac(torch.full_like(x, 2), x), S),
    (lambda x: torch.lgamma(x.square() + 0.5), X),
], ids=["qr", "cholesky", "eigvalsh", "igammac", "lgamma"])
def test_gradients(call, x):
    gradients = []
    for leaf in (x.clone().requires_grad_(), there(x).requires_grad_()):
        (first,) = torch.autograd.grad(call(leaf).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        gradients.append((first.detach(), second))
    for want, got in zip(*gradients):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)  # second derivatives cancel digits


def test_random_numbers_follow_the_devices_generator():
    rate = torch.full((100,), 3.0, device="tpu")
    torch.manual_seed(5)
    first, second = torch.poisson(rate).cpu(), torch.poisson(rate).cpu()
    assert not torch.equal(first, second) and abs(first.mean() - 3) < 1
    torch.manual_seed(5)
    torch.rand(7)  # the CPU's generator is another one
    assert torch.equal(torch.poisson(rate).cpu(), first)
    own = [torch.poisson(rate, generator=torch.Generator("tpu").manual_seed(9)).cpu() for _ in range(2)]
    assert torch.equal(*own)


def test_one_warning_an_op_with_the_users_line(library):
    torch.tpu.set_fallback("warn")
    before = torch.tpu.fallbacks().get("fallback_test::triple", 0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        assert_same(library.triple(there(X)), X * 3)
        library.triple(there(X))
    assert torch.tpu.fallbacks()["fallback_test::triple"] == before + 2
    (warning,) = seen
    assert warning.filename == __file__ and warning.lineno == line
    assert f"fallback_test::triple runs on the CPU, between copies at {__file__}:{line}" in str(warning.message)


def refuse(mode):
    torch.tpu.set_fallback(mode)


REFUSED = {
    "error mode": (lambda x, ops: (refuse("error"), torch.special.bessel_j0(x)), NotImplementedError, r"special_bessel_j0.*set_fallback"),
    "a view": (lambda x, ops: ops.shown(x), NotImplementedError, "fallback_test::shown.*view"),
    "in a captured step": (lambda x, ops: flambeau.capture(lambda y: torch.special.bessel_j0(y))(x), NotImplementedError, r"special_bessel_j0.*captured"),
    "sparse": (lambda x, ops: x.to_sparse(), NotImplementedError, "layout"),
    "two devices": (lambda x, ops: torch.cdist(x, X), RuntimeError, "same device.*tpu:0 and cpu"),
    "out on the CPU": (lambda x, ops: torch.special.bessel_j0(x, out=torch.empty(0)), RuntimeError, "same device|device tpu"),
    "the CPU's own error": (lambda x, ops: torch.linalg.cholesky(x), RuntimeError, "must be batches of square matrices"),
    "the CPU's own error, later": (lambda x, ops: torch.linalg.cholesky(-x[:, :3]), torch.linalg.LinAlgError, "positive-definite"),
    "no such mode": (lambda x, ops: refuse("loud"), ValueError, "loud"),
}


@pytest.mark.parametrize("call, error, words", REFUSED.values(), ids=REFUSED.keys())
def test_refused(library, call, error, words):
    x = there(X)
    with pytest.raises(error, match=words):
        call(x, library)
    assert_same(x, X)
