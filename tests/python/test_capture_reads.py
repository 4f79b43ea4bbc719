"""What a captured function reads of Python: a change makes a new recording, so that each call does what the function does uncaptured."""

import contextvars
import itertools
import random
import threading
import types

import pytest
import torch

import flambeau
from stories import compare, story_of
from tensors import X, same

SCALE = 1.0
TABLE = {"scale": 1.0, "list": [1.0, 2.0]}


class Config:
    scale = 1.0
    limit = 5

    def __init__(self):
        self.offset = 0.0

    @property
    def total(self):
        return self.scale + self.offset


def add_default(x, y=1.0, *, z=2.0):
    return x + y + z


def closure(device):
    x, factor = X.to(device), 1.0

    def change(value):
        nonlocal factor
        factor = value

    return (lambda: x * factor), {9: lambda: change(2.0), 11: lambda: change(1.0)}


def global_name(device):
    x = X.to(device)

    def change(value):
        global SCALE
        SCALE = value

    return (lambda: helper(x)), {1: lambda: change(1.0), 5: lambda: change(3.0)}


def helper(x):  # reached through a function
    return x * SCALE


def tables(device):
    x = X.to(device)

    def reset():
        TABLE["scale"], TABLE["list"] = 1.0, [1.0, 2.0]

    return (lambda: x * TABLE["scale"] + sum(TABLE["list"])), {
        1: reset, 4: lambda: TABLE.update(scale=2.0), 7: lambda: TABLE["list"].append(4.0), 10: lambda: TABLE.update(scale=1)}


def attributes(device):
    x, config = X.to(device), Config()
    x_of = types.SimpleNamespace(x=x)

    def reset():
        Config.scale = 1.0

    return (lambda: x_of.x * config.total + config.limit), {
        1: reset, 4: lambda: setattr(Config, "scale", 2.0), 7: lambda: setattr(config, "offset", 1.0),
        9: lambda: setattr(config, "limit", 6), 11: lambda: setattr(x_of, "x", x * 2)}


def named_attribute(device):
    x, config = X.to(device), Config()
    return (lambda: x + getattr(config, "extra", 0.0)), {5: lambda: setattr(config, "extra", 1.0)}


def defaults(device):
    x = X.to(device)
    return (lambda: add_default(x)), {1: lambda: setattr(add_default, "__defaults__", (1.0,)), 6: lambda: setattr(add_default, "__defaults__", (5.0,)),
                                      8: lambda: add_default.__kwdefaults__.update(z=3.0), 9: lambda: add_default.__kwdefaults__.update(z=2.0)}


def counter(device):
    """A number that the function itself changes."""
    x, state = X.to(device), types.SimpleNamespace(calls=0)

    def step():
        state.calls += 1
        return x * state.calls

    return step, {}


def every(n):
    def body(device):
        x, calls = X.to(device), {"n": 0}

        def change():
            calls["n"] += 1

        return (lambda: x * 2 if calls["n"] % n == 0 else x), {i: change for i in range(1, 13)}

    return body


def iterator(device):
    x, numbers = X.to(device), itertools.count()
    return (lambda: x * next(numbers)), {}


def toggling(device):
    """A flag that the function flips: two recordings take turns."""
    x, state = X.to(device), Config()
    state.flag = False

    def step():
        state.flag = not state.flag
        return x + 1 if state.flag else x - 1

    return step, {}


def carried(device):
    """A tensor that is put in place of the last one."""
    state = types.SimpleNamespace(hidden=torch.zeros(3, device=device))
    x = torch.arange(3.0, device=device)

    def step():
        state.hidden = state.hidden * 0.5 + x
        return state.hidden

    return step, {7: lambda: setattr(state, "hidden", torch.ones(3, device=device))}


def logged(device):
    """A list that grows at each call, by tensors that stay as they were."""
    x, seen = torch.ones(3, device=device), []

    def step():
        x.add_(1)
        seen.append(x.sum())
        return torch.stack(seen).sum()

    return step, {}


def replaced_data(device):
    p = torch.nn.Parameter(torch.ones(3, device=device))

    def change():
        p.data = torch.full((3,), 5.0, device=device)

    return (lambda: p * 2), {5: change, 8: lambda: p.data.add_(1)}


def frozen(device):
    p, q = (torch.nn.Parameter(torch.full((3,), v, device=device)) for v in (1.0, 2.0))

    def step():
        p.grad = q.grad = None
        (p * q).sum().backward()
        return torch.cat([t.grad if t.grad is not None else torch.zeros(3, device=device) for t in (p, q)])

    return step, {5: lambda: p.requires_grad_(False), 8: lambda: p.requires_grad_(True)}


def on_the_host(device):
    x, scale = X.to(device), torch.tensor(2.0)
    return (lambda: x * scale), {5: lambda: scale.fill_(3.0), 8: lambda: scale.add_(1)}


def array(device):
    numpy = pytest.importorskip("numpy")
    x, scale = X.to(device), numpy.array([2.0])
    return (lambda: x * float(scale[0])), {5: lambda: scale.fill(3.0)}


def layer(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0), torch.nn.LeakyReLU(0.1)).to(device)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
    x = X.to(device)
    hook = []
    return (lambda: model(x).sum(0)), {
        4: lambda: setattr(model[2], "negative_slope", 0.5), 6: lambda: model.append(torch.nn.Tanh()),
        8: lambda: hook.append(model[0].register_forward_hook(lambda m, i, o: o * 2)), 10: lambda: hook[0].remove()}


def modes(device):
    p = torch.nn.Parameter(X.to(device))

    def step():
        return (p * 2).sum() if torch.is_grad_enabled() else (p * 3).sum()

    return step, {4: lambda: torch.set_grad_enabled(False), 7: lambda: torch.set_grad_enabled(True)}


def context_variable(device):
    x, scale = X.to(device), contextvars.ContextVar("scale", default=1.0)
    return (lambda: x * scale.get()), {5: lambda: scale.set(2.0)}


def of_a_thread(device):
    x, local = X.to(device), threading.local()
    local.scale = 1.0
    return (lambda: x * local.scale), {5: lambda: setattr(local, "scale", 2.0)}


def random_numbers(device):
    x, draw = X.to(device), random.random
    random.seed(0)
    return (lambda: x * draw()), {}


PYTHON = [closure, global_name, tables, attributes, named_attribute, defaults, toggling, carried, replaced_data, frozen, on_the_host, layer, modes]
AT_EACH_CALL = {  # what changes, changes each time, or cannot be compared
    "counter": counter, "3rd": every(3), "5th": every(5), "7th": every(7), "iterator": iterator, "list": logged, "array": array,
    "context variable": context_variable, "thread": of_a_thread, "random numbers": random_numbers}


@pytest.mark.parametrize("body", PYTHON, ids=lambda body: body.__name__)
def test_what_python_holds(body):
    record = compare(story_of(body))
    assert record[-1][0] < 12  # some calls were replays


@pytest.mark.filterwarnings("ignore:.*recorded at each")
@pytest.mark.parametrize("body", AT_EACH_CALL.values(), ids=AT_EACH_CALL.keys())
def test_what_changes_at_each_call_is_recorded_at_each(body):
    assert compare(story_of(body))[-1][0] == 12


def test_training_and_evaluation_take_turns():
    """Two recordings a mode, one program a mode."""
    model, x = torch.nn.Dropout(0.5).to("tpu"), torch.ones(1000, device="tpu")

    @flambeau.capture
    def step(x):
        return model(x)

    for i in range(12):
        model.train(i % 2 == 0)
        kept = (step(x).cpu() != 0).float().mean().item()
        assert kept == 1.0 if i % 2 else 0.4 < kept < 0.6
    assert step.recorded == 4
    model.p = 0.9
    model.train()
    assert 0.05 < (step(x).cpu() != 0).float().mean().item() < 0.15


def test_one_warning_says_what_keeps_a_function_from_settling():
    with pytest.warns(UserWarning, match=r"recorded at each of 10 calls.*state.calls") as caught:
        compare(story_of(counter, calls=14))
    assert len(caught) == 1


def test_what_cannot_be_seen_is_refused_or_seen_by_check():
    hidden = {f"a{k}b": 0.0 for k in range(2_000)}  # too large to be compared

    def read():
        return X.to("tpu") + hidden["a7b"]

    step = flambeau.capture(read)
    step()
    hidden["a7b"] = 1.0
    with pytest.raises(ValueError, match=r"aten::add.*was 0 and became 1.*cannot be seen"):
        step()

    always = flambeau.capture(read, check="always")
    for _ in range(3):
        same(always(), X + 1)
    hidden["a7b"] = 2.0
    with pytest.raises(ValueError, match=r"was 1 and became 2"):
        always()
    with pytest.raises(ValueError, match="check"):
        flambeau.capture(read, check="sometimes")
