"""`flambeau.capture`: a captured function does at every call what it does uncaptured. Reference values are PyTorch's on the CPU."""

import copy
import gc
import time
import weakref

import pytest
import torch

import flambeau
from flambeau.capture import Call
from stories import BATCHES, compare, flat, net, settles, step_of
from tensors import X, same, tpu

# ---- gradients ----------------------------------------------------------------------------------------------------------------


def accumulation(device, capture):
    """Gradients are made by one captured function, used and cleared by another."""
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    @capture
    def accumulate(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    @capture
    def update():
        optimizer.step()
        optimizer.zero_grad()

    for i in range(0, 18, 3):
        for k in range(3):
            yield accumulate(BATCHES[i + k].to(device))
        yield torch.cat([p.grad.flatten() for p in model.parameters()])
        update()
        assert all(p.grad is None for p in model.parameters())
        yield flat(model)


def test_gradient_accumulation_over_two_captured_functions():
    settles(compare(accumulation), after=19)


def gradients_outside(device, capture, set_to_none, keep):
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    backward = capture(lambda x: model(x).square().mean().backward())
    for i in range(7):
        backward(BATCHES[i].to(device))
        if keep:
            kept.append(model[0].weight.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        yield flat(model)
    yield from kept  # each call's own


@pytest.mark.parametrize("set_to_none", [True, False])
def test_optimizer_outside_of_the_captured_function(set_to_none):
    compare(gradients_outside, set_to_none, set_to_none)


def hidden_parameters(device, capture):
    """The model stands where it is not seen: its gradients cannot be put there by a replay."""
    model = net(device)
    hidden = {k: None for k in range(2_000)}
    hidden[7] = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = capture(lambda x: hidden[7](x).square().mean().backward())
    for i in range(6):
        backward(BATCHES[i].to(device))
        optimizer.step()
        optimizer.zero_grad()
        yield flat(model)


def test_gradients_of_parameters_that_are_not_seen():
    assert compare(hidden_parameters)[-1][0] == 6


def gradients_from_outside(device, capture):
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = capture(lambda: optimizer.step())
    for i in range(7):
        optimizer.zero_grad()
        model(BATCHES[i].to(device)).square().mean().backward()
        step()
        yield flat(model)


def test_captured_optimizer_step_alone():
    settles(compare(gradients_from_outside), after=4)


def gradients_of_arguments(device, capture):
    w = torch.arange(3.0, device=device)
    step = capture(lambda x: (x * w).sum().backward())
    for i in range(5):
        x = torch.ones(3, device=device, requires_grad=True)
        step(x)
        step(x)
        yield x.grad


def test_gradients_of_arguments():
    compare(gradients_of_arguments)


def an_argument():
    return torch.ones(3, device="tpu", requires_grad=True)


def with_a_hook():
    x = an_argument()
    x.register_hook(lambda g: g * 2)
    return x


NO_LEAVES = {"made of another": (lambda: an_argument() * 2, "argument 0 does not go on"), "hook": (with_a_hook, "hooks of argument 0")}


@pytest.mark.parametrize("replayed", [False, True], ids=["at once", "after replays"])
@pytest.mark.parametrize("make, words", NO_LEAVES.values(), ids=NO_LEAVES.keys())
def test_gradients_that_could_not_be_put_there(make, words, replayed):
    step = flambeau.capture(lambda x: x.sum().backward())
    for _ in range(3 if replayed else 0):
        step(an_argument())
    with pytest.raises(ValueError, match=words):
        step(make())
    x = an_argument()
    step(x)
    same(x.grad, torch.ones(3))


def test_an_argument_that_the_function_changes_itself_is_refused():
    """Uncaptured, the argument would change under the function's eyes; the program reads arguments as they were."""
    model = net("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, w):
        step_of(model, optimizer)(x)
        return w * 1

    for before in (0, 3):  # at the first call, and after replays
        captured = flambeau.capture(step)
        weight, x = model[0].weight, tpu(BATCHES[0])
        for _ in range(before):
            copy_of_weight = weight.detach().clone()
            same(captured(x, copy_of_weight), copy_of_weight.cpu())
        for argument in (weight, weight.detach(), weight[1]):
            with pytest.raises(ValueError, match="argument 1 of 'step' is also read from outside and changed"):
                captured(x, argument)
        assert all(p.grad is None or p.grad.cpu().isfinite().all() for p in model.parameters())  # as before
        captured(x, weight.detach().clone())
    both = flambeau.capture(lambda w: (w.square().sum() + model(tpu(BATCHES[0])).sum()).backward())
    with pytest.raises(ValueError, match="argument 0 of '<lambda>' is also read from outside and differentiated"):
        both(model[0].weight)
    reads = flambeau.capture(lambda w: (w * model[0].weight).detach())
    for _ in range(3):
        same(reads(model[0].weight.detach()), model[0].weight.detach().cpu().square())


# ---- arguments and results -----------------------------------------------------------------------------------------------------


def arguments(device, capture):
    step = capture(lambda x, scale=1.0, *, name="add": x * scale if name == "mul" else x + scale)
    x = X.to(device)
    for i in range(12):
        yield step(x, 2.0, name="mul")
        yield step(x, 2, name="add")
        yield step(x)
        yield step(x[:2] if i % 2 else x)  # a smaller last batch
        yield step(x.to(torch.float16), True)


def test_plain_arguments_and_shapes_select_a_recording():
    settles(compare(arguments), after=20)


class Trainer:
    def __init__(self, device):
        self.model, self.scale, self.global_step = net(device), 1.0, 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @flambeau.capture
    def captured(self, x):
        return self.plain(x)

    def plain(self, x):
        self.optimizer.zero_grad()
        loss = (self.model(x) * self.scale).square().mean()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss, "names": ["a", None]}


def test_methods():
    trainers = [Trainer("cpu"), Trainer("tpu"), Trainer("tpu")]
    for i in range(6):
        for trainer in trainers:
            trainer.global_step += 1  # read by nobody
            trainer.scale = 1.0 if i < 4 else 2.0
            step = trainer.plain if trainer.model[0].weight.device.type == "cpu" else trainer.captured
            result = step(BATCHES[i].to(trainer.model[0].weight.device))
            assert result["names"] == ["a", None]
    for trainer in trainers[1:]:
        torch.testing.assert_close(flat(trainer.model), flat(trainers[0].model))


def test_what_is_refused():
    x = tpu(X)
    double = flambeau.capture(lambda x: {"twice": x * 2}, name="double")
    same(double(x)["twice"], X * 2)
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="numpy ndarray"):
        double(numpy.ones(3))
    with pytest.raises(TypeError, match="plain tensors as arguments, got a Masked"):
        double(x.as_subclass(type("Masked", (torch.Tensor,), {})))
    with pytest.raises(TypeError, match="as results, got object"):
        flambeau.capture(lambda x: (x + 1, object()))(x)
    with pytest.raises(RuntimeError, match="read on the host"):
        flambeau.capture(lambda x: x * x.sum().item())(x)
    with pytest.raises(ValueError, match="writes to one of its inputs"):
        flambeau.capture(lambda x: x.add_(1))(x)

    def fails(x):
        raise KeyError("the user's own error")

    with pytest.raises(KeyError, match="own error"):
        flambeau.capture(fails)(x)
    same(x + 1, X + 1)


def test_functions_on_the_cpu_are_called():
    model = net("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = flambeau.capture(lambda: (optimizer.zero_grad(), model(BATCHES[0]).mean().backward(), optimizer.step())[0])
    before = flat(model)
    for _ in range(4):
        step()
        assert not torch.equal(flat(model), before)
        before = flat(model)


def test_captured_functions_call_each_other():
    inner = flambeau.capture(lambda x: x * 2, name="inner")
    outer = flambeau.capture(lambda x: inner(x) + 1, name="outer")
    for _ in range(4):
        same(outer(tpu(X)), X * 2 + 1)
        same(inner(tpu(X)), X * 2)


def test_recordings_keep_no_memory_of_the_device():
    model = net("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    step = flambeau.capture(step_of(model, optimizer))
    for x in BATCHES[:5]:
        step(tpu(x))
    used = torch.tpu.memory_allocated()
    for i in range(4):  # each time the recordings of before can never fit again
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for x in BATCHES[:4]:
            step(tpu(x))
    gc.collect()
    assert torch.tpu.memory_allocated() <= used
    gone = weakref.ref(model)
    del model, optimizer, step
    gc.collect()
    assert gone() is None


def test_comparing_is_cheap():
    """Beside what it spares, on whatever machine."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12))).to("tpu")
    plain = step_of(model, torch.optim.AdamW(model.parameters(), fused=True))
    step = flambeau.capture(plain)
    x = torch.ones(4, 2, device="tpu")
    for _ in range(4):
        step(x)
    recording, call = step._recordings[0], Call((x,), {})
    assert recording.accepted and recording.match(call)
    comparing, uncaptured = (min(seconds(f) for _ in range(10)) for f in (lambda: recording.match(call), lambda: plain(x)))
    assert comparing < 0.01 * uncaptured, f"{comparing * 1e6:.0f} us beside {uncaptured * 1e6:.0f} us"


def seconds(f):
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin
