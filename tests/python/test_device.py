"""The device `tpu` as a Python user meets it. Reference values are PyTorch's on the CPU."""

import subprocess
import sys

import pytest
import torch

from conftest import pythons
from tensors import X, Y, same, tpu


def test_first_lines_of_a_new_user(root):
    code = ('import torch; x = torch.randn(3, 4, device="tpu", requires_grad=True); (x @ x.T).sum().backward(); print(x.grad); '
            "print(torch.tpu.is_available(), torch.tpu.device_count())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "device='tpu:0'" in done.stdout and "True 1" in done.stdout


def test_processes_end_well_after_a_backward():
    code = 'import torch; torch.ones(3, device="tpu", requires_grad=True).sum().backward()'
    assert pythons(*[(code, {})] * 3) == [(0, "", "")] * 3


def test_a_forked_child_is_told_and_ends_well():
    code = """
import os, torch
x = torch.ones(3, device="tpu")
child = os.fork()
if child == 0:
    assert torch.tpu._is_in_bad_fork()
    try:
        x + 1
    except RuntimeError as error:
        assert "spawn" in str(error)
        del x
        os._exit(7)  # as multiprocessing's children end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print((x + 1).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "6.0\n"), done.stderr


# ---- the forms of an op: functional, in place, out, on views ------------------------------------------------------------

FORMS = [
    ("add", (Y,), {"alpha": 2.5}),
    ("add", (3,), {}),
    ("sub", (Y[0],), {}),
    ("mul", (1.5,), {}),
    ("div", (Y,), {}),
    ("div", (Y,), {"rounding_mode": "floor"}),
    ("pow", (2,), {}),
    ("clamp", (-1, 1.5), {}),
    ("lerp", (Y, 0.3), {}),
    ("addcmul", (Y, Y), {"value": 0.5}),
    ("masked_fill", (X > 0, 7.0), {}),
    ("exp", (), {}),
    ("tanh", (), {}),
    ("sigmoid", (), {}),
    ("abs", (), {}),
    ("neg", (), {}),
    ("relu", (), {}),
    ("tril", (), {}),
    ("index_fill", (0, torch.tensor([0, 2]), 9.0), {}),
    ("index_add", (0, torch.tensor([0, 2]), Y[:2]), {}),
    ("scatter_add", (1, torch.tensor([[0, 1], [2, 3], [1, 1]]), Y[:, :2].contiguous()), {}),
    ("fill", (4.0,), {}),
    ("zero", (), {}),
]


@pytest.mark.parametrize("name, arguments, options", FORMS, ids=[f"{f[0]}-{i}" for i, f in enumerate(FORMS)])
def test_forms(name, arguments, options):
    there = [tpu(a) for a in arguments]
    functional = getattr(torch, name, None)
    if functional and name not in ("fill", "zero"):
        want = functional(X, *arguments, **options)
        same(functional(tpu(X), *there, **options), want)
        if name not in ("masked_fill", "index_fill", "relu"):
            out = torch.empty(0, device="tpu", dtype=want.dtype)
            functional(tpu(X), *there, **options, out=out)
            same(out, want)
    want, got = X.clone(), tpu(X)
    assert getattr(got, name + "_")(*there, **options) is got
    getattr(want, name + "_")(*arguments, **options)
    same(got, want)
    # In place on a transposed view of a larger tensor: only what the view shows changes.
    want = torch.zeros(6, 5).index_put((torch.arange(4)[:, None] + 1, torch.arange(3)), X.t().contiguous())
    got = tpu(want)
    getattr(want[1:5, :3].t(), name + "_")(*arguments, **options)
    getattr(got[1:5, :3].t(), name + "_")(*there, **options)
    same(got, want)


VIEWS = {
    "transpose": lambda x: x.t(),
    "select": lambda x: x[1],
    "step": lambda x: x[:, ::2],
    "narrow of transposed": lambda x: x.t()[1:3],
    "diagonal": lambda x: x.diagonal(),
    "windows": lambda x: x.reshape(-1).unfold(0, 4, 2),
    "expand": lambda x: x[:, :1].expand(3, 4),
    "reinterpreted": lambda x: x.view(torch.int32),
    "halved": lambda x: x.view(torch.bfloat16),
    "as_strided": lambda x: x.as_strided((2, 3), (5, 1), 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_read(view):
    same(view(tpu(X)).clone(), view(X).clone())


@pytest.mark.parametrize("name", ["transpose", "select", "step", "narrow of transposed", "diagonal", "reinterpreted", "as_strided"])
def test_views_write(name):
    want, got = X.clone(), tpu(X)
    VIEWS[name](want).fill_(1)
    VIEWS[name](got).fill_(1)
    same(got, want)


# ---- what PyTorch refuses, and what is not there --------------------------------------------------------------------------

REFUSED = {
    "overlapping write": (lambda x: x[:1].expand(3, 4).add_(1), RuntimeError, "more than one element of the written-to tensor"),
    "shape in place": (lambda x: x[0].add_(x), RuntimeError, "doesn't match the broadcast shape"),
    "dtype in place": (lambda x: x.int().add_(1.5), RuntimeError, "can't be cast"),
    "two devices": (lambda x: x + torch.ones(3, 4), RuntimeError, "same device"),
    "shapes": (lambda x: x + x.t(), RuntimeError, "match"),
    "missing dtype": (lambda x: x.to(torch.complex32), NotImplementedError, "ComplexHalf"),
    "pinned": (lambda x: torch.empty(3, device="tpu", pin_memory=True), RuntimeError, "pinned"),
    "foreign generator": (lambda x: x.normal_(generator=torch.Generator("cpu")), RuntimeError, "generator"),
}


@pytest.mark.parametrize("call, error, words", REFUSED.values(), ids=REFUSED.keys())
def test_refused(call, error, words):
    x = tpu(X)
    with pytest.raises(error, match=words):
        call(x)
    same(x, X)


def test_index_out_of_range_is_raised_at_the_next_wait_or_at_once_in_debug_mode():
    table, index = tpu(X), tpu(torch.tensor([0, 5]))
    table.index_select(0, index)
    with pytest.raises(IndexError, match="index out of range in self"):
        torch.tpu.synchronize()
    with torch.tpu.eager_mode("debug"):
        with pytest.raises(IndexError, match="index out of range in self"):
            torch.nn.functional.embedding(index, table)
    torch.tpu.synchronize()
    with pytest.raises(NotImplementedError, match="defer_and_fuse"):
        torch.tpu.eager_mode("defer_and_fuse")


# ---- random numbers, memory -------------------------------------------------------------------------------------------------


def test_seeds_and_states_repeat():
    torch.manual_seed(3)
    first = torch.randn(100, device="tpu").cpu()
    state = torch.tpu.get_rng_state()
    second = torch.rand(100, device="tpu").cpu()
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="tpu").cpu(), second)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(100, device="tpu").cpu(), first)
    own = torch.Generator("tpu").manual_seed(3)
    assert torch.equal(torch.randn(100, device="tpu", generator=own).cpu(), first)


def test_memory_is_counted_and_given_back():
    before = torch.tpu.memory_allocated()
    x = torch.zeros(1000, 1000, device="tpu")
    assert torch.tpu.memory_allocated() == before + 4_000_000
    assert torch.tpu.max_memory_allocated() >= before + 4_000_000
    del x
    assert torch.tpu.memory_allocated() == before


def test_warm_ops_compile_nothing():
    from flambeau import _C

    x = tpu(X)
    for value in (0.1, 0.2):  # a number that changes is an input of the program
        x.add(value).mul(value)
    compiled = _C.counters()["programs_compiled"]
    for value in (0.3, 0.4, 0.5):
        x.add(value).mul(value)
    assert _C.counters()["programs_compiled"] == compiled


def test_a_schedule_compiles_nothing():
    from flambeau import _C

    parameter = torch.nn.Parameter(tpu(X))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    compiled = []
    for step in range(4):
        parameter.grad = tpu(Y)
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 2)
        optimizer.step()
        compiled.append(_C.counters()["programs_compiled"])
    assert compiled[1] == compiled[3]


# ---- modules, optimizers --------------------------------------------------------------------------------------------------------


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def train(device, make_optimizer, steps=5):
    net = model().to(device)
    optimizer = make_optimizer(net.parameters())
    torch.manual_seed(1)
    batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(steps)]

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False)
        optimizer.step()
        return loss

    return [step(x.to(device), y.to(device)).item() for x, y in batches], net.state_dict()


OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_training_equals_the_cpu(make):
    (want, want_state), (got, got_state) = train("cpu", make), train("tpu", make)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=1e-6)
    for name, value in want_state.items():
        torch.testing.assert_close(got_state[name].cpu(), value, rtol=1e-4, atol=1e-5)


def test_tensors_are_shown_and_compared():
    x = tpu(X)
    assert "device='tpu:0'" in repr(x)
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1) and x.tolist() == X.tolist()
