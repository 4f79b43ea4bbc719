"""What a captured function reads of Python: a change makes a new recording, so that each call does what the function does uncaptured."""

import array as arrays
import collections
import contextvars
import functools
import itertools
import random
import threading
import types
import weakref

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


def containers(device):
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


# ---- hooks ----


class Factor:
    """What a hook closes over, or calls."""

    def __init__(self):
        self.value = 2.0

    def __call__(self, *arguments):
        return arguments[-1] * self.value

    def change(self):
        self.value = 3.0


def gradient_of_ones(device, register):
    """The gradient of a parameter, whose hooks `register` makes, beside what happens before the sixth call."""
    p = torch.nn.Parameter(torch.ones(3, device=device))
    change = register(p)

    def step():
        p.grad = None
        (p * 1).sum().backward()
        return p.grad

    return step, {6: change}


def tensor_hook(device):
    factor = Factor()
    return gradient_of_ones(device, lambda p: p.register_hook(lambda g: g * factor.value) and factor.change)


def another_tensor_hook(device):
    def register(p):
        handle = p.register_hook(lambda g: g * 2)

        def change():
            handle.remove()
            p.register_hook(lambda g: g * 3)

        return change

    return gradient_of_ones(device, register)


def accumulated_hook(device):
    factor = Factor()

    def multiply(p):
        p.grad.mul_(factor.value)

    return gradient_of_ones(device, lambda p: p.register_post_accumulate_grad_hook(multiply) and factor.change)


def module_hooks(register):
    def body(device):
        model, factor, x = torch.nn.Linear(4, 3).to(device), Factor(), X.to(device).clone().requires_grad_()
        with torch.no_grad():
            model.weight.copy_(torch.eye(3, 4))
            model.bias.zero_()
        handle = register(model, factor)

        def step():
            x.grad = None
            y = model(x)
            y.sum().backward()
            return torch.cat([x.grad.flatten(), y.flatten()])

        return step, {5: factor.change, 8: handle.remove}

    return body


HOOKS = {
    "forward": module_hooks(lambda m, factor: m.register_forward_hook(factor)),
    "forward, of a closure": module_hooks(lambda m, factor: m.register_forward_hook(lambda m, i, o: o * factor.value)),
    "before forward": module_hooks(lambda m, factor: m.register_forward_pre_hook(lambda m, i: (factor(i[0]),))),
    "backward": module_hooks(lambda m, factor: m.register_full_backward_hook(lambda m, i, o: (factor(i[0]),))),
    "of all modules": module_hooks(lambda m, factor: torch.nn.modules.module.register_module_forward_hook(factor)),
    "tensor": tensor_hook,
    "another tensor hook": another_tensor_hook,
    "accumulated": accumulated_hook,
}


def optimizer_hook(device):
    factor = Factor()
    p = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([p], lr=0.1)

    def multiply(*of_step):
        p.grad.mul_(factor.value)

    optimizer.register_step_pre_hook(multiply)

    def step():
        p.grad = torch.ones_like(p)
        optimizer.step()
        return p

    return step, {6: factor.change}


# ---- containers, and classes of users ----


class Items(list):
    def __len__(self):  # its own, which says nothing of what it holds
        return 1

    def __iter__(self):
        return iter(())


class Table(dict):
    factor = 1.0

    def scaled(self, key):
        return self[key] * self.factor


class Line(collections.namedtuple("Line", "slope offset")):
    def at(self, x):
        return x * self.slope + TABLE["scale"]


class Recent(collections.deque):
    pass


class Meta(type):
    scale = 1.0

    def scaled(cls, x):
        return x * cls.scale


class Made(metaclass=Meta):
    pass


def product(x, configs):
    for config in configs:
        x = x * config.scale
    return x


def elements(make):
    """A container of one object, an attribute of which changes."""

    def body(device):
        x, config = X.to(device), Config()
        configs = make(config)
        return (lambda: product(x, configs)), {5: lambda: setattr(config, "scale", 2.0)}

    return body


def entry(table, key="k", value=2.0):
    """A container that is read at `key`, which changes."""

    def body(device):
        x, held = X.to(device), table()
        return (lambda: x * held[key]), {5: lambda: held.__setitem__(key, value)}

    return body


def reordered(device):
    x, table = X.to(device), collections.OrderedDict(a=2.0, b=3.0)

    def step():
        y = x
        for value in table.values():
            y = y * value + 1
        return y

    return step, {5: lambda: table.move_to_end("a")}


def own_list(device):
    x, items = X.to(device), Items([1.0, 2.0])
    return (lambda: x * list.__getitem__(items, 1) + list.__len__(items)), {4: lambda: list.append(items, 5.0),
                                                                           7: lambda: items.__setitem__(1, 3.0)}


def own_dict(device):
    x, table = X.to(device), Table(k=1.0)

    def reset():
        Table.factor = 1.0

    return (lambda: x * table.scaled("k") + getattr(table, "offset", 0.0)), {
        1: reset, 4: lambda: setattr(Table, "factor", 2.0), 7: lambda: setattr(table, "offset", 1.0)}


def own_tuple(device):
    x, line = X.to(device), Line(2.0, 1.0)

    def reset():
        TABLE["scale"] = 1.0

    return (lambda: line.at(x)), {1: reset, 5: lambda: TABLE.update(scale=2.0), 8: reset}


def set_of_numbers(device):
    x, chosen = X.to(device), {1}
    return (lambda: x * (2 if 2 in chosen else 1)), {5: lambda: chosen.add(2)}


def read_only(device):
    table = {"k": 1.0}
    x, shown = X.to(device), types.MappingProxyType(table)
    return (lambda: x * shown["k"]), {5: lambda: table.update(k=2.0)}


CONTAINERS = {
    "set": elements(lambda c: {c}),
    "frozenset": elements(lambda c: frozenset([c])),
    "keys of a dict": elements(lambda c: {c: None}),
    "deque": elements(lambda c: collections.deque([c])),
    "deque of a user": elements(lambda c: Recent([c])),
    "set of numbers": set_of_numbers,
    "defaultdict": entry(lambda: collections.defaultdict(float, k=1.0)),
    "UserDict": entry(lambda: collections.UserDict(k=1.0)),
    "ChainMap": entry(lambda: collections.ChainMap({"k": 1.0})),
    "deque of numbers": entry(lambda: Recent([1.0]), 0),
    "read only": read_only,
    "order": reordered,
    "list of a user": own_list,
    "dict of a user": own_dict,
    "tuple of a user": own_tuple,
}

# ---- functions, classes and objects ----


class Scaled(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = TABLE["scale"]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale * Scaled.factor


def autograd_function(device):
    p = torch.nn.Parameter(torch.ones(3, device=device))

    def reset():
        TABLE["scale"], Scaled.factor = 1.0, 2.0

    return (lambda: torch.autograd.grad(Scaled.apply(p).sum(), p)[0]), {
        1: reset, 4: lambda: TABLE.update(scale=2.0), 7: lambda: setattr(Scaled, "factor", 3.0), 9: reset}


def metaclass(device):
    x = X.to(device)
    return (lambda: Made.scaled(x)), {1: lambda: setattr(Meta, "scale", 1.0), 5: lambda: setattr(Meta, "scale", 2.0)}


def replaced_methods(device):
    x, config = X.to(device), Config()
    Config.of_class, Config.static = classmethod(lambda cls: 1.0), staticmethod(lambda: 1.0)
    return (lambda: x * config.of_class() + config.static()), {4: lambda: setattr(Config, "of_class", classmethod(lambda cls: 2.0)),
                                                               7: lambda: setattr(Config, "static", staticmethod(lambda: 3.0))}


def new_attributes(device):
    """Of a class, a function, a parameter."""
    p, config = torch.nn.Parameter(X.to(device)), Config()

    def scale(x):
        return x * getattr(scale, "by", 1.0) * getattr(config, "more", 1.0) * getattr(p, "own", 1.0)

    def reset():
        if hasattr(Config, "more"):
            del Config.more

    return (lambda: scale(p.detach())), {1: reset, 4: lambda: setattr(scale, "by", 2.0), 7: lambda: setattr(Config, "more", 3.0),
                                         10: lambda: setattr(p, "own", 4.0), 12: reset}


def bound_methods(device):
    x, table = X.to(device), {"k": 1.0}
    get = table.get
    return (lambda: x * get("k")), {5: lambda: table.update(k=2.0)}


def cached_property(device):
    class Cached:
        @functools.cached_property
        def scale(self):
            return TABLE["scale"]

    x, cached = X.to(device), Cached()

    def change():
        TABLE["scale"] = 2.0
        del cached.scale

    return (lambda: x * cached.scale), {1: lambda: TABLE.update(scale=1.0), 5: change, 8: lambda: TABLE.update(scale=1.0)}


def weak(device):
    x, config = X.to(device), Config()
    reference, kept = weakref.ref(config), [config]
    return (lambda: x * reference().scale), {5: lambda: setattr(kept[0], "scale", 2.0)}


def loss_scale(device):
    p = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer, scaler = torch.optim.SGD([p], lr=0.1), torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1)

    def step():
        optimizer.zero_grad()
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler._scale + p.sum()

    return step, {6: lambda: scaler.set_growth_interval(2), 10: lambda: scaler.set_growth_factor(4.0)}


def distribution(device):
    x = X.to(device)
    normal = torch.distributions.Normal(torch.zeros((), device=device), 1.0, validate_args=False)
    return (lambda: normal.log_prob(x)), {4: lambda: setattr(normal, "loc", normal.loc + 1), 8: lambda: setattr(normal, "scale", normal.scale * 2)}


OBJECTS = {f.__name__: f for f in (loss_scale, distribution, optimizer_hook, autograd_function, metaclass, replaced_methods, new_attributes, bound_methods, cached_property, weak)}


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


OF_EACH_KIND = (closure, global_name, containers, attributes, named_attribute, defaults, toggling, carried, replaced_data, frozen, on_the_host, layer,
                modes)
AT_EACH_CALL = {  # what changes, changes each time, or cannot be compared
    "counter": counter, "3rd": every(3), "5th": every(5), "7th": every(7), "iterator": iterator, "list": logged, "array": array,
    "context variable": context_variable, "thread": of_a_thread, "random numbers": random_numbers}


PYTHON = {f.__name__: f for f in OF_EACH_KIND} | HOOKS | CONTAINERS | OBJECTS


@pytest.mark.parametrize("body", PYTHON.values(), ids=PYTHON.keys())
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
