"""torch.autocast("tpu") and torch.amp.GradScaler("tpu"). The lists are those that PyTorch publishes, the values those of the CPU."""

import pathlib
import re

import pytest
import torch
import torch.nn.functional as F

HALF, BF16, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64

# ---- which op is under which policy -----------------------------------------------------------------------------------------


def published(macro):
    """The ops of a list of ATen/autocast_mode.h."""
    header = (pathlib.Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    body = re.search(rf"#define {macro}\(_\)(.*?[^\\])\n\n", header, re.S).group(1)
    if "DIFFERENT" in macro:
        return re.findall(r'"([\w.]+)"', body)
    return [".".join(filter(None, found)) for found in re.findall(r"_\((\w+)(?:, (\w+))?\)", body)]


LISTS = ["AT_FORALL_LOWER_PRECISION_FP", "AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE", "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
         "AT_FORALL_PROMOTE"]


@pytest.mark.parametrize("macro", LISTS)
def test_every_listed_op_has_a_policy(macro):
    ops = published(macro)
    assert len(ops) >= 2
    missing = [op for op in ops if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", "AutocastPrivateUse1")]
    assert not missing


def t(*sizes, dtype=FLOAT):
    return torch.randn(*sizes).to(dtype).to("tpu")


LOW = "the region's"
POLICIES = {
    "mm": (lambda low: t(3, 4) @ t(4, 2), LOW),
    "bmm": (lambda low: torch.bmm(t(2, 3, 4), t(2, 4, 2)), LOW),
    "linear": (lambda low: F.linear(t(3, 4), t(5, 4), t(5)), LOW),
    "einsum": (lambda low: torch.einsum("ij,jk->ik", t(3, 4), t(4, 2)), LOW),
    "addmm": (lambda low: torch.addmm(t(2), t(3, 4), t(4, 2)), LOW),
    "attention": (lambda low: F.scaled_dot_product_attention(t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)), LOW),
    "float64 is never cast": (lambda low: t(3, 4, dtype=DOUBLE) @ t(4, 2, dtype=DOUBLE), DOUBLE),
    "integers are never cast": (lambda low: torch.ones(3, device="tpu", dtype=torch.long).cumsum(0), torch.long),
    "exp": (lambda low: t(3, dtype=HALF).exp(), FLOAT),
    "pow": (lambda low: t(3, dtype=BF16) ** 2, FLOAT),
    "layer_norm": (lambda low: F.layer_norm(t(3, 4, dtype=HALF), (4,)), FLOAT),
    "mse_loss": (lambda low: F.mse_loss(t(3, dtype=BF16), t(3)), FLOAT),
    "cross_entropy": (lambda low: F.cross_entropy(t(3, 4, dtype=BF16), torch.zeros(3, dtype=torch.long, device="tpu")), FLOAT),
    "softmax": (lambda low: t(3, 4, dtype=HALF).softmax(-1), FLOAT),
    "softmax with a dtype": (lambda low: t(3, 4, dtype=HALF).softmax(-1, dtype=HALF), HALF),
    "sum": (lambda low: t(3, 4, dtype=HALF).sum(), FLOAT),
    "cumsum": (lambda low: t(3, 4, dtype=HALF).cumsum(0), FLOAT),
    "norm": (lambda low: t(3, 4, dtype=HALF).norm(), FLOAT),
    "norm of a dimension": (lambda low: t(3, 4, dtype=HALF).norm(dim=1), FLOAT),
    "promote, both low": (lambda low: torch.addcmul(*(t(3, dtype=low) for _ in range(3))), LOW),
    "promote to the widest": (lambda low: torch.addcmul(t(3, dtype=low), t(3), t(3, dtype=low)), FLOAT),
    "not listed": (lambda low: t(3, dtype=HALF) + t(3, dtype=HALF), HALF),
}


@pytest.mark.parametrize("low", [BF16, HALF], ids=["bfloat16", "float16"])
def test_result_dtypes(low):
    with torch.autocast("tpu", dtype=low):
        got = {name: call(low).dtype for name, (call, _) in POLICIES.items()}
    assert got == {name: low if want is LOW else want for name, (_, want) in POLICIES.items()}


def test_binary_cross_entropy_is_refused_as_cuda_does():
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(t(3).sigmoid(), t(3).sigmoid())


# ---- regions ----------------------------------------------------------------------------------------------------------------


def test_regions_nest_and_end():
    x = t(3, 3)
    assert torch.get_autocast_dtype("tpu") is BF16 and not torch.is_autocast_enabled("tpu")
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu") and not torch.is_autocast_enabled("cpu")
        low = x @ x
        with torch.autocast("tpu", enabled=False):
            assert not torch.is_autocast_enabled("tpu") and (x @ x).dtype is FLOAT
            with pytest.raises(RuntimeError, match="dtype"):
                low @ x
        with torch.autocast("tpu", dtype=HALF):
            assert (low @ x).dtype is HALF
        assert low.dtype is BF16 and (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is FLOAT
    assert (x @ x).dtype is FLOAT and torch.get_autocast_dtype("tpu") is BF16
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("tpu", dtype=DOUBLE):
        assert (x @ x).dtype is FLOAT


@pytest.mark.parametrize("cache, casts", [(True, 1), (False, 3)])
def test_a_parameter_is_cast_once_a_region(cache, casts):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            Count.seen += op is torch.ops.aten._to_copy.default
            return op(*args, **(kwargs or {}))

    weight, x = t(3, 3).requires_grad_(), t(3, 3, dtype=BF16)
    with Count(), torch.autocast("tpu", cache_enabled=cache):
        y = sum((x @ weight).float().sum() for _ in range(3))
    Count.seen -= 3  # .float()
    y.backward()
    assert Count.seen == casts and weight.grad.dtype is FLOAT
    torch.testing.assert_close(weight.grad.cpu(), 3 * x.float().cpu().sum(0)[:, None].expand(3, 3), rtol=2e-2, atol=2e-2)


def test_custom_functions():
    seen = []

    class Half(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=HALF)
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("tpu")))
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, grad):
            seen.append((grad.dtype, torch.is_autocast_enabled("tpu")))
            return grad * 2

    x = t(3).requires_grad_()
    with torch.autocast("tpu"):
        y = Half.apply(x)
    y.sum().backward()
    assert seen == [(HALF, False), (HALF, False)] and x.grad.tolist() == [2, 2, 2]


# ---- training ---------------------------------------------------------------------------------------------------------------


def train(device, optimizer_of, low, scaler=None, steps=8, overflow_at=()):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
    optimizer = optimizer_of(net.parameters())
    scales, losses = [], []
    for i in range(steps):
        x, y = torch.randn(32, 8).to(device), torch.randint(4, (32,)).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=low, enabled=low is not None):
            loss = F.cross_entropy(net(x), y)
        losses.append(loss.item())
        if scaler is None:
            loss.backward()
            optimizer.step()
            continue
        scaler.scale(loss).backward()
        if i in overflow_at:
            net[0].weight.grad[0, 0] = float("inf" if i % 2 else "nan")
        if i % 3 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return losses, scales, {name: p.detach().cpu() for name, p in net.named_parameters()}, scaler and scaler.state_dict()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


def test_training_in_bfloat16_follows_the_cpu():
    want, got = (train(device, OPTIMIZERS["SGD"], BF16)[0] for device in ("cpu", "tpu"))
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_scaled_loss_trains_as_on_the_cpu_and_skips_overflows(make):
    runs = {}
    for device in ("cpu", "tpu"):
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        runs[device] = train(device, make, None, scaler, overflow_at=(2, 5))
    (want_losses, want_scales, want, want_state), (losses, scales, got, state) = runs["cpu"], runs["tpu"]
    assert scales == want_scales and state == want_state and min(scales) < max(scales)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(want_losses), rtol=1e-4, atol=1e-5)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)


def test_a_scaler_goes_on_from_its_state():
    first = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=3)
    assert train("tpu", OPTIMIZERS["SGD"], HALF, first, steps=4)[1] == [8, 8, 16, 16]
    second = torch.amp.GradScaler("tpu")
    second.load_state_dict(first.state_dict())
    assert train("tpu", OPTIMIZERS["SGD"], HALF, second, steps=3)[1] == [16, 32, 32]
    disabled = torch.amp.GradScaler("tpu", enabled=False)
    assert disabled.scale(t(1)).dtype is FLOAT and disabled.state_dict() == {}


def test_unscaling_refuses_float16_gradients():
    weight = t(3, dtype=HALF).requires_grad_()
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("tpu")
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(optimizer)
