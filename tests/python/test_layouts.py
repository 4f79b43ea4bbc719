"""Strides of results, memory formats and index tensors of the CPU: each as PyTorch's own on the CPU."""

import pytest
import torch
import torch.nn.functional as F

# ---- which strides an op gives ----------------------------------------------------------------------------------------------

LAYOUTS = {
    "transposed": lambda: torch.arange(12.0).reshape(4, 3).t(),
    "every second, transposed": lambda: torch.arange(48.0).reshape(6, 8)[::2, ::2].t(),
    "permuted": lambda: torch.arange(24.0).reshape(4, 2, 3).permute(1, 2, 0),
    "channels last": lambda: torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
}
RARE_LAYOUTS = {
    "row-major": lambda: torch.arange(12.0).reshape(3, 4),
    "expanded": lambda: torch.arange(4.0).expand(2, 3, 4),
    "one in the middle": lambda: torch.arange(8.0).reshape(4, 1, 2).permute(2, 1, 0),
    "one channel, channels last": lambda: torch.arange(40.0).reshape(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels last 3d": lambda: torch.arange(240.0).reshape(2, 3, 2, 4, 5).contiguous(memory_format=torch.channels_last_3d),
}


def first(x):
    return torch.zeros(1, dtype=torch.long, device=x.device)


def pair(x):
    return torch.tensor([0, 1], device=x.device)


def row_major(x):
    return x.clone(memory_format=torch.contiguous_format)


OPS = {
    "x * 2": lambda x: x * 2,
    "x + x": lambda x: x + x,
    "x + row-major": lambda x: x + row_major(x),
    "row-major + x": lambda x: row_major(x) + x,
    "x + part": lambda x: x + x[:1],
    "part + x": lambda x: x[:1] + x,
    "x + vector": lambda x: x + row_major(x.flatten()[: x.shape[-1]]),
    "x > 1": lambda x: x > 1,
    "pow": lambda x: x**2,
    "number ** x": lambda x: 2**x,
    "clamp": lambda x: x.clamp(1, 5),
    "exp": lambda x: (x / 100).exp(),
    "where": lambda x: torch.where(x > 3, x, row_major(x)),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "to": lambda x: x.to(torch.float64),
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x - 2, first(x).float()),
    "nan_to_num": torch.nan_to_num,
    "mse_loss": lambda x: F.mse_loss(x, x + 1, reduction="none"),
    "floor_divide": lambda x: x // 2,
    "masked_fill": lambda x: x.masked_fill(x > 3, 1.0),
    "dropout of nothing": lambda x: torch.native_dropout(x, 0.0, True),
    "clone": torch.clone,
    "clone to row-major": row_major,
    "contiguous": lambda x: x.contiguous(),
    "zeros_like": torch.zeros_like,
    "full_like": lambda x: torch.full_like(x, 2.0),
    "full_like row-major": lambda x: torch.full_like(x, 2.0, memory_format=torch.contiguous_format),
    "ones_like float64": lambda x: torch.ones_like(x, dtype=torch.float64),
    "new_zeros": lambda x: x.new_zeros(x.shape),
    "sum": lambda x: x.sum(0),
    "sum keepdim": lambda x: x.sum(0, keepdim=True),
    "amax": lambda x: x.amax(-1),
    "max": lambda x: x.max(0),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 1),
    "cat": lambda x: torch.cat([x, x], 1),
    "cat of two formats": lambda x: torch.cat([row_major(x), x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "pad": lambda x: F.pad(x, (1, 1)),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "repeat": lambda x: x.repeat(*([2] * x.dim())),
    "tril": lambda x: x.tril(),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(1, 0),
    "gather": lambda x: x.gather(0, first(x).expand(x.shape)),
    "scatter_add": lambda x: x.scatter_add(0, first(x).expand(x.shape), x),
    "index_select": lambda x: x.index_select(0, pair(x)),
    "index_add": lambda x: x.index_add(0, first(x), x[:1]),
    "index_fill": lambda x: x.index_fill(0, first(x), 1.0),
    "index_put": lambda x: x.index_put((first(x),), x[:1]),
    "x[i]": lambda x: x[pair(x)],
    "x[i] of a matrix": lambda x: x[pair(x)[None]],
    "x[..., i]": lambda x: x[..., pair(x)],
    "x[i, :, i]": lambda x: x[pair(x), ..., pair(x)],
    "embedding": lambda x: F.embedding(pair(x), x.flatten(1)),
    "diff": lambda x: x.diff(dim=-1),
    "windows": lambda x: x.unfold(-1, 2, 1).clone(),
    "glu": lambda x: F.glu(torch.cat([x, x], -1)),
    "result of an in-place op": lambda x: x.clone().mul_(2),
    "out of another shape": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "out of another order": lambda x: torch.add(x, x, out=torch.empty(x.shape[::-1], device=x.device).permute(*range(x.dim() - 1, -1, -1))),
    "gradient": lambda x: torch.autograd.grad((lambda y: (y.sin() * y).sum())(z := x.detach().requires_grad_()), z),
    "the issue's line": lambda x: (x.transpose(0, 1) * 2).transpose(0, 1),
}


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


OF_EACH_RULE = ("x * 2", "x + x", "row-major + x", "exp", "clone", "sum", "cat", "sort", "x[i]", "gradient", "the issue's line")


@pytest.mark.parametrize("op", OPS)
def test_strides(op):
    layouts = LAYOUTS | RARE_LAYOUTS if op in OF_EACH_RULE else LAYOUTS
    for name, make in layouts.items():
        x = make()
        there = x.to("tpu")
        assert there.stride() == torch.empty_like(x).stride()
        if "every second" in name or name == "expanded":
            there = torch.empty_strided([max(s * d for s, d in zip(x.shape, x.stride(), strict=True))], [1], device="tpu")
            there = there.as_strided(x.shape, x.stride())
            there.copy_(x) if name != "expanded" else there.as_strided(x.shape[-1:], (1,)).copy_(x[0, 0])
        for got, want in zip(tensors(OPS[op](there)), tensors(OPS[op](x)), strict=True):
            assert got.stride() == want.stride(), (name, got.shape)
            torch.testing.assert_close(got.cpu(), want, msg=lambda text: f"{name}: {text}")


def test_a_result_can_be_viewed_as_on_the_cpu():
    x = torch.arange(12.0, device="tpu").reshape(3, 4)
    assert ((x.t() * 2).t().view(-1)).tolist() == [2.0 * i for i in range(12)]
    image = x.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last)
    assert (image + 1).permute(0, 2, 3, 1).view(-1).tolist() == (image.cpu() + 1).permute(0, 2, 3, 1).reshape(-1).tolist()
    y = x.t() * 2
    y[0].fill_(-1)  # through the permuted base
    y.t()[:, 1] += 10
    assert torch.equal(y.cpu(), torch.tensor([[-1.0] * 3, [12.0, 20.0, 28.0], [4.0, 12.0, 20.0], [6.0, 14.0, 22.0]]))


