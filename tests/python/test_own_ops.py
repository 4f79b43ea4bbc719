"""torch.ops.flambeau: values against PyTorch on the CPU, shapes of meta and fake tensors, gradients, tracing, profiling."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

ops = torch.ops.flambeau


def draw(*sizes, dtype=torch.float32, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attend(query, key, value, documents=None):
    """Causal attention of PyTorch's, of scaled queries."""
    mask = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device).tril()
    if documents is not None:
        mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0, enable_gqa=True)


# What is called, with what, and the same by PyTorch alone.
QKV = (draw(2, 4, 12, 8), draw(2, 2, 12, 8, seed=1), draw(2, 2, 12, 8, seed=2))
DOCUMENTS = (torch.arange(12) // 5).expand(2, 12).to(torch.int32).contiguous()
DIFFERENTIABLE = {
    "y of a linear layer": (lambda x, w: ops.dot_general(x, w, [-1], [-1]), (draw(2, 3, 4), draw(5, 4)), lambda x, w: x @ w.T),
    "dims in another order": (lambda x, y: ops.dot_general(x, y, [0, 2], [3, 1]), (draw(2, 3, 4), draw(6, 4, 5, 2)),
                              lambda x, y: torch.tensordot(x, y, ([0, 2], [3, 1]))),
    "nothing contracted": (lambda x, y: ops.dot_general(x, y, [], []), (draw(2), draw(3)), torch.outer),
    "to a number": (lambda x, y: ops.dot_general(x, y, [1, 0], [0, 1]), (draw(2, 3), draw(3, 2)), lambda x, y: (x * y.T).sum()),
    "barrier": (lambda x, y: ops.optimization_barrier([x, y]), (draw(3), draw(2, 4)), lambda x, y: [x.clone(), y.clone()]),
    "attention": (lambda q, k, v: ops.causal_attention(q, k, v, block_q=4, block_kv=4)[0], QKV, attend),
    "attention in documents": (lambda q, k, v: ops.causal_attention(q, k, v, DOCUMENTS.to(q.device))[0], QKV,
                               lambda q, k, v: attend(q, k, v, DOCUMENTS)),
}
OTHERS = {
    "widened": (lambda x, y: ops.dot_general(x, y, [1], [0], torch.float32), (draw(2, 3, dtype=torch.bfloat16), draw(3, 4, dtype=torch.bfloat16)),
                lambda x, y: x.float() @ y.float()),
    "stochastic_round": (lambda x, k: ops.stochastic_round(x, torch.tensor(3, device=x.device), k, 1), (draw(8, 5), torch.arange(8)),
                         lambda x, k: ops.stochastic_round(x, torch.tensor(3), k, 1)),
    "logsumexp": (lambda q, k, v: ops.causal_attention(q, k, v), QKV, lambda q, k, v: (attend(q, k, v), logsumexp(q, k))),
}
CALLS = {**DIFFERENTIABLE, **OTHERS}


def logsumexp(query, key):
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3)
    return scores.masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf).logsumexp(-1)


def moved(tensors, device, grad=False):
    return [t.detach().clone().to(device).requires_grad_(grad) for t in tensors]


def listed(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def close(got, want):
    assert len(got) == len(want)
    for g, w in zip(got, want):
        torch.testing.assert_close(g.detach().cpu(), w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call, tensors, same", CALLS.values(), ids=CALLS)
def test_values(call, tensors, same):
    got = listed(call(*moved(tensors, "tpu")))
    assert all(g.device.type == "tpu" for g in got)
    close(got, listed(same(*tensors)))


@pytest.mark.parametrize("call, tensors, same", CALLS.values(), ids=CALLS)
def test_shapes_without_values(call, tensors, same):
    shapes = [(r.shape, r.dtype, r.stride()) for r in listed(call(*moved(tensors, "tpu")))]
    assert [(r.shape, r.dtype, r.stride()) for r in listed(call(*moved(tensors, "meta")))] == shapes
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = listed(call(*(mode.from_tensor(t) for t in moved(tensors, "tpu"))))
    assert [(r.shape, r.dtype, r.stride()) for r in fakes] == shapes and all(r.device.type == "tpu" for r in fakes)


def gradients(call, tensors):
    results = listed(call(*tensors))
    weights = [draw(*r.shape, seed=9 + i).to(r.device) for i, r in enumerate(results)]
    return torch.autograd.grad(results, tensors, weights)


@pytest.mark.parametrize("call, tensors, same", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_gradients(call, tensors, same):
    close(gradients(call, moved(tensors, "tpu", grad=True)), gradients(same, moved(tensors, "cpu", grad=True)))


@pytest.mark.parametrize("name", ["y of a linear layer", "dims in another order"])
def test_gradients_of_gradients(name):
    call, tensors, same = DIFFERENTIABLE[name]

    def twice(f, device):
        inputs = moved(tensors, device, grad=True)
        first = torch.autograd.grad(f(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    close(twice(call, "tpu"), [g.cpu() for g in twice(same, "cpu")])


def test_gradients_of_narrow_operands_and_complex_numbers():
    x, y = draw(2, 3, dtype=torch.bfloat16), draw(3, 4, dtype=torch.bfloat16)
    got = gradients(lambda x, y: ops.dot_general(x, y, [1], [0], torch.float32), moved((x, y), "tpu", grad=True))
    assert [g.dtype for g in got] == [torch.bfloat16] * 2
    want = gradients(torch.matmul, moved((x.float(), y.float()), "cpu", grad=True))
    for g, w in zip(got, want):
        torch.testing.assert_close(g.cpu().float(), w, rtol=1.6e-2, atol=1e-2)
    z = [torch.complex(draw(2, 3), draw(2, 3, seed=1)), torch.complex(draw(3, 2, seed=2), draw(3, 2, seed=3))]

    def of_abs(f, device):
        inputs = moved(z, device, grad=True)
        return torch.autograd.grad(f(*inputs).abs().sum(), inputs)

    close(of_abs(lambda x, y: ops.dot_general(x, y, [1], [0]), "tpu"), of_abs(torch.matmul, "cpu"))


def test_what_has_no_gradient_says_so():
    x, keys = draw(4).to("tpu").requires_grad_(), torch.zeros(1, dtype=torch.long, device="tpu")
    with pytest.raises(RuntimeError, match="flambeau::stochastic_round is not implemented"):
        ops.stochastic_round(x, torch.tensor(1, device="tpu"), keys, 0).float().sum().backward()
    assert not ops.causal_attention(*moved(QKV, "tpu", grad=True))[1].requires_grad


def test_refusals():
    x = torch.ones(2, 3, device="tpu")
    with pytest.raises(RuntimeError, match=r"contracted dimensions of equal sizes.*flambeau::dot_general\(x: float32\[2, 3\]"):
        ops.dot_general(x, x, [0], [1])
    with pytest.raises(RuntimeError, match="contracted dimensions of equal sizes"):
        ops.dot_general(x.to("meta"), x.to("meta"), [0], [1])
    with pytest.raises(RuntimeError, match=r"a draw of 0 to 3.*flambeau::stochastic_round\("):
        ops.stochastic_round(torch.ones(2), torch.tensor(1), torch.zeros(1, dtype=torch.long), 4)


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("call, tensors, same", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_are_traced(call, tensors, same, mode):
    def step(*inputs):
        inputs = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(sum(r.square().sum() for r in listed(call(*inputs))), inputs)

    inputs = moved(tensors, "tpu")
    graph = make_fx(step, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)
    own = [n.target.name() for n in graph.graph.nodes if n.op == "call_function" and "flambeau" in str(n.target)]
    assert len(own) >= 2, "the op and its gradient"
    close(graph(*inputs), [g.cpu() for g in step(*inputs)])


def test_are_profiled():
    x = torch.ones(2, 3, device="tpu")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        ops.dot_general(x, x, [1], [1])
    (event,) = (e for e in profile.events() if e.name == "flambeau::dot_general")
    assert event.input_shapes[:2] == [[2, 3], [2, 3]]