def test_memory_formats():
    x = torch.randn(2, 3, 4, 5)
    for make in (lambda x: x.to(memory_format=torch.channels_last), lambda x: x.contiguous(memory_format=torch.channels_last),
                 lambda x: x.clone(memory_format=torch.channels_last), lambda x: torch.empty_like(x, memory_format=torch.channels_last).copy_(x),
                 lambda x: torch.empty(x.shape, device=x.device, memory_format=torch.channels_last).copy_(x),
                 lambda x: torch.empty(0, device=x.device).resize_(x.shape, memory_format=torch.channels_last).copy_(x)):
        got, want = make(x.to("tpu")), make(x)
        assert got.stride() == want.stride() and torch.equal(got.cpu(), want)
        assert got.is_contiguous(memory_format=torch.channels_last) and not got.is_contiguous()
        assert got.contiguous().is_contiguous() and got.contiguous(memory_format=torch.channels_last) is got
    module = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.ReLU()).to("tpu", memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="rank 4"):
        torch.randn(3, 4, device="tpu").to(memory_format=torch.channels_last)
    assert module(x.to("tpu")).shape == x.shape


def test_a_captured_step_keeps_strides():
    import flambeau

    step = flambeau.capture(lambda x: (x.t() * 2 + 1).t())
    x = torch.randn(3, 4)
    for _ in range(3):
        got = step(x.to("tpu"))
        assert torch.equal(got.cpu(), x * 2 + 1) and got.t().stride() == (1, 4)


# ---- index tensors of the CPU -------------------------------------------------------------------------------------------------

X = torch.arange(60.0).reshape(3, 4, 5)
I, J = torch.tensor([2, 0, -1]), torch.tensor([[1], [3], [0]])
MASK = X[:, :, 0] % 3 == 0
INDICES = {
    "one": (I,),
    "two": (I, I),
    "broadcast": (I, J),
    "after a slice": (slice(None), I),
    "apart": (I, slice(None), I),
    "int32": (I.int(),),
    "scalar": (torch.tensor(1),),
    "none": (None, I),
    "empty": (torch.zeros(0, dtype=torch.long),),
    "mask": (MASK,),
    "mask of a dimension": (slice(None), torch.tensor([True, False, True, False])),
    "mask and index": (torch.tensor([True, False, True]), torch.tensor([1, 2])),
    "ellipsis": (..., I),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_cpu_indices(index):
    there = X.to("tpu")
    got = there[index]
    assert got.device.type == "tpu" and torch.equal(got.cpu(), X[index])
    for value in (7.0, torch.tensor(7.0), X[index] * 2):
        want, got = X.clone(), there.clone()
        want[index] = value
        got[index] = value.to("tpu") if isinstance(value, torch.Tensor) and value.dim() else value
        assert torch.equal(got.cpu(), want)


def test_cpu_and_tpu_indices_together():
    there = X.to("tpu")
    assert torch.equal(there[I, J.to("tpu")].cpu(), X[I, J]) and torch.equal(there[I.to("tpu"), :, I].cpu(), X[I, :, I])
    got, want = there.clone(), X.clone()
    got.index_put_((I, J.to("tpu")), torch.tensor(1.5, device="tpu"), accumulate=True)
    want.index_put_((I, J), torch.tensor(1.5), accumulate=True)
    assert torch.equal(got.cpu(), want)
    x, y = X.clone().requires_grad_(), X.to("tpu").requires_grad_()
    (x[I, J] ** 2).sum().backward()
    (y[I, J] ** 2).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


TWO_DEVICES = "at least two devices, tpu:0 and cpu!"
DEVICES_MIXED = {
    "a tpu index of a CPU tensor": (lambda x, i: X[i.to("tpu")], RuntimeError, TWO_DEVICES),
    "a CPU value": (lambda x, i: x.index_put_((i,), X[i]), RuntimeError, TWO_DEVICES),
    "gather": (lambda x, i: x.gather(0, i[:, None, None]), RuntimeError, TWO_DEVICES),
    "index_select": (lambda x, i: x.index_select(0, i), RuntimeError, TWO_DEVICES),
    "embedding": (lambda x, i: F.embedding(i, x[0]), RuntimeError, TWO_DEVICES),
    "scatter": (lambda x, i: x.scatter(0, i[:, None, None], 1.0), RuntimeError, TWO_DEVICES),
    "out of range": (lambda x, i: x[i + 5].sum().item(), IndexError, "out of bounds for dimension 0 with size 3"),
    "mask of another size": (lambda x, i: x[torch.ones(2, dtype=torch.bool)], IndexError, "shape of the mask .2. at index 0 does not match"),
    "too many": (lambda x, i: x[i, i, i, i], IndexError, "too many indices for tensor of dimension 3"),
    "float": (lambda x, i: x[i.float()], IndexError, "must be long, int, byte or bool"),
}


@pytest.mark.parametrize("call, error, words", DEVICES_MIXED.values(), ids=DEVICES_MIXED.keys())
def test_other_mixtures_are_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(X.to("tpu"), I.abs())


# ---- parts --------------------------------------------------------------------------------------------------------------------

PARTS = {
    "tensor_split": lambda x: x.tensor_split(2),
    "tensor_split at": lambda x: x.tensor_split((1, 3), 1),
    "tensor_split by a tensor": lambda x: x.tensor_split(torch.tensor([1, 3]), 1),
    "tensor_split by a number in a tensor": lambda x: torch.tensor_split(x, torch.tensor(2), 1),
    "split": lambda x: x.split(2, 1),
    "split with sizes": lambda x: x.split([1, 3], 1),
    "chunk": lambda x: x.chunk(3, -1),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1),
    "hsplit": lambda x: x.hsplit(2),
    "dsplit": lambda x: x.dsplit([1, 4]),
    "unbind": lambda x: x.unbind(1),
    "unflatten": lambda x: [x.unflatten(1, (2, -1))],
    "swapaxes": lambda x: [x.swapaxes(0, 1)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())
def test_parts_are_views(parts):
    x, there = X.clone(), X.to("tpu")
    for want, got in zip(parts(x), parts(there), strict=True):
        assert (got.shape, got.stride(), got.storage_offset()) == (want.shape, want.stride(), want.storage_offset())
        want.mul_(2)
        got.mul_(2)
    assert torch.equal(there.cpu(), x)


def test_split_points_live_on_the_cpu():
    with pytest.raises(RuntimeError, match="to be on cpu"):
        X.to("tpu").tensor_split(torch.tensor([1, 2], device="tpu"))
